//! Backups: everything in a store, in one RCA archive that only grows.
//!
//! ```text
//! archive := session*                     see `rca`; each session has a zstd state and a hash of its own
//! session := "zorb-backup/1"              the first: what this is, in JSON
//!          | ("xorbs/N" | "files/N" | "keys/N")*        what was backed up
//!          | "catalog/N"                  what the sessions since the last catalog have added
//! N       := index of the blob in the archive, so that no two names are equal
//!
//! content := record*                      of every blob but the first
//! record  := head length u32 LE, body length u64 LE, head (JSON), body
//!
//!            head                                                  body
//! xorbs/     {"xorb", "chunks"}                                    its unpacked form: 4 bytes per chunk, contents
//! files/     {"file", "len", "since_ms", "sha256", "sha256_state", "repos"}
//!                                                                  per term: xorb 32, start, end, raw length u32 LE
//! keys/      {"keys"}                                              the key file
//! catalog/   {"xorbs", "files", "keys"}                            xorb hashes of 32 bytes; per file its hash and 16
//!                                                                  bytes of the BLAKE3 of its record
//! ```
//!
//! # Invariants
//!
//! - A file's record comes after all of its xorbs. So every archive that was cut off after a
//!   committed blob is a backup by itself, and restoring is one pass.
//! - Nothing is ever replaced. When a file has changed (another repository registered it, its
//!   sha256 was verified), its record is written again, and the last one counts. Data that was
//!   deleted in the store stays in the archive.
//! - Xorbs are stored in their unpacked form (`format::xorb`), which zstd compresses better. Small
//!   ones share a blob, because a blob costs two syncs.
//! - Derived data is not stored: which chunks dedup may find follows from their hashes.
//!
//! # Why sessions and catalogs
//!
//! One zstd state runs through a session, so a blob's name can only be read by decompressing
//! everything before it. A second run must not read the first one's data again. So the names are
//! repeated in sessions of a catalog alone, which are found by their reset blocks and read by
//! themselves. A catalog also follows every GiB of contents. So after a run that was killed, the
//! next one reads about a GiB again: the sessions after the last catalog.

mod catalog;
mod counted;
mod discard;
mod error;
mod heal;
mod pages;
mod read;
mod record;
mod restore;
mod store;
mod take;
#[cfg(test)]
mod tests;
mod write;

use std::fmt::Debug;
use std::io::Cursor;

pub use self::discard::NoBlobs;
pub use self::error::{ArchiveError, BackupError, RestoreError};
pub use self::heal::RepairTarget;
pub use self::restore::{Restored, Target};
pub use self::take::{BackedUp, Origin};
pub use self::write::BackupArchive;
use crate::rca::{Error, Writer};

/// Name of the first blob: the kind of archive, and its version.
const SIGNATURE: &str = "zorb-backup/1";

/// The prefix of the first blob's name in every version.
const SIGNATURE_PREFIX: &str = "zorb-backup/";

/// The contents of the first blob, for a reader who finds the file in ten years.
const MANIFEST: &str = concat!(
    r#"{"format":"zorb-backup/1","container":"RCA","made_by":"zorb "#,
    env!("CARGO_PKG_VERSION"),
    r#"","restore":"zorb restore ARCHIVE --data-dir DIR"}"#,
    "\n"
);

/// Receives the progress of a backup or a restore.
pub trait Watch: Debug + Send + Sync {
    /// Bytes to be processed, as far as known.
    fn total(&self, len: u64);

    /// Bytes processed so far.
    fn position(&self, len: u64);

    /// A part of the store cannot be backed up; the rest continues.
    fn problem(&self, problem: &(dyn std::error::Error + 'static));
}

/// An archive without contents: the bytes that a new one begins with. They are to be published
/// whole, so that a file is either an archive or missing.
///
/// # Errors
///
/// None in practice: it is made in memory.
pub fn empty_archive() -> Result<Vec<u8>, Error> {
    let mut writer = Writer::open(Cursor::new(Vec::new()))?;
    writer.append(SIGNATURE, MANIFEST.as_bytes())?;
    Ok(writer.into_storage().into_inner())
}

/// The kind of a blob, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Signature,
    Xorbs,
    Files,
    Keys,
    Catalog,
}

impl Kind {
    /// The kind of the blob with this name; `None` for names unknown to this version.
    fn of(name: &str) -> Option<Self> {
        match name.split_once('/') {
            _ if name == SIGNATURE => Some(Self::Signature),
            Some(("xorbs", _)) => Some(Self::Xorbs),
            Some(("files", _)) => Some(Self::Files),
            Some(("keys", _)) => Some(Self::Keys),
            Some(("catalog", _)) => Some(Self::Catalog),
            _ => None,
        }
    }

    /// The name of a blob of this kind at this place in the archive.
    fn name(self, index: u64) -> String {
        match self {
            Self::Signature => SIGNATURE.to_owned(),
            Self::Xorbs => format!("xorbs/{index}"),
            Self::Files => format!("files/{index}"),
            Self::Keys => format!("keys/{index}"),
            Self::Catalog => format!("catalog/{index}"),
        }
    }
}
