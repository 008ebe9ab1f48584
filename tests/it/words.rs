//! The words that this project does not use, and the test that holds code and settings to them.
//!
//! The table is short on purpose: a word is in it because this repository used it for something
//! that HTTP, POSIX, SQL or storage systems have a name for.

use crate::support::{Text, TextFile, files, functions, texts};

/// A phrase that is not used, and what to write instead.
pub(crate) struct Phrase {
    /// Words with single spaces between them, in lower case. `*` at the end stands for any ending.
    pub(crate) not: &'static str,
    /// What to write instead.
    pub(crate) but: &'static str,
}

const fn phrase(not: &'static str, but: &'static str) -> Phrase {
    Phrase { not, but }
}

/// The table.
pub(crate) const PHRASES: &[Phrase] = &[
    phrase("answer*", "response; responds with 404"),
    phrase("processor*", "CPU"),
    phrase("folder*", "directory"),
    phrase("fold the log", "checkpoint the WAL"),
    phrase("folded", "checkpointed"),
    phrase("change of threads", "context switch"),
    phrase("changes of threads", "context switches"),
    phrase("look again", "check, poll, re-check, reload"),
    phrase("looks again", "checks, polls, re-checks, reloads"),
    phrase("looking again", "checking, polling, re-checking, reloading"),
    phrase("two looks", "two checks"),
    phrase("its turn", "a permit"),
    phrase("their turn", "a permit"),
    phrase("a turn", "a permit"),
    phrase("no turn", "no permit"),
    phrase("turns of", "permits of"),
    phrase("by turns", "round-robin"),
    phrase("in turn", "sequentially; interleaved (A/B/A/B)"),
    phrase("room", "disk headroom; response budget; pacing credit; shard budget"),
    phrase("in line", "queued"),
    phrase("crowd*", "burst; tenant over its share"),
    phrase("walls", "dedup scope, owner"),
    phrase("doubt*", "GC abort reason"),
    phrase("noted", "recorded; appended"),
    phrase("withdraw*", "roll back"),
    phrase("withdrew", "rolled back"),
    phrase("loose", "unpacked (LZ4 undone)"),
    phrase("loosen*", "unpack"),
    phrase("tighten*", "repack"),
    phrase("patient*", "repair target"),
    phrase("examine*", "verify (a stored xorb)"),
    phrase("linger*", "drain"),
    phrase("lent", "borrowed"),
    phrase("scrap", "discard buffer"),
    phrase("outlet*", "connection"),
    phrase("arrival*", "receive gate"),
    phrase("bell*", "notify"),
    phrase("giant*", "large"),
    phrase("astray", "plaintext on the TLS port"),
    phrase("sign of life", "health probe"),
    phrase("signs of life", "health probes"),
    phrase("mend*", "fix (a request), repair (a store)"),
    phrase("whoever", "the client, the tenant, the uploader, the caller"),
    phrase("somebody*", "the client, the tenant, the uploader, the caller"),
    phrase("nobody*", "no client, no process"),
    phrase("go away", "be removed"),
    phrase("goes away", "is removed"),
    phrase("be gone", "no longer exist"),
    phrase("is gone", "no longer exists"),
    phrase("are gone", "no longer exist"),
    phrase("was gone", "no longer existed"),
    phrase("has gone", "was removed"),
    phrase("come again", "be uploaded again"),
    phrase("comes again", "is uploaded again"),
    phrase("of no use", "invalid"),
    phrase("weakened", "test_hooks"),
    phrase("spoil*", "corrupt_row"),
    phrase("steal*", "force_restage"),
    phrase("stolen", "restaged"),
    phrase("unkept", "unreferenced / unleased"),
    phrase("unfit", "unusable"),
    phrase("void", "mismatch; invalid"),
    phrase("one after the other", "sequentially"),
    phrase("what limits it", "bottleneck"),
];

/// Legitimate uses: a file, as the end of its path, and the words around the phrase. Archives of
/// older versions have the state `void`.
const ALLOWED: &[(&str, &str)] = &[("service/archive/record.rs", "void")];

/// Columns of a line that is a comment, at most.
const COMMENT_WIDTH: usize = 100;

/// Characters of the name of a function, at most. Test names are the longest; what does not fit is
/// a doc comment.
const NAME_LEN: usize = 60;

/// The phrases of the table that a text has, with the words around them. Names of code, between
/// backticks on one line, are left out.
pub(crate) fn found_in(text: &str) -> Vec<(&'static Phrase, String)> {
    let text = without_code(text);
    let words: Vec<&str> = text.split_whitespace().flat_map(|word| word.split(is_separator)).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let lower: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let mut found = Vec::new();
    for at in 0..lower.len() {
        for phrase in PHRASES.iter().filter(|phrase| begins(&lower[at..], phrase.not)) {
            let around = &words[at.saturating_sub(3)..(at + 4).min(words.len())];
            found.push((phrase, around.join(" ")));
        }
    }
    found
}

fn without_code(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let mut parts: Vec<&str> = line.split('`').collect();
        // Without its partner a backtick is text.
        let is_whole = parts.len() % 2 == 1;
        let mut index = 0;
        parts.retain(|_| {
            index += 1;
            !is_whole || index % 2 == 1
        });
        parts.join("` `")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a character separates words. Names of code with `_` or `::` in them are one word and
/// match nothing.
fn is_separator(c: char) -> bool {
    !(c.is_alphanumeric() || matches!(c, '_' | ':' | '{' | '}'))
}

fn begins(words: &[String], phrase: &str) -> bool {
    let mut words = words.iter().map(|word| word.trim_matches(':'));
    phrase.split(' ').all(|wanted| {
        let Some(word) = words.next() else { return false };
        match wanted.strip_suffix('*') {
            Some(stem) => word.starts_with(stem) && !word.contains(['_', ':', '{']),
            None => word == wanted,
        }
    })
}

/// What people read of a source; what comes after `#[cfg(test)] mod … {` is left out.
fn pieces(source: &str) -> Vec<Text> {
    let lines: Vec<&str> = source.lines().collect();
    let begins_tests =
        |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{');
    let count = lines.windows(2).position(begins_tests).unwrap_or(lines.len());
    texts(source).into_iter().take_while(|text| text.line <= count).collect()
}

/// What is wrong with a source file: `FILE:LINE: …` each.
fn faults(path: &str, source: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for piece in &pieces(source) {
        faults.extend(named(path, piece.line, &piece.text));
    }
    for line in wide_comments(source) {
        faults.push(format!("{path}:{line}: a comment of more than {COMMENT_WIDTH} columns"));
    }
    faults
}

/// The numbers of lines that are comments and too wide. Code and drawings between fences cannot be
/// wrapped.
fn wide_comments(source: &str) -> Vec<usize> {
    let mut is_fenced = false;
    let mut wide = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let text = line.trim_start();
        if !text.starts_with("//") {
            is_fenced = false;
        } else if text.trim_start_matches(['/', '!', ' ']).starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced && line.chars().count() > COMMENT_WIDTH {
            wide.push(index + 1);
        }
    }
    wide
}

/// The names of functions that are too long, each with its line. Cases of a suite carry no
/// `#[test]`, so every function counts.
fn long_names(source: &str) -> Vec<(usize, String)> {
    functions(source).into_iter().filter(|(_, name)| name.len() > NAME_LEN).collect()
}

/// The phrases of a text that begins on this line.
fn named(path: &str, line: usize, text: &str) -> Vec<String> {
    let is_allowed = |around: &str| ALLOWED.iter().any(|(file, words)| path.ends_with(file) && around.contains(words));
    let found = found_in(text).into_iter().filter(|(_, around)| !is_allowed(around));
    found.map(|(phrase, around)| format!("{path}:{line}: “{around}”: write “{}”", phrase.but)).collect()
}

fn is_test(path: &str) -> bool {
    path.contains("/tests") || path.contains("conformance")
}

/// The sources of the server and of the crates.
fn sources() -> Vec<TextFile> {
    let mut sources = files("src", &["rs"]);
    sources.extend(files("crates", &["rs"]).into_iter().filter(|file| file.path.contains("/src/")));
    sources
}

#[test]
fn strings_and_comments_have_no_words_of_the_table() {
    let sources: Vec<_> = sources().into_iter().filter(|file| !is_test(&file.path)).collect();
    assert!(sources.len() > 100, "only {} sources were found", sources.len());
    let faults: Vec<String> = sources.iter().flat_map(|file| faults(&file.path, &file.text)).collect();
    assert!(faults.is_empty(), "{} faults:\n  {}", faults.len(), faults.join("\n  "));
}

#[test]
fn names_of_functions_have_at_most_60_characters() {
    let directories = ["src", "crates", "tests", "benches", "examples", "fuzz/fuzz_targets"];
    let sources: Vec<_> = directories.iter().flat_map(|directory| files(directory, &["rs"])).collect();
    assert!(sources.len() > 300, "only {} sources were found", sources.len());
    let long = |file: &TextFile| -> Vec<String> {
        long_names(&file.text).into_iter().map(|(line, name)| format!("{}:{line}: {name}", file.path)).collect()
    };
    let faults: Vec<String> = sources.iter().flat_map(long).collect();
    assert!(faults.is_empty(), "{} names are too long:\n  {}", faults.len(), faults.join("\n  "));
}

#[test]
fn settings_and_dashboards_have_no_words_of_the_table() {
    let mut texts = files("config", &["toml", "conf"]);
    texts.extend(files("packaging", &["toml", "service"]));
    texts.extend(files("docs", &["json", "yml"]));
    assert!(texts.len() >= 6, "only {} files were found", texts.len());
    let lines = |file: &TextFile| -> Vec<String> {
        file.text.lines().enumerate().flat_map(|(index, line)| named(&file.path, index + 1, line)).collect()
    };
    let faults: Vec<String> = texts.iter().flat_map(lines).collect();
    assert!(faults.is_empty(), "{} faults:\n  {}", faults.len(), faults.join("\n  "));
}

#[test]
fn every_entry_of_the_lists_is_needed() {
    let sources = sources();
    for (file, words) in ALLOWED {
        let is_used = sources.iter().filter(|source| source.path.ends_with(file)).any(|source| {
            pieces(&source.text)
                .iter()
                .any(|piece| found_in(&piece.text).iter().any(|(_, around)| around.contains(words)))
        });
        assert!(is_used, "{file} does not say “{words}” any more: take the entry from the list");
    }
}

#[test]
fn the_check_finds_bad_samples() {
    let found = |source: &str| faults("src/sample.rs", source).len();
    for bad in [
        "fn f() { log(\"the server answers 404\") }",
        "fn f() { log(\"The FOLDER is full\") }",
        "fn f() { log(\"out of doubt\") }",
        "fn f() { log(\"signs \\\n    of life\") }",
        "fn f() { log(r#\"of no use\"#) }",
        "fn f() { log(b\"nobody\") }",
        "/// Whoever has it.\nfn f() {}",
        "// One after\n// the other.\nfn f() {}",
        "fn f() {} // is gone",
        "fn f() { g('\"', \"mend it\") }",
        "fn f<'a>(x: &'a str) { g(\"void\") }",
    ] {
        assert_eq!(found(bad), 1, "{bad}");
    }
    assert_eq!(found(&format!("// {}\n", "x".repeat(98))), 1);
    assert_eq!(found("/// Nobody and a folder.\n"), 2);
    let named = |len: usize, before: &str| format!("#[test]\n{before}fn {}() {{}}\n", "x".repeat(len));
    for before in ["", "    async ", "pub(crate) "] {
        assert_eq!(long_names(&named(61, before)).len(), 1, "{before}");
        assert!(long_names(&named(60, before)).is_empty(), "{before}");
    }
    assert!(long_names(&named(61, "// a ")).is_empty());
}

#[test]
fn the_check_lets_code_and_good_samples_pass() {
    let found = |source: &str| faults("src/sample.rs", source);
    for good in [
        "fn answer(folder: &Folder) -> Room { nobody::void(folder) }",
        "fn f() { log(\"the server responds with 404\") }",
        "fn f() { log(\"{answer} {folder}\") }",
        "/// See [`crate::http::answers`] and `max_room`.\nfn f() {}",
        "fn f() { log(\"bathroom, avoidance, tomorrow\") }",
        "#[cfg(test)]\nmod tests {\n    // nobody\n    const A: &str = \"folder\";\n}",
        "fn f() { g('\"'); /* x */ g('\\''); }",
    ] {
        assert_eq!(found(good), [""; 0], "{good}");
    }
    assert!(found(&format!("// {}\n", "x".repeat(97))).is_empty());
}
