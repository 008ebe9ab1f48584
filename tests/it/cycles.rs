//! Cycles of imports between the files of one crate: none but those that are listed.
//!
//! A file imports the file that *defines* what it names: a re-export on the way is not an import. A
//! file and the modules below it are one thing that is split, so that it may use them and they it.
//! Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The directories of the sources of each crate, and the cycles in it: sets of files that all reach
/// each other. May only shrink.
const CYCLES: &[(&str, &[&[&str]])] = &[
    (
        "src",
        &[
            &["cli/bar.rs", "cli/output.rs"],
            &["client/pull/batch.rs", "client/pull/fetch.rs", "client/pull/plan.rs"],
            &["client/retry.rs", "client/server.rs"],
            &["config/quota.rs", "config/raw.rs"],
            &[
                "http/audit.rs",
                "http/auth.rs",
                "http/cost.rs",
                "http/error.rs",
                "http/layers.rs",
                "http/origin.rs",
                "http/route.rs",
                "http/tenant.rs",
            ],
            &["http/conn_state/piece.rs", "http/conn_state/receive_gate.rs", "http/sending.rs"],
            &["http/openapi.rs", "http/routes.rs"],
            &["index/sqlite/discard.rs", "index/sqlite/remove.rs"],
            &["service/archive/restore.rs", "service/archive/store.rs"],
            &[
                "service/contents.rs",
                "service/files.rs",
                "service/listing.rs",
                "service/possession.rs",
                "service/quota.rs",
                "service/register.rs",
            ],
            &[
                "service/registration_log/agree.rs",
                "service/registration_log/rebuild.rs",
                "service/registration_log/replay.rs",
            ],
        ],
    ),
    ("crates/rca/src", &[&["repair.rs", "survey.rs"]]),
    (
        "crates/xet-format/src",
        &[&["chunk.rs", "compression.rs"], &["xorb/error.rs", "xorb/footer.rs", "xorb/split.rs", "xorb/verify.rs"]],
    ),
];

/// The file of a module, as far as imports go.
#[derive(Debug, Default)]
struct File {
    /// Below the sources of the crate.
    path: String,
    imports: Vec<Import>,
    /// Items that the file defines.
    defined: BTreeSet<String>,
    /// Paths of two or more segments, and single names, outside of imports.
    named: BTreeSet<Vec<String>>,
}

/// One name that a `use` brings into scope.
#[derive(Debug, PartialEq)]
struct Import {
    /// `*` for all names.
    name: String,
    path: Vec<String>,
    is_reexport: bool,
}

/// The modules of a crate by their paths; the root is the empty one.
#[derive(Debug, Default)]
struct Modules(BTreeMap<Vec<String>, File>);

/// The words and signs of a source, without comments and literals. `::` is one sign.
fn tokens(source: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(len) = literal_len(rest) {
            len
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let is_code = !rest.starts_with("//") && !rest.starts_with("/*") && literal_len(rest).is_none();
        if is_code && !first.is_whitespace() {
            tokens.push(rest[..len].to_owned());
        }
        rest = &rest[len..];
    }
    tokens
}

/// Bytes of the string or character literal that begins here, with its quotes.
fn literal_len(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('b').or_else(|| rest.strip_prefix('c')).unwrap_or(rest);
    let start = rest.len() - body.len();
    if let Some(after) = body.strip_prefix('r') {
        let hashes = after.chars().take_while(|c| *c == '#').count();
        let text = after[hashes..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(hashes));
        return text.find(&close).map(|end| start + 1 + hashes + 1 + end + close.len());
    }
    if let Some(text) = body.strip_prefix('"') {
        let mut is_escaped = false;
        for (at, c) in text.char_indices() {
            match c {
                '"' if !is_escaped => return Some(start + 1 + at + 1),
                '\\' => is_escaped = !is_escaped,
                _ => is_escaped = false,
            }
        }
        return Some(rest.len());
    }
    let text = body.strip_prefix('\'')?;
    let mut chars = text.char_indices();
    match chars.next()?.1 {
        '\\' => chars.skip(1).find(|(_, c)| *c == '\'').map(|(at, _)| start + 1 + at + 1),
        // Otherwise it is a lifetime.
        _ => chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| start + 1 + at + 1),
    }
}

/// The tokens without the items that are behind `#[cfg(test)]`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens.len() - at >= MARK.len() && tokens[at..].iter().zip(MARK).all(|(token, mark)| token == mark) {
            at = end_of_item(tokens, at + MARK.len());
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Where the item that begins here ends: behind its block or its semicolon.
fn end_of_item(tokens: &[String], start: usize) -> usize {
    let (mut depth, mut is_use) = (0_usize, false);
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.as_str() {
            "use" if depth == 0 => is_use = true,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && !is_use {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

impl File {
    fn parse(path: &str, source: &str) -> Self {
        const DEFINING: [&str; 9] =
            ["struct", "enum", "trait", "fn", "const", "static", "type", "union", "macro_rules"];
        let tokens = without_tests(&tokens(source));
        let mut file = Self { path: path.to_owned(), ..Self::default() };
        let mut at = 0;
        while at < tokens.len() {
            if tokens[at] == "use" {
                let is_reexport = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                let end = (at..tokens.len()).find(|end| tokens[*end] == ";").unwrap_or(tokens.len());
                tree(&tokens[at + 1..end], &[], is_reexport, &mut file.imports);
                at = end;
            } else if is_name(&tokens[at]) {
                let mut path = vec![tokens[at].clone()];
                while at + 2 < tokens.len() && tokens[at + 1] == "::" && is_name(&tokens[at + 2]) {
                    path.push(tokens[at + 2].clone());
                    at += 2;
                }
                if DEFINING.contains(&path[0].as_str()) {
                    let name = tokens[at + 1..].iter().find(|token| is_name(token) && *token != "mut");
                    file.defined.extend(name.cloned());
                }
                file.named.insert(path);
            }
            at += 1;
        }
        file
    }
}

/// The names that a tree of a `use` brings into scope.
fn tree(tokens: &[String], prefix: &[String], is_reexport: bool, imports: &mut Vec<Import>) {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "::" => {}
            "{" => {
                let (mut depth, mut start) = (0_usize, at + 1);
                for (index, token) in tokens.iter().enumerate().skip(at + 1) {
                    match token.as_str() {
                        "{" => depth += 1,
                        "}" if depth > 0 => depth -= 1,
                        "," | "}" if depth == 0 => {
                            tree(&tokens[start..index], &path, is_reexport, imports);
                            start = index + 1;
                        }
                        _ => {}
                    }
                }
                return;
            }
            "as" => {
                let name = tokens.get(at + 1).cloned().unwrap_or_default();
                imports.push(Import { name, path, is_reexport });
                return;
            }
            "*" => {
                imports.push(Import { name: "*".to_owned(), path, is_reexport });
                return;
            }
            "self" if !path.is_empty() => {}
            token => path.push(token.to_owned()),
        }
        at += 1;
    }
    if let Some(name) = path.last().cloned().filter(|_| path.len() > prefix.len() || !tokens.is_empty()) {
        imports.push(Import { name, path, is_reexport });
    }
}

impl Modules {
    /// The modules of these sources, each a path below the root and its text.
    fn parse<'a>(sources: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let file = |(path, source): (&str, &str)| {
            let below = path.strip_suffix(".rs")?;
            let mut module: Vec<String> = below.split('/').map(str::to_owned).collect();
            if module.last().is_some_and(|last| last == "mod" || below == "lib") {
                module.pop();
            }
            // A program is a crate of its own.
            (below != "main").then(|| (module, File::parse(path, source)))
        };
        Self(sources.into_iter().filter_map(file).collect())
    }

    /// A path as it is written in a module, from the root; `None` where it is of another crate.
    fn absolute(&self, module: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let joined = |base: &[String], rest: &[String]| [base, rest].concat();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(joined(module, rest)),
            "super" => {
                let (_, parent) = module.split_last()?;
                if rest.first().is_some_and(|next| next == "super") {
                    self.absolute(parent, rest, depth)
                } else {
                    Some(joined(parent, rest))
                }
            }
            _ if self.0.contains_key(&joined(module, std::slice::from_ref(first))) => Some(joined(module, path)),
            name => {
                let import = self.0.get(module)?.imports.iter().find(|import| import.name == name)?;
                // A name that an import gives to itself is another crate's.
                let is_own = import.path.first() == Some(first);
                let target = if is_own || depth == 0 { None } else { self.absolute(module, &import.path, depth - 1) };
                target.map(|target| joined(&target, rest))
            }
        }
    }

    /// The module whose file defines what an absolute path names.
    fn definition(&self, path: &[String], depth: usize) -> Option<Vec<String>> {
        let mut module: Vec<String> = Vec::new();
        for (at, name) in path.iter().enumerate() {
            module.push(name.clone());
            if self.0.contains_key(&module) {
                continue;
            }
            module.pop();
            let file = self.0.get(&module)?;
            if file.defined.contains(name) || depth == 0 {
                return Some(module);
            }
            let through = |import: &Import, rest: &[String]| {
                let target = self.absolute(&module, &import.path, 8)?;
                self.definition(&[&target, rest].concat(), depth - 1)
            };
            if let Some(import) = file.imports.iter().find(|import| import.name == *name) {
                return through(import, &path[at + 1..]);
            }
            let globs = file.imports.iter().filter(|import| import.name == "*");
            let found = globs.filter_map(|import| through(import, &path[at..])).find(|found| *found != module);
            return Some(found.unwrap_or(module));
        }
        Some(module)
    }

    /// The files that each file imports.
    fn edges(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut edges = BTreeMap::new();
        for (module, file) in &self.0 {
            let is_used = |import: &Import| file.named.iter().any(|path| path[0] == import.name);
            let imports = file.imports.iter().filter(|import| !import.is_reexport || is_used(import));
            // A single name is a variable, or one that an import has brought.
            let named = file.named.iter().filter(|path| path.len() > 1);
            let paths = imports.map(|import| &import.path).chain(named);
            let targets = paths
                .filter_map(|path| self.absolute(module, path, 8))
                .filter_map(|path| self.definition(&path, 8))
                .filter(|target| !target.starts_with(module))
                .filter_map(|target| self.0.get(&target));
            edges.insert(file.path.as_str(), targets.map(|target| target.path.as_str()).collect());
        }
        edges
    }

    /// Sets of two or more files that all reach each other.
    fn cycles(&self) -> BTreeSet<Vec<&str>> {
        let edges = self.edges();
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            edges.keys().map(|file| (*file, reachable(&edges, file))).collect();
        let mut cycles = BTreeSet::new();
        for (file, others) in reached.iter().filter(|(file, others)| others.contains(*file)) {
            let cycle: Vec<&str> = others.iter().copied().filter(|other| reached[other].contains(file)).collect();
            cycles.insert(cycle);
        }
        cycles
    }
}

fn reachable<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, start: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = edges[start].iter().copied().collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(&edges[file]);
        }
    }
    reached
}

fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with("tests") || part.starts_with("conformance"))
}

/// The sources of a crate, as paths below their directory.
fn sources(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(&next).expect("the directory can be read") {
            let path = entry.expect("the entry can be read").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(directory).expect("it is below").to_str().expect("names are text");
                if !is_test(below) {
                    found.push((below.to_owned(), std::fs::read_to_string(&path).expect("sources are text")));
                }
            }
        }
    }
    found
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn files_import_each_other_in_listed_cycles_only() {
    let mut faults = Vec::new();
    for (directory, listed) in CYCLES {
        let sources = sources(&root().join(directory));
        assert!(sources.len() > 10, "only {} sources were found in {directory}", sources.len());
        let modules = Modules::parse(sources.iter().map(|(path, text)| (path.as_str(), text.as_str())));
        let found: BTreeSet<Vec<&str>> = modules.cycles();
        let listed: BTreeSet<Vec<&str>> = listed.iter().map(|cycle| cycle.to_vec()).collect();
        faults.extend(found.difference(&listed).map(|cycle| format!("{directory}: a cycle: {cycle:?}")));
        faults.extend(listed.difference(&found).map(|cycle| format!("{directory}: no cycle any more: {cycle:?}")));
    }
    assert!(faults.is_empty(), "move what is shared down, and change CYCLES:\n  {}", faults.join("\n  "));
}

/// The cycles of samples, each a path and its source.
fn cycles_of(sources: &[(&str, &str)]) -> Vec<Vec<String>> {
    let modules = Modules::parse(sources.iter().copied());
    modules.cycles().into_iter().map(|cycle| cycle.into_iter().map(str::to_owned).collect()).collect()
}

#[test]
fn a_cycle_is_found_however_its_files_are_named() {
    for import in [
        "use crate::b::B;",
        "use super::b::B;",
        "use super::{c::{self, C}, b::{B as Other}};",
        "use super::b; fn f(x: b::B) {}",
        "use crate::B;",
        "fn f() -> crate::b::B {}",
        "fn f() -> Vec<super::b::B> {}",
        "use super::every; fn f(x: every::B) {}",
    ] {
        let sources = [
            ("lib.rs", "mod a; mod b; mod c; mod every; pub use b::B;"),
            ("a.rs", &format!("{import}\npub struct A;")),
            ("b/mod.rs", "use super::a::A; pub struct B(A); fn f() { use super::c::C; }"),
            ("c.rs", "pub struct C;"),
            ("every.rs", "pub use crate::b::*;"),
        ];
        assert_eq!(cycles_of(&sources), [["a.rs", "b/mod.rs"]], "{import}");
    }
}

#[test]
fn what_is_no_import_makes_no_cycle() {
    for import in [
        "// use crate::b::B;",
        "fn f() { g(\"crate::b::B\", r#\"use super::b::B;\"#, '\"') } fn g<'a>(x: &'a str) {}",
        "#[cfg(test)]\nmod tests { use crate::b::B; }",
        "#[cfg(test)]\nuse crate::b::{B};",
        "use b::B;",
        "use serde::b::B;",
        "fn f(b: u8) -> u8 { b }",
    ] {
        let sources = [
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
            ("main.rs", "use zorb::a::A;"),
            ("a.rs", &format!("{import}\npub struct A;")),
            ("b.rs", "mod below; use crate::A; pub struct B(A); fn f() { below::g() }"),
            ("b/below.rs", "use super::B; pub fn g() {}"),
        ];
        assert_eq!(cycles_of(&sources), [[""; 0]; 0], "{import}");
    }
}
