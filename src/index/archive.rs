//! Rows that a backup reads from the index, and that a restore writes into a new one.

use crate::format::shard::{Sha256, Term};
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// A file with all its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// Its hash.
    pub hash: FileHash,
    /// Its bytes.
    pub raw_len: u64,
    /// Its terms.
    pub terms: Vec<Term>,
    /// When it was first registered.
    pub since: Timestamp,
    /// The sha256 that a client has claimed, and its state.
    pub sha256: Option<(Sha256, Sha256State)>,
    /// The repositories that have registered it, ascending.
    pub repos: Vec<String>,
    /// The owners of its xorbs: deduplication may mention a xorb to them only. Ascending.
    pub owners: Vec<(XorbHash, String)>,
}

/// The state of a claimed sha256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sha256State {
    /// A client has claimed it; it is unverified.
    Claimed,
    /// The file has it.
    Verified,
}

/// A file to be written into a new index, with its deduplication entries.
#[derive(Clone, Debug)]
pub struct RestoredFile {
    /// The file.
    pub record: FileRecord,
    /// Chunks of its xorbs that clients may query, each with its xorb.
    pub dedup: Vec<(ChunkHash, XorbHash)>,
}
