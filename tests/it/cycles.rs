//! Cycles of imports between the files of one crate: there are none.
//!
//! A file imports the file that *defines* what it names: a re-export on the way is not an import. A
//! file and the modules below it are one thing that is split, so that it may use them and they it.
//! Tests are left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Import, Names, files};

/// The directories of the sources of each crate.
const CRATES: [&str; 5] = ["src", "crates/client/src", "crates/git/src", "crates/rca/src", "crates/xet-format/src"];

/// The file of a module.
#[derive(Debug)]
struct File {
    /// Below the sources of the crate.
    path: String,
    names: Names,
}

/// The modules of a crate by their paths; the root is the empty one.
#[derive(Debug, Default)]
struct Modules(BTreeMap<Vec<String>, File>);

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
            let file = || File { path: path.to_owned(), names: Names::outside_tests(source) };
            (below != "main").then(|| (module, file()))
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
                let import = self.0.get(module)?.names.imports.iter().find(|import| import.name == name)?;
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
            let names = &self.0.get(&module)?.names;
            if names.defined.contains(name) || depth == 0 {
                return Some(module);
            }
            let through = |import: &Import, rest: &[String]| {
                let target = self.absolute(&module, &import.path, 8)?;
                self.definition(&[&target, rest].concat(), depth - 1)
            };
            if let Some(import) = names.imports.iter().find(|import| import.name == *name) {
                return through(import, &path[at + 1..]);
            }
            let globs = names.imports.iter().filter(|import| import.name == "*");
            let found = globs.filter_map(|import| through(import, &path[at..])).find(|found| *found != module);
            return Some(found.unwrap_or(module));
        }
        Some(module)
    }

    /// The files that each file imports.
    fn edges(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut edges = BTreeMap::new();
        for (module, file) in &self.0 {
            let names = &file.names;
            let is_used = |import: &Import| names.used.iter().any(|path| path[0] == import.name);
            let imports = names.imports.iter().filter(|import| !import.is_reexport || is_used(import));
            // A single name is a variable, or one that an import has brought.
            let used = names.used.iter().filter(|path| path.len() > 1);
            let paths = imports.map(|import| &import.path).chain(used);
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

#[test]
fn files_of_a_crate_import_each_other_without_cycles() {
    let mut faults = Vec::new();
    for directory in CRATES {
        let sources = files(directory, &["rs"]);
        assert!(sources.len() > 5, "only {} sources were found in {directory}", sources.len());
        let below = sources.iter().map(|file| (&file.path[directory.len() + 1..], file.text.as_str()));
        let modules = Modules::parse(below.filter(|(path, _)| !is_test(path)));
        faults.extend(modules.cycles().iter().map(|cycle| format!("{directory}: {cycle:?}")));
    }
    assert!(
        faults.is_empty(),
        "files import each other; move what they share to another one:\n  {}",
        faults.join("\n  ")
    );
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
