//! What the store reads from the index to make it reproducible from records.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use crate::format::shard::Sha256;
use crate::format::{FileHash, StoreId, XorbHash};

/// The store of an index, and its position in the records of that store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMark {
    /// The id of the store; `None` until it was written.
    pub id: Option<StoreId>,
    /// The number of the last record that was taken; `None` if none was. Each earlier record was
    /// taken or rolled back, is among `left`, or was never acknowledged.
    pub last_record: Option<u64>,
    /// Earlier records that could not be taken, ascending.
    pub left: Vec<u64>,
}

/// A part of [`Index`](super::Index).
pub trait RecordIndex {
    /// Those of these xorbs that are visible and belong to this owner, in no order.
    fn owned_xorbs(&self, hashes: Vec<XorbHash>, owner: String) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Those of these files that a repository has, in no order. The flag says whether the
    /// repository has claimed the sha256, or it is verified.
    fn claimed_files(
        &self,
        files: Vec<FileHash>,
        repo: String,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, bool)>, IndexError>>;

    /// The repositories of a file, ascending. The flag says whether one has claimed the stored
    /// sha256.
    fn readers_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<(String, bool)>, IndexError>>;

    /// The unverified sha256 of a file.
    fn unverified_sha256(&self, file: FileHash) -> BoxFuture<'_, Result<Option<Sha256>, IndexError>>;

    /// The store of this index, and its position in the records.
    fn store_mark(&self) -> BoxFuture<'_, Result<StoreMark, IndexError>>;

    /// Sets the store of this index, and records that its records up to this one are taken. A lower
    /// number than before is ignored.
    fn set_store(&self, id: StoreId, last_record: Option<u64>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Adds records that could not be taken.
    fn leave_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>>;
}
