//! The house rules that a compiler does not check; src/ARCHITECTURE.md says why they are there.

use std::collections::BTreeSet;

use crate::support::{Names, TextFile, files, read, root};

/// Which module of the crate may import which. What is not here is not allowed.
const LAYERS: &[(&str, &[&str])] = &[
    ("blob", &["format", "runtime"]),
    ("cli", &["blob", "client", "config", "format", "http", "index", "rca", "runtime", "service"]),
    ("config", &["runtime"]),
    ("http", &["format", "git", "runtime", "service", "wire"]),
    ("index", &["format", "git", "runtime"]),
    ("runtime", &[]),
    ("service", &["blob", "format", "git", "index", "rca", "runtime"]),
];

/// What the crates below `crates` may depend on: nothing of the server, and but for the client
/// nothing that does I/O by itself. What they do not have, their imports cannot name.
const CRATES: &[(&str, &[&str])] = &[
    (
        "client",
        &[
            "bytes",
            "futures-util",
            "httpdate",
            "rand",
            "reqwest",
            "rustls",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "utoipa",
            "xet-format",
        ],
    ),
    ("git", &["gix-actor", "gix-hash", "gix-object", "gix-validate", "ignore", "thiserror"]),
    ("rca", &["blake2", "thiserror", "zstd"]),
    ("xet-format", &["blake3", "crc-fast", "lz4_flex", "thiserror", "twox-hash"]),
];

/// Crates that appear in one module of the server only, or in none but `lib.rs`, `main.rs` or tests.
const DOORS: &[(&str, &[&str])] = &[
    ("axum", &["http"]),
    ("blake3", &["service"]),
    ("bytesize", &["config"]),
    ("clap", &["cli"]),
    ("humantime", &["config", "http"]),
    ("hyper", &["http"]),
    ("object_store", &["blob"]),
    ("reqwest", &[]),
    // The first is that of rustls.
    ("ring", &["http", "service"]),
    ("rustls", &["blob", "http"]),
    ("sqlx", &["index"]),
    ("tikv_jemallocator", &[]),
    ("toml", &["config"]),
    ("tokio_rustls", &["http"]),
    ("tower_http", &["http"]),
    // By their names in `lib.rs`, which the table of layers has.
    ("xet_format", &[]),
    ("zorb_client", &[]),
    ("zorb_git", &[]),
];

/// Files that are longer than 400 lines all the same. May only shrink.
const LONG_FILES: &[&str] = &[];

/// The top module of a source of the server; `None` for files directly in `src`.
fn module(file: &TextFile) -> Option<&str> {
    file.path.strip_prefix("src/")?.split_once('/').map(|(module, _)| module)
}

fn is_test(file: &TextFile) -> bool {
    file.path.contains("/tests") || file.path.ends_with("conformance.rs")
}

/// The sources of the server.
fn sources() -> Vec<TextFile> {
    let sources = files("src", &["rs"]);
    assert!(sources.len() > 40, "only {} files were found", sources.len());
    sources
}

/// The sources of the crates that are not the server.
fn sources_of_crates() -> Vec<TextFile> {
    CRATES.iter().flat_map(|(name, _)| files(&format!("crates/{name}/src"), &["rs"])).collect()
}

/// The paths that a source imports or uses.
fn paths(file: &TextFile) -> impl Iterator<Item = Vec<String>> {
    let names = Names::of(&file.text);
    names.imports.into_iter().map(|import| import.path).chain(names.used)
}

fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn imports_run_one_way() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !is_test(source)) {
        let Some(module) = module(source) else { continue };
        let (_, allowed) = LAYERS.iter().find(|(name, _)| *name == module).unwrap_or_else(|| {
            panic!("src/{module} is not in the table of layers; decide where it belongs");
        });
        for path in paths(source).filter(|path| path.len() > 1 && path[0] == "crate") {
            if path[1] != module && !allowed.contains(&path[1].as_str()) {
                wrong.push(format!("{}: {}", source.path, path.join("::")));
            }
        }
    }
    assert_none("imports against the layers", &wrong);
}

/// The module `index/sqlite/tx.rs` says why.
#[test]
fn no_parameter_is_the_whole_limit_of_an_sqlite_statement() {
    let statements = files("src/index/sqlite", &["rs"]);
    assert!(statements.iter().any(|source| source.text.contains("LIMIT +?")), "the search finds statements");
    let is_wrong = |line: &str| line.contains("LIMIT ?") || line.contains("LIMIT \"");
    let wrong: Vec<String> = statements
        .iter()
        .flat_map(|source| source.text.lines().map(move |line| (source, line)))
        .filter(|(_, line)| is_wrong(line) && !line.trim_start().starts_with("//"))
        .map(|(source, line)| format!("{}: {}", source.path, line.trim()))
        .collect();
    assert_none("limits for which SQLite prepares the statement again", &wrong);
}

#[test]
fn crates_depend_on_listed_crates_only() {
    let entries = root().join("crates").read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let found: BTreeSet<String> = entries.map(|name| name.into_string().unwrap()).collect();
    let listed: BTreeSet<String> = CRATES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, listed, "decide what a new crate may depend on");
    for (name, allowed) in CRATES {
        let manifest: toml::Table = read(&format!("crates/{name}/Cargo.toml")).parse().unwrap();
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
    for source in &sources() {
        let Some(module) = module(source) else { continue };
        for path in paths(source) {
            let door = DOORS.iter().find(|(name, _)| path[0] == *name && path.len() > 1);
            if door.is_some_and(|(_, modules)| !modules.contains(&module)) {
                wrong.push(format!("{}: {}", source.path, path.join("::")));
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
        .filter(|source| !is_test(source) && source.text.lines().count() > 400)
        .map(|source| source.path)
        .collect();
    let listed: BTreeSet<String> = LONG_FILES.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(long, listed, "split what is new; take what has shrunk from the list");
}

#[test]
fn nothing_is_ignored_or_left_to_do_without_an_issue() {
    let mut found = Vec::new();
    for directory in ["src", "crates", "tests", "benches", "examples", "fuzz"] {
        // This file names what it looks for.
        for file in files(directory, &["rs"]).iter().filter(|file| !file.path.ends_with("tidy.rs")) {
            for (number, line) in file.text.lines().enumerate() {
                let to_do = ["TODO", "FIXME", "XXX"].iter().any(|mark| line.contains(mark)) && !line.contains('#');
                let bare_allow = line.contains("#[allow(") || line.contains("#![allow(");
                if to_do || bare_allow || line.contains("#[ignore") {
                    found.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
                }
            }
        }
    }
    assert_none("ignored tests, bare allows, and things left to do", &found);
}

#[test]
fn every_limit_is_documented_with_its_source() {
    let text = read("crates/xet-format/src/limits.rs");
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
    for page in
        files("docs", &["md"]).into_iter().chain([TextFile { path: "README.md".to_owned(), text: read("README.md") }])
    {
        let directory = root().join(&page.path).parent().unwrap().to_owned();
        for (at, _) in page.text.match_indices("](") {
            let target: String = page.text[at + 2..].chars().take_while(|c| *c != ')').collect();
            let file = target.split('#').next().unwrap_or_default();
            if !(file.is_empty() || target.contains("://") || directory.join(file).exists()) {
                broken.push(format!("{}: {target}", page.path));
            }
        }
    }
    assert_none("broken links", &broken);
}
