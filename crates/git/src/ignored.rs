//! The rules of a `.gitignore`: which files git would not add.

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use thiserror::Error;

use crate::RepoPath;

/// The rules of a `.gitignore` in the root directory of a repository.
#[derive(Clone, Debug)]
pub struct IgnoreRules(Gitignore);

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
        let mut rules = GitignoreBuilder::new("");
        for line in text.trim_start_matches('\u{feff}').lines() {
            // An error says that the line is no pattern.
            let _ = rules.add_line(None, line);
        }
        rules.build().map(Self).map_err(|_| IgnoreError::TooComplex)
    }

    /// Whether git would not add the file at this path: a pattern matches the path, or a directory
    /// above it, and no later pattern takes it back.
    #[must_use]
    pub fn ignores(&self, path: &RepoPath) -> bool {
        let (directories, _) = path.split();
        let mut directory = String::new();
        // What is in an ignored directory cannot be taken back.
        for name in directories {
            directory.push_str(name);
            if let Match::Ignore(_) = self.0.matched(&directory, true) {
                return true;
            }
            directory.push('/');
        }
        self.0.matched(path.as_str(), false).is_ignore()
    }
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
        ] {
            let rules = IgnoreRules::parse(text).unwrap();
            let found: Vec<bool> =
                paths.iter().map(|path| path.parse().is_ok_and(|path| rules.ignores(&path))).collect();
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
        let path: RepoPath = format!("{}b", "a/".repeat(60)).parse().unwrap();
        for hostile in ["*a".repeat(10_000), "**/".repeat(8000), "[a-z]*\n".repeat(4000), "{a,b}".repeat(5000)] {
            if let Ok(rules) = IgnoreRules::parse(&hostile) {
                let _ = rules.ignores(&path);
            }
        }
        for len in 0..40 {
            let _ = IgnoreRules::parse(&"!**/[a-\\]*\n\u{fc}{".repeat(3)[..].chars().take(len).collect::<String>());
        }
    }
}
