//! Rows that a backup reads from the index, and that a restore writes into a new one.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use crate::format::shard::{Sha256, Term};
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// A file with all its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// Its hash.
    pub hash: FileHash,
    /// Its length in bytes.
    pub raw_len: u64,
    /// Its terms.
    pub terms: Vec<Term>,
    /// When it was first registered.
    pub since: Timestamp,
    /// Its sha256, and whether the sha256 is verified or only claimed.
    pub sha256: Option<(Sha256, Sha256State)>,
    /// The repositories that have a claim to the file, ascending.
    pub repos: Vec<String>,
    /// When each of them registered it that was not the first. Its list shows this time.
    pub later: BTreeMap<String, Timestamp>,
    /// Those of them that claim its sha256, ascending, if the sha256 is only claimed. Until it is
    /// verified, only they find the file by it.
    pub claimants: Vec<String>,
    /// The owners of each of its xorbs, ascending by xorb and owner. Deduplication mentions a xorb
    /// to its owners only.
    pub owners: Vec<(XorbHash, String)>,
}

/// The state of the sha256 of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sha256State {
    /// A client claims it; the server has not verified it.
    Claimed,
    /// The server has verified it.
    Verified,
}

/// A file to be written into a new index, with its deduplication entries.
#[derive(Clone, Debug)]
pub struct RestoredFile {
    /// The file.
    pub record: FileRecord,
    /// Chunks of its xorbs that clients may look up for deduplication, each with its xorb.
    pub dedup: Vec<(ChunkHash, XorbHash)>,
}

/// The methods of [`Index`](super::Index) for backup and restore.
pub trait ArchiveIndex {
    /// A page of files after `after` with all their metadata, ascending by hash. Empty at the end.
    /// Each page is one snapshot; two pages may be from different times.
    fn file_records(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<Vec<FileRecord>, IndexError>>;

    /// Inserts files, all or none. A file that was inserted before is replaced: an archive has
    /// several records of a file that has changed, and the last one counts. Every xorb of their
    /// terms must be visible, else the error is of kind
    /// [`IndexErrorKind::Lost`](super::IndexErrorKind::Lost).
    ///
    /// For a new index that no server uses, because the terms are not checked against the chunks of
    /// the xorbs.
    fn restore_files(&self, files: Vec<RestoredFile>) -> BoxFuture<'_, Result<(), IndexError>>;
}
