//! The house rules that a compiler does not check; src/ARCHITECTURE.md says why they are there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Which module of the crate may import which. What is not here is not allowed.
const LAYERS: &[(&str, &[&str])] = &[
    ("blob", &["format", "runtime"]),
    ("cli", &["blob", "client", "config", "format", "http", "index", "rca", "runtime", "service"]),
    ("client", &["format", "runtime"]),
    ("config", &["runtime"]),
    ("http", &["format", "runtime", "service"]),
    ("index", &["format", "runtime"]),
    ("runtime", &[]),
    ("service", &["blob", "format", "index", "rca", "runtime"]),
];

/// What the crates below `crates` may depend on: nothing of the server, and nothing that does I/O by
/// itself. What they do not have, their imports cannot name.
const CRATES: &[(&str, &[&str])] = &[
    ("rca", &["blake2", "thiserror", "zstd"]),
    ("xet-format", &["blake3", "crc-fast", "lz4_flex", "thiserror", "twox-hash"]),
];

/// Crates that appear in one module of the server only (and those in `main.rs` are in none).
const DOORS: &[(&str, &[&str])] = &[
    ("axum", &["http"]),
    ("blake3", &["service"]),
    ("bytesize", &["config"]),
    ("clap", &["cli", "client"]),
    ("humantime", &["config", "http"]),
    ("hyper", &["http"]),
    ("reqwest", &["client"]),
    ("rustls", &["client", "http"]),
    ("sqlx", &["index"]),
    ("tikv_jemallocator", &[]),
    ("toml", &["config"]),
    ("tokio_rustls", &["http"]),
    ("tower_http", &["http"]),
];

/// Files that are longer than 400 lines all the same. May only shrink.
const LONG_FILES: &[&str] = &[];

/// A source file, as a path below `src` or, of another crate, below the root; and its lines.
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
    let sources = sources_below(&root().join("src"), &root().join("src"));
    assert!(sources.len() > 40, "only {} files were found", sources.len());
    sources
}

/// The sources of the crates that are not the server.
fn sources_of_crates() -> Vec<Source> {
    let directories = CRATES.iter().map(|(name, _)| root().join("crates").join(name).join("src"));
    directories.flat_map(|directory| sources_below(&directory, &root())).collect()
}

fn sources_below(directory: &Path, base: &Path) -> Vec<Source> {
    let mut sources = Vec::new();
    walk(directory, &mut |path| {
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(path).unwrap();
            let path = path.strip_prefix(base).unwrap().to_str().unwrap().to_owned();
            sources.push(Source { path, lines: text.lines().map(str::to_owned).collect() });
        }
    });
    sources
}

fn walk(directory: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(directory).unwrap() {
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
fn crates_depend_on_listed_crates_only() {
    let entries = root().join("crates").read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let found: BTreeSet<String> = entries.map(|name| name.into_string().unwrap()).collect();
    let listed: BTreeSet<String> = CRATES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, listed, "decide what a new crate may depend on");
    for (name, allowed) in CRATES {
        let manifest = std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let dependencies = manifest["dependencies"].as_table().unwrap().keys().map(String::as_str);
        assert_eq!(dependencies.collect::<BTreeSet<_>>(), allowed.iter().copied().collect(), "crates/{name}");
        for other in ["build-dependencies", "target"] {
            assert!(!manifest.contains_key(other), "crates/{name} has [{other}]");
        }
        // Its tests could not be run by others.
        let of_tests = manifest["dev-dependencies"].as_table().unwrap();
        assert!(!of_tests.contains_key("zorb"), "the tests of crates/{name} depend on the server");
    }
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
        .chain(sources_of_crates())
        .filter(|source| !source.is_test() && source.lines.len() > 400)
        .map(|source| source.path)
        .collect();
    let listed: BTreeSet<String> = LONG_FILES.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(long, listed, "split what is new; take what has shrunk from the list");
}

#[test]
fn nothing_is_ignored_or_left_to_do_without_an_issue() {
    let mut found = Vec::new();
    for directory in ["src", "crates", "tests", "benches", "examples", "fuzz"] {
        walk(&root().join(directory), &mut |path| {
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
    let text = std::fs::read_to_string(root().join("crates/xet-format/src/limits.rs")).unwrap();
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
