//! What backups take from the index, and restores put into a new one.

use crate::format::shard::{Sha256, Term};
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// A file with everything that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// Its hash.
    pub hash: FileHash,
    /// Its bytes.
    pub raw_len: u64,
    /// What it is made of.
    pub terms: Vec<Term>,
    /// When it was first registered.
    pub since: Timestamp,
    /// The sha256 that a client has claimed, and what is known of that.
    pub sha256: Option<(Sha256, Sha256State)>,
    /// Who has registered it, ascending.
    pub repos: Vec<String>,
    /// Within which domains deduplication may mention its xorbs: the domains of those who have uploaded them. Ascending.
    pub owners: Vec<(XorbHash, String)>,
}

/// What is known of a claimed sha256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sha256State {
    /// A client has claimed it, and nobody has looked.
    Claimed,
    /// The file has it.
    Verified,
}

/// A file to be put into a new index, and what follows from it.
#[derive(Clone, Debug)]
pub struct RestoredFile {
    /// The file.
    pub record: FileRecord,
    /// Chunks of its xorbs that clients may ask for, and the xorb with each.
    pub dedup: Vec<(ChunkHash, XorbHash)>,
}
