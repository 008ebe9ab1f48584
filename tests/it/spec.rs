//! What is said of the specification, held against the specification that is in the repository.

use std::collections::BTreeSet;

use crate::support::{TextFile, files, read};

/// What a reference names: a section, or a numbered row or rule of one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    section: String,
    /// Of a table ("row 15") or a list ("rule 9").
    entry: Option<String>,
}

/// Every section of docs/spec/xet-protocol.md, and every numbered row and rule under its heading.
fn places() -> BTreeSet<Place> {
    let text = read("docs/spec/xet-protocol.md");
    let (mut places, mut section) = (BTreeSet::new(), String::new());
    for line in text.lines() {
        if line.starts_with('#') {
            let number = line.trim_start_matches('#').trim_start();
            section = number.split_whitespace().next().unwrap_or_default().trim_end_matches('.').to_owned();
            places.insert(Place { section: section.clone(), entry: None });
        }
        let row = line.strip_prefix("| ").and_then(|row| row.split_once(" |"));
        let rule = line.split_once(". ");
        let entry = row.or(rule).map(|(number, _)| number).filter(|number| is_number(number));
        places.extend(entry.map(|number| Place { section: section.clone(), entry: Some(number.to_owned()) }));
    }
    places
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The places that a line names: after the word "spec", numbers of sections with what stands between them.
fn named(line: &str) -> Vec<Place> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("spec ") {
        if line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let (mut section, mut is_entry) = (None, false);
        for word in line[at + "spec ".len()..].split(' ') {
            let ends = word.ends_with([')', ';', ':']);
            let bare = word.trim_end_matches("'s").trim_end_matches([',', ')', ';', ':', '.']);
            let is_section = bare.split('.').all(is_number);
            match bare {
                "row" | "rows" | "rule" | "rules" => is_entry = true,
                "to" | "and" | "or" | "spec" if section.is_some() => {}
                number if is_entry && is_number(number) => {
                    found.push(Place { section: section.clone().unwrap_or_default(), entry: Some(number.to_owned()) });
                }
                number if is_section => {
                    (section, is_entry) = (Some(number.to_owned()), false);
                    found.push(Place { section: number.to_owned(), entry: None });
                }
                _ => break,
            }
            if ends {
                break;
            }
        }
    }
    found
}

#[test]
fn references_are_read_with_their_rows_and_rules() {
    let place = |section: &str, entry: Option<&str>| Place { section: section.into(), entry: entry.map(Into::into) };
    assert_eq!(
        named("/// As it is sent (spec 5.4.2, 6.2 rule 8)."),
        [place("5.4.2", None), place("6.2", None), place("6.2", Some("8"))]
    );
    assert_eq!(named("(spec 9, row 15), then 7"), [place("9", None), place("9", Some("15"))]);
    assert_eq!(named("as spec 5.1 to 5.3 have it"), [place("5.1", None), place("5.3", None)]);
    assert_eq!(named("spec 3.5's order."), [place("3.5", None)]);
    assert_eq!(named("the spec says 8"), []);
    assert_eq!(named("in inspec 5.1"), []);
}

#[test]
fn every_place_of_the_spec_that_is_named_is_in_it() {
    let places = places();
    let (mut count, mut missing) = (0, Vec::new());
    let directories = ["src", "crates", "tests", "benches", "docs", "migrations", "config", "examples", "fuzz"];
    let files = directories.iter().flat_map(|directory| files(directory, &["rs", "md", "py", "toml", "sql"]));
    let readme = TextFile { path: "README.md".to_owned(), text: read("README.md") };
    let is_checked = |file: &TextFile| !file.path.starts_with("docs/spec/") && file.path != "tests/it/spec.rs";
    for file in files.chain([readme]).filter(is_checked) {
        for (number, line) in file.text.lines().enumerate() {
            for place in named(line) {
                count += 1;
                if !places.contains(&place) {
                    missing.push(format!("{}:{}: {place:?}", file.path, number + 1));
                }
            }
        }
    }
    assert!(missing.is_empty(), "places that docs/spec/xet-protocol.md does not have:\n  {}", missing.join("\n  "));
    assert!(count > 100, "only {count} references were found");
}
