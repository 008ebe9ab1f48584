//! Names of blobs: which of them are usable as paths.
//!
//! To the format a name is any text without NUL. The name comes from an untrusted archive, so it is
//! neither a path to follow nor safe for a terminal.

use thiserror::Error;

/// The path of a blob's file, below the output directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Place<'a> {
    /// From the outside in; none of them is empty, `.` or `..`.
    pub(in crate::cli) directories: Vec<&'a str>,
    pub(in crate::cli) file: &'a str,
}

/// Why a name is no place for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(in crate::cli) enum Refusal {
    #[error("it is empty")]
    Empty,
    #[error("it is absolute")]
    Absolute,
    #[error("it has a part `{0}`")]
    Dots(&'static str),
    #[error("it has an empty part")]
    EmptyPart,
}

impl<'a> Place<'a> {
    /// What a name says; every place has one name.
    pub(in crate::cli) fn of(name: &'a str) -> Result<Self, Refusal> {
        if name.is_empty() {
            return Err(Refusal::Empty);
        }
        if name.starts_with('/') {
            return Err(Refusal::Absolute);
        }
        let mut directories: Vec<&str> = name.split('/').collect();
        for part in &directories {
            match *part {
                "" => return Err(Refusal::EmptyPart),
                "." => return Err(Refusal::Dots(".")),
                ".." => return Err(Refusal::Dots("..")),
                _ => {}
            }
        }
        let file = directories.pop().expect("split gives at least one part");
        Ok(Self { directories, file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_a_path_unless_absolute_or_with_empty_or_dot_parts() {
        let place = |directories: &[&'static str], file| Ok(Place { directories: directories.to_vec(), file });
        assert_eq!(Place::of("a"), place(&[], "a"));
        assert_eq!(Place::of("a/b c/..."), place(&["a", "b c"], "..."));
        assert_eq!(Place::of(".hidden/..x"), place(&[".hidden"], "..x"));
        // A backslash is a letter like others.
        assert_eq!(Place::of("..\\x"), place(&[], "..\\x"));
        for (name, refusal) in [
            ("", Refusal::Empty),
            ("/", Refusal::Absolute),
            ("/etc/x", Refusal::Absolute),
            ("//x", Refusal::Absolute),
            ("..", Refusal::Dots("..")),
            ("a/../b", Refusal::Dots("..")),
            ("a/..", Refusal::Dots("..")),
            (".", Refusal::Dots(".")),
            ("./a", Refusal::Dots(".")),
            ("a/./b", Refusal::Dots(".")),
            ("a/", Refusal::EmptyPart),
            ("a//b", Refusal::EmptyPart),
        ] {
            assert_eq!(Place::of(name), Err(refusal), "{name:?}");
        }
    }
}
