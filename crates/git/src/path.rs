//! Paths of files in a repository.

use std::fmt;
use std::str::FromStr;

use gix_validate::path::component;
use gix_validate::path::component::Options;
use thiserror::Error;

/// Maximum length of a path in bytes. Linux allows 4096 with the directory of the clone before it.
const MAX_PATH_LEN: usize = 1024;

/// Maximum length of a name in a path, as in common file systems.
const MAX_NAME_LEN: usize = 255;

/// Maximum number of names in a path: directories are edited and listed level by level.
const MAX_NAME_COUNT: usize = 64;

/// The path of a file or directory in a repository: names divided by `/`, none of which a checkout
/// could take for something else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoPath(String);

/// Why a text is not a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    /// The path is empty or too long.
    #[error("a path has 1 to {MAX_PATH_LEN} bytes")]
    Len,
    /// A name is empty or too long.
    #[error("each name in a path has 1 to {MAX_NAME_LEN} bytes")]
    NameLen,
    /// The path has too many names.
    #[error("a path has at most {MAX_NAME_COUNT} names")]
    Depth,
    /// A name is `.`, `..` or `.git`, or some file system takes it for `.git`.
    #[error("no name in a path is `.`, `..` or `.git`, or a name that some file system takes for `.git`")]
    Reserved,
    /// The path has a backslash or a control character.
    #[error("a path has no backslashes and no control characters")]
    Character,
}

impl RepoPath {
    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names of the directories, and the last name.
    #[must_use]
    pub fn split(&self) -> (Vec<&str>, &str) {
        let mut names: Vec<&str> = self.0.split('/').collect();
        let last = names.pop().unwrap_or_default();
        (names, last)
    }
}

impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RepoPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        if text.is_empty() || text.len() > MAX_PATH_LEN {
            return Err(PathError::Len);
        }
        if text.chars().any(|character| character == '\\' || character.is_control()) {
            return Err(PathError::Character);
        }
        if text.split('/').count() > MAX_NAME_COUNT {
            return Err(PathError::Depth);
        }
        for name in text.split('/') {
            if name.is_empty() || name.len() > MAX_NAME_LEN {
                return Err(PathError::NameLen);
            }
            // Names that are bad only on Windows, such as `a:b`, are allowed.
            let checks = Options { protect_windows: false, protect_hfs: true, protect_ntfs: true };
            component(name.into(), None, checks).map_err(|_| PathError::Reserved)?;
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_checkout_could_misread_are_refused() {
        let long = "n".repeat(MAX_NAME_LEN + 1);
        for (text, error) in [
            ("", PathError::Len),
            ("/a", PathError::NameLen),
            ("a/", PathError::NameLen),
            ("a//b", PathError::NameLen),
            (long.as_str(), PathError::NameLen),
            (".", PathError::Reserved),
            ("a/../b", PathError::Reserved),
            (".git/config", PathError::Reserved),
            ("a/.GIT", PathError::Reserved),
            ("a/.git./b", PathError::Reserved),
            (".git /b", PathError::Reserved),
            ("git~1/b", PathError::Reserved),
            (".g\u{200c}it/b", PathError::Reserved),
            (".git::$INDEX_ALLOCATION/b", PathError::Reserved),
            ("a\\b", PathError::Character),
            ("a\nb", PathError::Character),
            ("a\0b", PathError::Character),
        ] {
            assert_eq!(text.parse::<RepoPath>(), Err(error), "{text:?}");
        }
        assert_eq!(["n"; MAX_NAME_COUNT + 1].join("/").parse::<RepoPath>(), Err(PathError::Depth));
        assert!(["n"; MAX_NAME_COUNT].join("/").parse::<RepoPath>().is_ok());
        assert_eq!("n/".repeat(MAX_PATH_LEN).parse::<RepoPath>(), Err(PathError::Len));
    }

    #[test]
    fn common_paths_are_split_at_their_last_name() {
        for (text, names) in
            [("a", 1), (".gitattributes", 1), ("a/b/ü c.txt", 3), ("...", 1), (".gitignore", 1), ("a:b?", 1)]
        {
            let path: RepoPath = text.parse().unwrap();
            let (directories, last) = path.split();
            assert_eq!((directories.len() + 1, path.as_str()), (names, text));
            assert!(text.ends_with(last));
        }
    }
}
