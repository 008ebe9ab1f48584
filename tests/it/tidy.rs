//! The house rules that a compiler does not check; src/ARCHITECTURE.md says why they are there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Which module of the crate may import which. What is not here is not allowed.
const LAYERS: &[(&str, &[&str])] = &[
    ("blob", &["format", "runtime"]),
    ("cli", &["blob", "client", "config", "format", "http", "index", "rca", "runtime", "service"]),
    ("client", &["format", "runtime"]),
    ("config", &["runtime"]),
    ("format", &[]),
    ("http", &["format", "runtime", "service"]),
    ("index", &["format", "runtime"]),
    ("rca", &[]),
    ("runtime", &[]),
    ("service", &["blob", "format", "index", "rca", "runtime"]),
];

/// Crates that appear in one module only (and those in `main.rs` are in none).
const DOORS: &[(&str, &[&str])] = &[
    ("axum", &["http"]),
    ("blake2", &["rca"]),
    ("blake3", &["format", "service"]),
    ("bytesize", &["config"]),
    ("clap", &["cli", "client"]),
    ("crc_fast", &["format"]),
    ("humantime", &["config", "http"]),
    ("hyper", &["http"]),
    ("lz4_flex", &["format"]),
    ("reqwest", &["client"]),
    ("rustls", &["client", "http"]),
    ("sqlx", &["index"]),
    ("tikv_jemallocator", &[]),
    ("toml", &["config"]),
    ("tokio_rustls", &["http"]),
    ("tower_http", &["http"]),
    ("zstd", &["rca"]),
];

/// Files that are longer than 400 lines all the same. May only shrink.
const LONG_FILES: &[&str] = &[];

/// A source file of the crate, as a path below `src` and its lines.
struct Source {
    path: String,
    lines: Vec<String>,
}

impl Source {
    /// The module at the top of the path; `None` for files directly in `src`.
    fn module(&self) -> Option<&str> {
        self.path.split_once('/').map(|(module, _)| module)
    }

    fn is_test(&self) -> bool {
        self.path.contains("/tests") || self.path.ends_with("conformance.rs")
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    walk(&root().join("src"), &mut |path| {
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(path).unwrap();
            let below = path.strip_prefix(root().join("src")).unwrap();
            let path = below.to_str().unwrap().to_owned();
            sources.push(Source { path, lines: text.lines().map(str::to_owned).collect() });
        }
    });
    assert!(sources.len() > 40, "only {} files were found", sources.len());
    sources
}

fn walk(folder: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { walk(&path, visit) } else { visit(&path) }
    }
}

fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn imports_run_one_way() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.is_test()) {
        let Some(module) = source.module() else { continue };
        let (_, allowed) = LAYERS.iter().find(|(name, _)| *name == module).unwrap_or_else(|| {
            panic!("src/{module} is not in the table of layers; decide where it belongs");
        });
        for line in &source.lines {
            for (at, _) in line.match_indices("crate::") {
                let rest = &line[at + "crate::".len()..];
                let imported: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                let is_comment = line.trim_start().starts_with("//");
                if !imported.is_empty() && imported != module && !is_comment && !allowed.contains(&imported.as_str()) {
                    wrong.push(format!("src/{}: {}", source.path, line.trim()));
                }
            }
        }
    }
    assert_none("imports against the layers", &wrong);
}

#[test]
fn crates_stay_behind_their_doors() {
    let mut wrong = Vec::new();
    for source in sources() {
        let Some(module) = source.module() else { continue };
        for (name, modules) in DOORS {
            let used = source.lines.iter().find(|line| {
                let code = line.split("//").next().unwrap_or_default();
                code.contains(&format!("{name}::")) && !code.contains(&format!("_{name}::"))
            });
            if let Some(line) = used
                && !modules.contains(&module)
            {
                wrong.push(format!("src/{}: {}", source.path, line.trim()));
            }
        }
    }
    assert_none("crates used outside their module", &wrong);
}

#[test]
fn no_file_is_longer_than_400_lines() {
    let long: BTreeSet<String> = sources()
        .into_iter()
        .filter(|source| !source.is_test() && source.lines.len() > 400)
        .map(|source| source.path)
        .collect();
    let listed: BTreeSet<String> = LONG_FILES.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(long, listed, "split what is new; take what has shrunk from the list");
}

#[test]
fn nothing_is_ignored_or_left_to_do_without_an_issue() {
    let mut found = Vec::new();
    for folder in ["src", "tests", "benches", "examples", "fuzz/fuzz_targets"] {
        walk(&root().join(folder), &mut |path| {
            // This file names what it looks for.
            if path.extension().is_none_or(|extension| extension != "rs") || path.ends_with("tidy.rs") {
                return;
            }
            for (number, line) in std::fs::read_to_string(path).unwrap().lines().enumerate() {
                let to_do = ["TODO", "FIXME", "XXX"].iter().any(|mark| line.contains(mark)) && !line.contains('#');
                let bare_allow = line.contains("#[allow(") || line.contains("#![allow(");
                if to_do || bare_allow || line.contains("#[ignore") {
                    found.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
                }
            }
        });
    }
    assert_none("ignored tests, bare allows, and things left to do", &found);
}

#[test]
fn every_limit_is_documented_with_its_source() {
    let text = std::fs::read_to_string(root().join("src/format/limits.rs")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut count = 0;
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("pub const ")) {
        let doc: String = lines[..index].iter().rev().take_while(|line| line.starts_with("///")).copied().collect();
        assert!(doc.contains("spec "), "{line} names no section of the spec");
        count += 1;
    }
    assert!(count >= 8, "only {count} limits were found");
}

#[test]
fn the_readme_and_the_docs_link_to_files_that_exist() {
    let mut broken = Vec::new();
    let mut check = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        for (at, _) in text.match_indices("](") {
            let target: String = text[at + 2..].chars().take_while(|c| *c != ')').collect();
            let file = target.split('#').next().unwrap_or_default();
            let exists = file.is_empty() || target.contains("://") || path.parent().unwrap().join(file).exists();
            if !exists {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    };
    check(&root().join("README.md"));
    walk(&root().join("docs"), &mut |path| {
        if path.extension().is_some_and(|extension| extension == "md") {
            check(path);
        }
    });
    assert_none("broken links", &broken);
}
