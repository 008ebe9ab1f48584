//! Converts names of blobs to paths of files.
//!
//! The format of archives allows any text without NUL as a name. An archive may be untrusted, so
//! that a name like `../x` must not become a path. A name must also be escaped before it is
//! printed.

use thiserror::Error;

/// The path of a file below a directory, from an untrusted name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Place<'a> {
    /// The subdirectories, outermost first. None of them is empty, `.` or `..`.
    pub(in crate::cli) directories: Vec<&'a str>,
    pub(in crate::cli) file: &'a str,
}

/// Why a name cannot be used as a path.
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
    /// Parses a name. Different names have different places, so that no file overwrites the file of
    /// another name.
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
        // A backslash is not a separator.
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
