//! The rules of a `.gitignore`: which files git would not add.

use std::collections::HashMap;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use thiserror::Error;

use crate::RepoPath;

/// The rules of a `.gitignore` in the root directory of a repository.
#[derive(Clone, Debug)]
pub struct IgnoreRules {
    rules: Gitignore,
    /// Length of their text in bytes.
    len: usize,
}

/// The rules cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IgnoreError {
    /// The text is too long.
    #[error("the .gitignore has {len} bytes, and at most {MAX_IGNORE_LEN} are read")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The patterns are too complex.
    #[error("the patterns of the .gitignore are too complex")]
    TooComplex,
}

/// Maximum length of a `.gitignore` in bytes. The longest of the templates for Python and Node have
/// 5 KiB.
pub const MAX_IGNORE_LEN: usize = 32 << 10;

/// Maximum number of lines with wildcards: each is compiled on its own, to some ten KiB.
const MAX_WILDCARD_COUNT: usize = 500;

/// Maximum of the bytes of the rules times those of the paths that are matched with them: about a
/// second. Rules of 5 KiB and 1000 paths of 60 bytes are a third of it.
const MAX_WORK: usize = 1 << 30;

impl IgnoreRules {
    /// Parses the text of a `.gitignore`. A line that is no valid pattern matches nothing, as for
    /// git.
    ///
    /// # Errors
    ///
    /// See [`IgnoreError`].
    pub fn parse(text: &str) -> Result<Self, IgnoreError> {
        if text.len() > MAX_IGNORE_LEN {
            return Err(IgnoreError::TooLong { len: text.len() });
        }
        let text = text.trim_start_matches('\u{feff}');
        let has_wildcard = |line: &&str| line.contains(['*', '?', '[']);
        if text.lines().filter(has_wildcard).count() > MAX_WILDCARD_COUNT {
            return Err(IgnoreError::TooComplex);
        }
        let mut rules = GitignoreBuilder::new("");
        for line in text.split('\n') {
            // An error says that the line is no pattern.
            let _ = rules.add_line(None, &without_alternatives(line.strip_suffix('\r').unwrap_or(line)));
        }
        let rules = rules.build().map_err(|_| IgnoreError::TooComplex)?;
        Ok(Self { rules, len: text.len() })
    }

    /// Of each of these paths whether git would not add a file there: a pattern matches the path,
    /// or a directory above it, and no later pattern takes it back.
    ///
    /// # Errors
    ///
    /// [`IgnoreError::TooComplex`] if it would take too long.
    pub fn ignores_each<'a>(&self, paths: impl IntoIterator<Item = &'a RepoPath>) -> Result<Vec<bool>, IgnoreError> {
        let mut directories: HashMap<String, bool> = HashMap::new();
        let mut left = MAX_WORK;
        let mut matched = |path: &str, is_directory: bool| {
            left = left.checked_sub(self.len.saturating_mul(path.len())).ok_or(IgnoreError::TooComplex)?;
            Ok(self.rules.matched(path, is_directory).is_ignore())
        };
        let mut ignores = |path: &RepoPath| {
            let (names, _) = path.split();
            let mut directory = String::new();
            for name in names {
                directory.push_str(name);
                let is_ignored = match directories.get(&directory) {
                    Some(known) => *known,
                    None => matched(&directory, true)?,
                };
                directories.insert(directory.clone(), is_ignored);
                // What is in an ignored directory cannot be taken back.
                if is_ignored {
                    return Ok(true);
                }
                directory.push('/');
            }
            matched(path.as_str(), false)
        };
        paths.into_iter().map(&mut ignores).collect()
    }
}

/// The pattern with braces as themselves: git knows no alternatives.
fn without_alternatives(line: &str) -> String {
    let (mut escaped, mut is_in_class, mut characters) = (String::with_capacity(line.len()), false, line.chars());
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                escaped.push(character);
                escaped.extend(characters.next());
                continue;
            }
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            '{' | '}' if !is_in_class => escaped.push('\\'),
            _ => {}
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// What git says of these paths with this `.gitignore`.
    #[expect(clippy::disallowed_methods, reason = "a file that no crash concerns")]
    fn git(text: &str, paths: &[&str]) -> Vec<bool> {
        let directory = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| {
            Command::new("git")
                .args(arguments)
                .current_dir(directory.path())
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .output()
                .unwrap()
        };
        assert!(run(&["init", "--quiet"]).status.success());
        fs::write(directory.path().join(".gitignore"), text).unwrap();
        paths.iter().map(|path| run(&["check-ignore", "--quiet", "--no-index", path]).status.success()).collect()
    }

    #[test]
    fn rules_are_those_of_git() {
        let paths = [
            "a.txt",
            "b.log",
            "keep.log",
            "build",
            "build/x.bin",
            "src/build/x",
            "docs/a.log",
            "docs/keep.log",
            "a/b/c/d.tmp",
            "deep/x/y/z",
            "#file",
            "!file",
            "with space ",
            "dir/file",
            "dir/sub/file",
            "UP.LOG",
            "star*name",
            "q1.c",
            "q12.c",
            "[x]",
            ".env",
            "sub/.env",
            "\u{fc}.txt",
        ];
        for text in [
            "",
            "# nothing\n\n",
            "*.log\n!keep.log\n",
            "build/\n",
            "/build\n",
            "build\n!build/x.bin\n",
            "docs/*.log\n",
            "**/*.tmp\ndeep/**\n",
            "a/**/d.tmp",
            "\\#file\n\\!file\n",
            "dir/*\n!dir/sub/\n",
            "dir/*\n!dir/sub\n!dir/sub/file",
            "q?.c\n[[]x]\n",
            ".env\r\n",
            "*\n!*.txt\n",
            "*.log   \n",
            "\u{fc}*\n",
            "[\n*.txt",
            "{{slug}}/.env\n",
            "data.{csv,json}\nfoo}\n",
            "x[{]1}.c\n\\{\\{slug\\}\\}\n",
            "*.log\n*.txt\r",
        ] {
            let rules = IgnoreRules::parse(text).unwrap();
            let ignores =
                |path: &&str| path.parse().is_ok_and(|path: RepoPath| rules.ignores_each([&path]).unwrap()[0]);
            let found: Vec<bool> = paths.iter().map(ignores).collect();
            let expected = git(text, &paths);
            for ((path, found), expected) in paths.iter().zip(found).zip(expected) {
                // Some of them are no paths of a repository.
                if path.parse::<RepoPath>().is_ok() {
                    assert_eq!(found, expected, "{path} with {text:?}");
                }
            }
        }
    }

    #[test]
    fn long_and_hostile_rules_end_in_an_error_or_soon() {
        let long = "a".repeat(MAX_IGNORE_LEN + 1);
        assert_eq!(IgnoreRules::parse(&long).unwrap_err(), IgnoreError::TooLong { len: long.len() });
        let paths: Vec<RepoPath> =
            (0..1000).map(|n| format!("{}{n}.c", "aaaaaaaaaaaa/".repeat(60)).parse().unwrap()).collect();
        let many: String = (0..600).map(|n| format!("a*{n}.c\n")).collect();
        assert_eq!(IgnoreRules::parse(&many).unwrap_err(), IgnoreError::TooComplex);
        let names: String = (0..2500).map(|n| format!("name{n}\n")).collect();
        let plain = IgnoreRules::parse(&names).unwrap();
        assert_eq!(plain.ignores_each(&paths[..1]), Ok(vec![false]));
        assert_eq!(plain.ignores_each(&paths), Err(IgnoreError::TooComplex));
        for hostile in [
            "*a".repeat(10_000),
            "**/".repeat(8000),
            "[a-z]*\n".repeat(400),
            "{a,b}".repeat(5000),
            "**/a*/**/b*/".repeat(2000),
        ] {
            if let Ok(rules) = IgnoreRules::parse(&hostile) {
                let _ = rules.ignores_each(&paths[..20]);
            }
        }
        for len in 0..40 {
            let _ = IgnoreRules::parse(&"!**/[a-\\]*\n\u{fc}{".repeat(3)[..].chars().take(len).collect::<String>());
        }
    }
}
