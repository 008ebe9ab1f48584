//! Git objects of a Hub repository, as git encodes them: object ids, trees, commits and pointers of
//! large files. Also the paths that a file of a repository may have, and which of them a
//! `.gitignore` means.
//!
//! Everything here is pure: bytes in, values out. No input panics. Trees and commits are encoded by
//! `gix-object`, and ids are SHA-1 with collision detection by `gix-hash`.

mod commit;
mod id;
mod ignored;
mod path;
mod pointer;
mod tree;

use thiserror::Error;

pub use self::commit::Commit;
pub use self::id::{ObjectId, ParseIdError};
pub use self::ignored::{IgnoreError, IgnoreRules, MAX_IGNORE_LEN};
pub use self::path::{PathError, RepoPath};
pub use self::pointer::Pointer;
pub use self::tree::{Entry, EntryKind, Tree};

/// Why bytes are not an object, or cannot be made into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ObjectError {
    /// The bytes are not a tree that git would write.
    #[error("the bytes are not a git tree")]
    NotATree,
    /// The contents are one half of a known SHA-1 collision, so their id is not theirs alone.
    #[error("the contents belong to a SHA-1 collision attack")]
    Collision,
    /// A name or a message cannot be encoded.
    #[error("a name or a message cannot be encoded in a git object")]
    NotEncodable,
}

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
