//! The lists of files and xorbs, page by page.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::files::Reader;
use crate::format::shard::Sha256;
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// A registered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Its hash.
    pub hash: FileHash,
    /// Its length in bytes.
    pub raw_len: u64,
    /// Its verified sha256, or else the sha256 that the repository of the reader claims.
    pub sha256: Option<Sha256>,
    /// When the repository of the reader registered it first; for all repositories, when the first
    /// of them did.
    pub registered: Timestamp,
}

/// A visible xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XorbEntry {
    /// Its hash.
    pub hash: XorbHash,
    /// The number of its chunks.
    pub chunk_count: u32,
    /// Bytes of its blob.
    pub serialized_len: u64,
    /// Raw bytes of its chunks.
    pub raw_len: u64,
}

/// The methods of [`Index`](super::Index) for lists. A list may or may not have what is added or
/// removed meanwhile, and has nothing twice.
pub trait ListIndex {
    /// Files after `after` that this reader may see, in the order of their hashes' bytes.
    fn files_after(
        &self,
        reader: Reader,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<FileEntry>, IndexError>>;

    /// Visible xorbs after `after`, in the order of their hashes' bytes.
    fn xorbs_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbEntry>, IndexError>>;
}
