//! The form of the documents: what people can read, and links and names that lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::support::{files, root};
use crate::words::found_in;

const MAX_PAGE_LINES: usize = 250;
const MAX_README_LINES: usize = 120;
const MAX_CELL_CHARS: usize = 160;
const MAX_SENTENCE_WORDS: usize = 35;

/// Pages that may be longer, each with the reason.
const LONG_PAGES: &[(&str, &str)] = &[];

/// Directories of pages whose form is not checked, each with the reason. Their links are.
const FREE_FORM: &[(&str, &str)] = &[
    ("docs/spec/", "written down from the protocol, and cited by its rows"),
    ("docs/lab/", "raw measurements of one day, which no reader needs to follow"),
];

/// Words with a full stop that do not end a sentence.
const ABBREVIATIONS: &[&str] = &["e.g.", "i.e.", "vs.", "cf.", "approx.", "no.", "fig."];

/// Names that begin a sentence in lower case.
const LOWER_CASE_NAMES: &[&str] = &["curl", "hf_xet", "nginx", "systemd", "zorb"];

/// Where the files are that documents name.
const DIRECTORIES: &[&str] = &[
    ".ci/",
    "benches/",
    "config/",
    "crates/",
    "docs/",
    "examples/",
    "fuzz/",
    "migrations/",
    "packaging/",
    "src/",
    "tests/",
];

/// The page about the code. Names of files in it begin with a module, as in `http/xorbs.rs`.
const ARCHITECTURE: &str = "src/ARCHITECTURE.md";

/// A document of the repository.
#[derive(Debug)]
struct Page {
    /// Below the root.
    path: String,
    text: String,
}

/// What stands in a page, apart from code blocks.
#[derive(Debug, PartialEq)]
struct Block {
    /// The number of its first line, from 1.
    line: usize,
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Heading,
    /// A paragraph or an item of a list.
    Prose,
    /// One cell of a table.
    Cell,
}

impl Page {
    fn sample(text: &str) -> Self {
        Self { path: "docs/sample.md".to_owned(), text: text.to_owned() }
    }

    fn has_form(&self) -> bool {
        FREE_FORM.iter().all(|(directory, _)| !self.path.starts_with(directory))
    }

    /// Headings, paragraphs, items and cells. Lines of one paragraph are joined by spaces.
    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (line, text) in self.lines_outside_code() {
            let trimmed = text.trim();
            let item = without_marker(trimmed);
            let begins = |kind, text: &str| Block { line, kind, text: text.to_owned() };
            if trimmed.starts_with('|') || trimmed.starts_with('#') || trimmed.is_empty() || item.is_some() {
                blocks.extend(open.take());
            }
            if trimmed.starts_with('|') {
                if !trimmed.chars().all(|c| "|-: ".contains(c)) {
                    blocks.extend(cells(trimmed).iter().map(|cell| begins(Kind::Cell, cell)));
                }
            } else if trimmed.starts_with('#') {
                blocks.push(begins(Kind::Heading, trimmed.trim_start_matches('#').trim()));
            } else if let Some(item) = item {
                open = Some(begins(Kind::Prose, item));
            } else if let Some(block) = &mut open {
                block.text.push(' ');
                block.text.push_str(trimmed);
            } else if !trimmed.is_empty() {
                open = Some(begins(Kind::Prose, trimmed));
            }
        }
        blocks.extend(open);
        blocks
    }

    /// Numbered lines; a code block is an empty line, and so is a line that begins a comment.
    fn lines_outside_code(&self) -> Vec<(usize, &str)> {
        let mut fence: Option<&str> = None;
        let numbered = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        numbered
            .map(|(number, line)| {
                let trimmed = line.trim_start();
                let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
                match (fence, mark) {
                    (None, Some(mark)) => fence = Some(mark),
                    (Some(open), Some(mark)) if open == mark => fence = None,
                    (None, None) if !trimmed.starts_with("<!--") => return (number, line),
                    _ => {}
                }
                (number, "")
            })
            .collect()
    }
}

/// The text of a list item or a quotation, without its mark.
fn without_marker(line: &str) -> Option<&str> {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = if digits.len() < line.len() { digits.strip_prefix(". ") } else { None };
    let marked = ["* ", "- ", "+ ", "> "].iter().find_map(|mark| line.strip_prefix(mark));
    marked.or(numbered).map(str::trim_start)
}

/// The cells of a line of a table. `\|` is no border.
fn cells(line: &str) -> Vec<String> {
    let hidden = line.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{0}");
    hidden.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

/// What a reader sees of a text: links without their targets, code spans by `code`.
fn visible(text: &str, code: fn(&str) -> String) -> String {
    let (mut seen, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let ticks = rest.len() - rest.trim_start_matches('`').len();
        if ticks > 0 {
            let after = &rest[ticks..];
            let (span, left) = after.split_once(&rest[..ticks]).unwrap_or((after, ""));
            seen.push_str(&code(span));
            rest = left;
        } else if let Some(target) = rest.strip_prefix("](") {
            rest = target.split_once(')').map_or("", |(_, left)| left);
        } else {
            seen.extend(Some(first).filter(|c| !"[]!".contains(*c) || (*c == '!' && !rest.starts_with("!["))));
            rest = &rest[first.len_utf8()..];
        }
    }
    seen
}

/// The sentences of a text, each as its words. A code span is one word.
fn sentences(text: &str) -> Vec<Vec<String>> {
    let text = visible(text, |_| "CODE".to_owned());
    let words: Vec<&str> = text.split_whitespace().collect();
    let (mut sentences, mut sentence) = (Vec::new(), Vec::new());
    for (index, word) in words.iter().enumerate() {
        if word.contains(char::is_alphanumeric) {
            sentence.push((*word).to_owned());
        }
        if ends_sentence(word) && words.get(index + 1).is_none_or(|next| begins_sentence(next)) {
            sentences.push(std::mem::take(&mut sentence));
        }
    }
    sentences.push(sentence);
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

fn begins_sentence(word: &str) -> bool {
    let first = word.chars().find(|c| c.is_alphanumeric());
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric()).trim_end_matches("'s");
    first.is_none_or(|c| !c.is_lowercase()) || LOWER_CASE_NAMES.contains(&bare)
}

fn ends_sentence(word: &str) -> bool {
    let bare = word.trim_end_matches([')', '"', '*', '_', '\'']).trim_start_matches(['(', '"', '*', '_']);
    bare.ends_with(['.', '!', '?']) && !ABBREVIATIONS.contains(&bare.to_lowercase().as_str())
}

fn long_sentences(page: &Page) -> Vec<String> {
    let mut found = Vec::new();
    for block in page.blocks() {
        for sentence in sentences(&block.text).iter().filter(|words| words.len() > MAX_SENTENCE_WORDS) {
            let start = sentence[..6].join(" ");
            found.push(format!("{}:{}: {} words: {start} …", page.path, block.line, sentence.len()));
        }
    }
    found
}

fn wide_cells(page: &Page) -> Vec<String> {
    let mut found = Vec::new();
    for block in page.blocks().iter().filter(|block| block.kind == Kind::Cell) {
        let count = visible(&block.text, str::to_owned).chars().count();
        if count > MAX_CELL_CHARS {
            found.push(format!("{}:{}: a cell of {count} characters", page.path, block.line));
        }
    }
    found
}

/// Phrases of the table of words, outside code. A link counts by its text.
fn table_words(page: &Page) -> Vec<String> {
    let found = page.blocks().into_iter().flat_map(|block| {
        let text = visible(&block.text, |_| "` `".to_owned());
        let phrases = found_in(&text).into_iter();
        let lines =
            phrases.map(|(phrase, around)| format!("{}:{}: {around}: write {}", page.path, block.line, phrase.but));
        lines.collect::<Vec<_>>()
    });
    found.collect()
}

fn is_too_long(page: &Page, long_pages: &[(&str, &str)]) -> Option<String> {
    let max = match page.path.as_str() {
        "README.md" => MAX_README_LINES,
        path if long_pages.iter().any(|(long, _)| *long == path) => usize::MAX,
        _ => MAX_PAGE_LINES,
    };
    let count = page.text.lines().count();
    (count > max).then(|| format!("{}: {count} lines, {max} are allowed", page.path))
}

/// Code blocks that tests/readme.py does not see, because they do not begin in the first column.
fn indented_commands(page: &Page) -> Vec<String> {
    let lines = page.text.lines().enumerate();
    let indented = lines.filter(|(_, line)| {
        let trimmed = line.trim_start();
        trimmed.len() < line.len() && ["```console", "```sh", "```bash"].iter().any(|mark| trimmed.starts_with(mark))
    });
    indented.map(|(index, _)| format!("{}:{}: an indented block of commands", page.path, index + 1)).collect()
}

/// Targets of links that do not lead to a file, or not to a heading in it. `read` reads a file below the root.
fn broken_links(page: &Page, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut broken = Vec::new();
    for (number, line) in page.lines_outside_code() {
        let line = visible_links(line);
        for (at, _) in line.match_indices("](") {
            let target: String = line[at + 2..].chars().take_while(|c| *c != ')').collect();
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { page.path.clone() } else { resolve(&page.path, file) };
            let text = read(&path);
            let has_anchor = |text: &String| anchor.is_empty() || anchors(text).contains(anchor);
            if !text.as_ref().is_some_and(has_anchor) {
                broken.push(format!("{}:{number}: {target}", page.path));
            }
        }
    }
    broken
}

/// A line without its code spans, where brackets are no links.
fn visible_links(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("CODE")
}

/// The path below the root that a link in a page names.
fn resolve(page: &str, file: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of the headings of a page, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let page = Page::sample(text);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = page.blocks().into_iter().filter(|block| block.kind == Kind::Heading);
    headings
        .map(|heading| {
            let text = visible(&heading.text, str::to_owned).to_lowercase();
            let slug = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            let anchor: String = slug.map(|c| if c == ' ' { '-' } else { c }).collect();
            let count = seen.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        })
        .collect()
}

/// Files that a page names, in prose or in commands, and that do not exist.
fn missing_files(page: &Page, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let mut missing = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        for name in line.split(|c| !is_part(c)).map(|name| name.trim_end_matches(['.', '/', '-'])) {
            let is_ours = DIRECTORIES.iter().any(|directory| name.starts_with(directory));
            if is_ours && !exists(name) {
                missing.push(format!("{}:{}: {name}", page.path, index + 1));
            }
        }
    }
    missing
}

/// The directories of the modules, from the table with the columns module and directory.
fn modules(text: &str) -> BTreeMap<String, String> {
    let code = |cell: &str| cell.strip_prefix('`')?.strip_suffix('`').map(str::to_owned);
    let rows = text.lines().filter(|line| line.starts_with("| `")).map(cells);
    let named = rows.filter_map(|row| Some((code(row.first()?)?, code(row.get(1)?)?)));
    named.filter(|(_, directory)| ["src/", "crates/"].iter().any(|root| directory.starts_with(root))).collect()
}

/// Files and directories that the page about the code names, in prose or in diagrams: each as it is named, with its
/// line and its paths below the root.
fn named_sources(text: &str) -> Vec<(usize, String, Vec<String>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let modules = modules(text);
    let mut named = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for name in line.split(|c| !is_part(c)).map(|name| name.trim_end_matches(['.', '/', '-'])) {
            let in_module = name.split_once('/').and_then(|(module, rest)| Some((modules.get(module)?, rest)));
            let is_below_root = DIRECTORIES.iter().chain(&["crates/"]).any(|directory| name.starts_with(directory));
            let is_source = [".rs", ".sql"].iter().any(|extension| name.ends_with(extension));
            if in_module.is_some() || is_below_root || is_source {
                let in_module = in_module.map(|(directory, rest)| format!("{directory}/{rest}"));
                // `config/` is a module, and a directory below the root.
                let paths = in_module.into_iter().chain(is_below_root.then(|| name.to_owned())).collect();
                named.push((index + 1, name.to_owned(), paths));
            }
        }
    }
    named
}

/// Those of them that do not exist.
fn missing_sources(page: &Page, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let named = named_sources(&page.text).into_iter();
    let missing = named.filter(|(_, _, paths)| !paths.iter().any(|path| exists(path)));
    missing.map(|(line, name, _)| format!("{}:{line}: {name}", page.path)).collect()
}

/// Settings by their defaults, from a table with the columns key and default.
fn settings_of_table(text: &str) -> BTreeMap<String, String> {
    let code = |cell: &str| cell.strip_prefix('`')?.strip_suffix('`').map(str::to_owned);
    let rows = text.lines().filter(|line| line.starts_with("| `")).map(cells);
    rows.filter_map(|row| Some((code(row.first()?)?, code(row.get(1)?)?))).collect()
}

/// The same from a TOML file in which each default is behind the mark `#:`.
fn settings_of_file(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("#: ")?.split_once(" = "));
    lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Reads a file below the root; of a directory nothing, though it exists.
fn read(path: &str) -> Option<String> {
    let path = root().join(path);
    if path.is_dir() { Some(String::new()) } else { fs::read_to_string(path).ok() }
}

/// The READMEs, all pages in docs, and the one about the code.
fn pages() -> Vec<Page> {
    const OUTSIDE_DOCS: [&str; 10] = [
        "CONTRIBUTING.md",
        "README.md",
        "SECURITY.md",
        "benches/README.md",
        "crates/client/README.md",
        "crates/rca/README.md",
        "crates/xet-format/README.md",
        "fuzz/README.md",
        "tests/README.md",
        ARCHITECTURE,
    ];
    let in_docs = files("docs", &["md"]).into_iter().map(|file| Page { path: file.path, text: file.text });
    let pages: Vec<Page> = OUTSIDE_DOCS.into_iter().map(page).chain(in_docs).collect();
    assert!(pages.len() > 15, "only {} pages were found", pages.len());
    pages
}

fn page(path: &str) -> Page {
    Page { path: path.to_owned(), text: read(path).unwrap_or_else(|| panic!("{path} cannot be read")) }
}

/// What is wrong with the pages that have a form.
fn wrong(check: impl Fn(&Page) -> Vec<String>) -> Vec<String> {
    pages().iter().filter(|page| page.has_form()).flat_map(check).collect()
}

fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn readme_says_how_to_build_and_install_and_what_it_takes() {
    let readme = page("README.md").text;
    for needed in ["cargo run --release -- serve", "cargo install --path .", "minutes on 2 cores", "GiB of memory"] {
        assert!(readme.contains(needed), "{needed:?} is not in the README");
    }
}

#[test]
fn no_page_is_longer_than_250_lines_and_the_readme_than_120() {
    assert_none("split these pages", &wrong(|page| is_too_long(page, LONG_PAGES).into_iter().collect()));
    for (long, _) in LONG_PAGES {
        let text = read(long).unwrap_or_else(|| panic!("{long} is not there; remove it from LONG_PAGES"));
        assert!(text.lines().count() > MAX_PAGE_LINES, "{long} has shrunk; remove it from LONG_PAGES");
    }
}

#[test]
fn a_long_page_is_found_unless_it_is_listed() {
    let page = |path: &str, count| Page { path: path.to_owned(), text: "line\n".repeat(count) };
    assert_eq!(is_too_long(&page("docs/a.md", 250), &[]), None);
    assert!(is_too_long(&page("docs/a.md", 251), &[]).is_some());
    assert_eq!(is_too_long(&page("docs/a.md", 251), &[("docs/a.md", "a table")]), None);
    assert_eq!(is_too_long(&page("README.md", 120), &[]), None);
    assert!(is_too_long(&page("README.md", 121), &[("docs/a.md", "a table")]).is_some());
}

#[test]
fn no_cell_of_a_table_is_wider_than_160_characters() {
    assert_none("shorten these, or say it in prose", &wrong(wide_cells));
}

#[test]
fn a_wide_cell_is_found_by_what_a_reader_sees_of_it() {
    let cell = |text: &str| Page::sample(&format!("| a | b |\n| --- | --- |\n| {text} | short |\n"));
    assert_eq!(wide_cells(&cell(&"x".repeat(160))), [""; 0]);
    assert_eq!(wide_cells(&cell(&"x".repeat(161))), ["docs/sample.md:3: a cell of 161 characters"]);
    let (target, code) = ("t".repeat(200), "c".repeat(161));
    assert_eq!(wide_cells(&cell(&format!("[text]({target})"))), [""; 0], "a target is not seen");
    assert_eq!(wide_cells(&cell(&format!("`{code}`"))).len(), 1, "code is");
    assert_eq!(wide_cells(&cell(&format!("{}\\|{}", "x".repeat(100), "x".repeat(100)))).len(), 1, "one cell");
    let fenced = format!("```\n| {} |\n```\n", "x".repeat(200));
    assert_eq!(wide_cells(&Page::sample(&fenced)), [""; 0], "a code block is no table");
}

#[test]
fn no_sentence_is_longer_than_35_words() {
    assert_none("make two of each of these", &wrong(long_sentences));
}

#[test]
fn sentences_end_where_a_reader_stops() {
    let counts = |text: &str| sentences(text).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(counts("One two. Three four five."), [2, 3]);
    assert_eq!(counts("Is it? Yes! `code` runs."), [2, 1, 2]);
    assert_eq!(counts("Files, e.g. those of 1.5 MiB vs. The rest."), [9], "abbreviations and numbers");
    assert_eq!(counts("Run `zorb gc. Now. And then` twice."), [3], "a code span is one word");
    assert_eq!(counts("See [one. Two](https://a.example/b. C) there."), [2, 2], "the text of a link is read");
    assert_eq!(counts("**Bold.** Then (in brackets.) More."), [1, 3, 1]);
    assert_eq!(counts("a – b → c"), [3], "signs are no words");
    assert_eq!(counts("It ends. zorb's log says so, etc. in full."), [2, 7], "names begin sentences");
    assert_eq!(counts("It listens on 127.0.0.1:8080. 30 s later it stops."), [4, 5]);
}

#[test]
fn a_long_sentence_is_found_wherever_it_stands() {
    let long = vec!["word"; 36].join(" ");
    for (text, line) in [
        (format!("# Title\n\n{long}.\n"), 3),
        (format!("# {long}\n"), 1),
        (format!("* item\n* {long}\n"), 2),
        (format!("1. item\n2. {}\n   {}\n", &long[..89], &long[90..]), 2),
        (format!("| a |\n|---|\n| {long} |\n"), 3),
        (format!("> {long}\n"), 1),
    ] {
        assert_eq!(long_sentences(&Page::sample(&text)).len(), 1, "{text}");
        let place = format!("docs/sample.md:{line}: 36 words");
        assert!(long_sentences(&Page::sample(&text))[0].starts_with(&place), "{text}");
    }
    let half = vec!["word"; 20].join(" ");
    for text in [
        format!("{half}.\nWord {half}.\n"),
        format!("{half}\n\n{half}\n"),
        format!("{half}\n* {half}\n* {half}\n"),
        format!("| {half} | {half} |\n"),
        format!("```sh\n{long}\n```\n"),
        format!("{half}:\n\n~~~\n```\n{long}\n~~~\n{half}\n"),
        format!("`{long}`\n"),
    ] {
        assert_eq!(long_sentences(&Page::sample(&text)), [""; 0], "{text}");
    }
}

#[test]
fn documents_have_no_words_of_the_table() {
    assert_none("use the words of the field", &wrong(table_words));
}

#[test]
fn a_word_of_the_table_is_found_outside_code() {
    let page = Page::sample("A [folder](a.md) of `answers`\nand signs\nof life.\n\n```\nfolder\n```\n| void | x |\n");
    let found = table_words(&page);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].starts_with("docs/sample.md:1: ") && found[2].starts_with("docs/sample.md:8: "), "{found:?}");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_in_it() {
    let broken: Vec<String> = pages().iter().flat_map(|page| broken_links(page, read)).collect();
    assert_none("broken links", &broken);
}

#[test]
fn a_link_to_nothing_is_found() {
    let files = |path: &str| match path {
        "docs/other.md" | "docs/sample.md" => Some("# A `title`, twice\n\n# A title twice\n".to_owned()),
        "src/lib.rs" => Some(String::new()),
        _ => None,
    };
    let page = Page::sample(
        "[a](other.md) [b](other.md#a-title-twice-1) [c](#a-title-twice) [d](../src/lib.rs) [e](https://a.example/x)\n\
         [f](missing.md) [g](other.md#missing) [h](#missing) [i](../lib.rs)\n\
         `[j](missing.md)`\n```\n[k](missing.md)\n```\n",
    );
    let found =
        ["missing.md", "other.md#missing", "#missing", "../lib.rs"].map(|target| format!("docs/sample.md:2: {target}"));
    assert_eq!(broken_links(&page, files), found);
}

#[test]
fn every_file_that_is_named_exists() {
    let exists = |name: &str| root().join(name).exists();
    // The specification names files of other repositories, and the page about the code has a test of its own.
    let is_checked = |page: &Page| !page.path.starts_with("docs/spec/") && page.path != ARCHITECTURE;
    let pages = pages().into_iter().filter(is_checked);
    let missing: Vec<String> = pages.flat_map(|page| missing_files(&page, exists)).collect();
    assert_none("there are no such files", &missing);
}

#[test]
fn a_named_file_that_does_not_exist_is_found() {
    let text = "See `src/lib.rs::f` and tests/it/*.rs.\nRun `packaging/missing.sh`, or https://a.example/docs/x.\n";
    let page = Page::sample(text);
    let exists = |name: &str| ["src/lib.rs", "tests/it"].contains(&name);
    assert_eq!(missing_files(&page, exists), ["docs/sample.md:2: packaging/missing.sh"]);
}

#[test]
fn every_source_that_the_page_about_the_code_names_exists() {
    let page = page(ARCHITECTURE);
    let named = named_sources(&page.text);
    assert!(named.len() > 80, "only {} names were found", named.len());
    assert_none("there are no such files", &missing_sources(&page, |path| root().join(path).exists()));
}

#[test]
fn the_map_of_the_page_about_the_code_has_every_module() {
    let modules = modules(&read(ARCHITECTURE).expect("the page is there"));
    let missing: Vec<_> = modules.values().filter(|directory| !root().join(directory).is_dir()).cloned().collect();
    assert_none("there are no such directories", &missing);
    let entries = fs::read_dir(root().join("src")).unwrap().map(|entry| entry.unwrap().path());
    let directories: BTreeSet<String> = entries
        .filter(|path| path.is_dir())
        .map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned())
        .collect();
    let mapped: BTreeSet<String> = modules.into_values().filter(|path| path.starts_with("src/")).collect();
    assert_eq!(mapped, directories, "{ARCHITECTURE} maps the modules on the left, src has those on the right");
}

#[test]
fn a_source_under_a_wrong_name_is_found() {
    let text = "| module | directory |\n| --- | --- |\n| `http` | `src/http` |\n| `format` | `crates/f/src` |\n\
        | `config` | `src/config` |\n| `x` | `y` |\n\
        See `http/xorbs.rs`, format/limits.rs and `config/raw.rs`; not http://a.example, GET /http/x, xorbs/.\n\
        `config/nginx.conf`, `tests/it/main.rs`, `src/lib.rs`, `http/conn_state/`.\n\
        `http/xorb.rs`, `xorbs.rs`, `http/gone/`, `config/none.toml`, `x/y.rs`, `crates/g`\n\
        ```mermaid\n  participant A as format/limit.rs\n  A->>B: read (http/body.rs)\n```\n";
    let page = Page::sample(text);
    let exists = |path: &str| {
        let files = ["src/http/xorbs.rs", "crates/f/src/limits.rs", "src/config/raw.rs", "config/nginx.conf"];
        let others =
            ["tests/it/main.rs", "src/lib.rs", "src/http/conn_state", "src/http", "crates/f/src", "src/config"];
        files.contains(&path) || others.contains(&path)
    };
    let found: Vec<_> =
        missing_sources(&page, exists).iter().map(|found| found.replace("docs/sample.md:", "")).collect();
    let expected =
        ["9: http/xorb.rs", "9: xorbs.rs", "9: http/gone", "9: config/none.toml", "9: x/y.rs", "9: crates/g"];
    assert_eq!(found, [&expected[..], &["11: format/limit.rs", "12: http/body.rs"]].concat());
}

#[test]
fn commands_stand_where_the_test_of_the_pages_finds_them() {
    assert_none("begin these in the first column", &wrong(indented_commands));
}

#[test]
fn an_indented_block_of_commands_is_found() {
    let page = Page::sample("1. one\n\n   ```console\n   $ true\n   ```\n\n```sh\ntrue\n```\n   ```toml\n   ```\n");
    assert_eq!(indented_commands(&page), ["docs/sample.md:3: an indented block of commands"]);
}

#[test]
fn the_index_of_the_documents_names_every_page() {
    let index = read("docs/README.md").expect("docs/README.md is there");
    let is_listed = |path: &str| index.contains(&format!("]({path})")) || index.contains(&format!("]({path}#"));
    let pages = pages();
    let names = pages.iter().filter(|page| page.has_form()).filter_map(|page| page.path.strip_prefix("docs/"));
    let missing: Vec<_> = names.filter(|name| *name != "README.md" && !is_listed(name)).collect();
    assert!(missing.is_empty(), "docs/README.md does not name {missing:?}");
}

#[test]
fn the_table_of_settings_is_that_of_the_file() {
    let table = settings_of_table(&read("docs/configuration.md").expect("the page is there"));
    let file = settings_of_file(&read("config/default.toml").expect("the file is there"));
    assert!(file.len() > 30, "{file:?}");
    assert_eq!(table, file);
}

#[test]
fn settings_are_read_from_a_table_and_from_a_file() {
    let expected = BTreeMap::from([("a".to_owned(), "\"1s\"".to_owned())]);
    assert_eq!(settings_of_table("| key | default |\n| `a` | `\"1s\"` | text |\n| `b` | text |\n"), expected);
    assert_eq!(settings_of_file("# Text.\n#: a = \"1s\"\n# b = 2\n"), expected);
}
