//! Queries that let a lost index be rebuilt from registration records: what a record must contain,
//! and which records the index has applied.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use crate::format::shard::Sha256;
use crate::format::{FileHash, StoreId, XorbHash};

/// The store that an index belongs to, and how far it has applied the store's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMark {
    /// The id of the store; `None` until it was written.
    pub id: Option<StoreId>,
    /// The number of the last applied record; `None` if none was. Each earlier record was applied
    /// or rolled back, is among `left`, or was never acknowledged.
    pub last_record: Option<u64>,
    /// Earlier records that could not be applied, ascending.
    pub left: Vec<u64>,
}

/// A part of [`Index`](super::Index).
pub trait RecordIndex {
    /// The xorbs among `hashes` that are visible and belong to this owner. In no order.
    fn owned_xorbs(&self, hashes: Vec<XorbHash>, owner: String) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// The files among `files` that a repository has, in no order. The flag: the sha256 of the file
    /// is verified, or this repository has claimed one.
    fn claimed_files(
        &self,
        files: Vec<FileHash>,
        repo: String,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, bool)>, IndexError>>;

    /// Those of these files that any repository can see, in no order.
    fn visible_files(&self, files: Vec<FileHash>) -> BoxFuture<'_, Result<Vec<FileHash>, IndexError>>;

    /// The repositories of a file, ascending. The flag: the repository has claimed the stored
    /// sha256.
    fn readers_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<(String, bool)>, IndexError>>;

    /// The unverified sha256 of a file.
    fn unverified_sha256(&self, file: FileHash) -> BoxFuture<'_, Result<Option<Sha256>, IndexError>>;

    /// The store of this index, and its position in the records.
    fn store_mark(&self) -> BoxFuture<'_, Result<StoreMark, IndexError>>;

    /// Sets the store of this index, and that records up to `last_record` are applied. A lower
    /// number than before is ignored.
    fn set_store(&self, id: StoreId, last_record: Option<u64>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Adds records that could not be applied to [`StoreMark::left`].
    fn leave_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>>;
}
