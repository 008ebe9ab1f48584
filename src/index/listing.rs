//! Entries of the lists of files and xorbs.

use crate::format::shard::Sha256;
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// A registered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Its hash.
    pub hash: FileHash,
    /// Its bytes.
    pub raw_len: u64,
    /// Its sha256 as claimed by a client, unless found false.
    pub sha256: Option<Sha256>,
    /// When it was first registered.
    pub registered: Timestamp,
}

/// A visible xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XorbEntry {
    /// Its hash.
    pub hash: XorbHash,
    /// Its chunks.
    pub chunk_count: u32,
    /// Bytes of its blob.
    pub serialized_len: u64,
    /// Bytes of its chunks.
    pub raw_len: u64,
}
