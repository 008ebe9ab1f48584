//! Backups: everything in a store, in one RCA archive that only grows.
//!
//! An archive consists of *sessions*, and a session of named *blobs* (see the crate `rca`). In this
//! module, *blob* means a blob of the archive; the blobs of the store are called xorbs. The content
//! of a blob is a sequence of *records*, and a record is the backup of one xorb or file.
//!
//! ```text
//! archive := session*
//! session := "zorb-backup/1"                       the first session: one blob, the MANIFEST
//!          | ("xorbs/N" | "files/N" | "hub/N" | "keys/N")*   blobs with the data
//!          | "catalog/N"                           one blob: see "Catalogs"
//! N       := index of the blob in the archive, so that no two names are equal
//!
//! content of every blob except the first := record*
//! record  := head length u32 LE, body length u64 LE, head (JSON), body
//!
//! blob       fields of the head
//!            body
//! xorbs/     xorb (its hash), chunks (their number)
//!            the xorb in its unpacked form: a table of 4 bytes per chunk, then the contents
//! files/     file (its hash), len, since_ms, sha256, sha256_state, repos, later_ms, claimants,
//!            owners
//!            per term: xorb hash 32 bytes; first chunk, end chunk, raw length, each u32 LE
//! hub/       hub (repo, commit, tree, blob or refs, in this order for each repository), fields
//!            of a tree: its bytes in the form of git; else nothing
//! keys/      keys (the format of the body)
//!            the text of the key file
//! catalog/   xorbs, files (the numbers of entries), keys (the digest of the keys), hub (digests)
//!            per xorb its hash, 32 bytes; per file its hash, and 16 bytes of the BLAKE3
//!            of its record
//! ```
//!
//! # Invariants
//!
//! - The record of a file comes after the records of all of its xorbs. So an archive that ends
//!   after any complete blob is a valid backup, and a restore reads the archive once, from front to
//!   back.
//! - The records of a Hub repository come after those of all files that its branches need. A
//!   repository without its last record, `refs`, is not restored.
//! - Nothing in an archive is ever replaced. When a file has changed, for example because another
//!   repository has registered it, its record is written again, and the last record counts. Data
//!   that was deleted in the store stays in the archive.
//! - Xorbs are stored in their unpacked form (`format::xorb`), because zstd compresses this form
//!   better. Small xorbs share a blob, because each blob costs two syncs.
//! - Derived data is not stored. For example, which chunks dedup may find follows from their
//!   hashes.
//!
//! # Catalogs
//!
//! A run must know which xorbs and files the archive has. It must not decompress the data of
//! earlier runs to learn that. But one zstd state runs through a session, so a name or a record can
//! only be read after everything before it in its session. So a catalog lists the xorbs and files
//! that were added since the last catalog. It is in a session of its own, which a reader can find
//! and decompress alone.
//!
//! A run writes a catalog at its end and after every GiB of contents. A run that was killed leaves
//! records that are in no catalog. The next run reads these records again: about a GiB at most.

mod catalog;
mod counted;
mod discard;
mod error;
mod heal;
mod hub;
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
pub(super) use self::hub::{decode_parts, encode_blob, encode_commit, encode_repo, encode_tree};
pub use self::restore::Restored;
pub use self::take::BackedUp;
pub use self::write::BackupArchive;
use crate::rca::{Error, Writer};

/// The name of the first blob: the kind of the archive and the version of its format.
const SIGNATURE: &str = "zorb-backup/1";

/// The prefix of the first blob's name in every version.
const SIGNATURE_PREFIX: &str = "zorb-backup/";

/// The content of the first blob. It tells a person who finds the file what it is and how to use
/// it.
const MANIFEST: &str = concat!(
    r#"{"format":"zorb-backup/1","container":"RCA","made_by":"zorb "#,
    env!("CARGO_PKG_VERSION"),
    r#"","restore":"zorb restore ARCHIVE --data-dir DIR"}"#,
    "\n"
);

/// Receives the progress of a backup or a restore.
pub trait Watch: Debug + Send + Sync {
    /// The number of bytes to be processed. A backup of a store that changes may call this twice.
    fn total(&self, len: u64);

    /// The number of bytes that were processed so far.
    fn position(&self, len: u64);

    /// Reports a xorb or file that cannot be backed up. The backup continues with the others.
    fn problem(&self, problem: &(dyn std::error::Error + 'static));
}

/// The bytes of a new archive, which has only the first blob. The caller publishes these bytes
/// atomically, so that a crash leaves a valid archive or no file.
///
/// # Errors
///
/// None in practice, because the archive is written in memory.
pub fn empty_archive() -> Result<Vec<u8>, Error> {
    let mut writer = Writer::open(Cursor::new(Vec::new()))?;
    writer.append(SIGNATURE, MANIFEST.as_bytes())?;
    Ok(writer.into_storage().into_inner())
}

/// The kind of a blob. The beginning of its name says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Signature,
    Xorbs,
    Files,
    Hub,
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
            Some(("hub", _)) => Some(Self::Hub),
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
            Self::Hub => format!("hub/{index}"),
            Self::Keys => format!("keys/{index}"),
            Self::Catalog => format!("catalog/{index}"),
        }
    }
}
