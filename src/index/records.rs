//! What the index is asked so that it can be made again without itself: what registrations do not say of themselves.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use crate::format::shard::Sha256;
use crate::format::{FileHash, StoreId, XorbHash};

/// Which store an index belongs to, and which of its records it has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMark {
    /// The id of the store; `None` until it was written.
    pub id: Option<StoreId>,
    /// The number of the last record that was taken: all before it were taken, too, or withdrawn, or are among `left`, or
    /// tell of what was never acknowledged. `None` where none was taken.
    pub last_record: Option<u64>,
    /// Numbers of records up to the last one that could not be taken, ascending.
    pub left: Vec<u64>,
}

/// A part of [`Index`](super::Index).
pub trait Recorded {
    /// Those of these xorbs that readers may see and that somebody of this domain has uploaded, in no order.
    fn owned_xorbs(&self, hashes: Vec<XorbHash>, domain: String) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Those of these files that a repository has, in no order; whether all that it may claim of the sha256 is known, too.
    fn claimed_files(
        &self,
        files: Vec<FileHash>,
        repo: String,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, bool)>, IndexError>>;

    /// The repositories that have registered a file, ascending, and whether they have claimed the sha256 which is known of
    /// it.
    fn readers_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<(String, bool)>, IndexError>>;

    /// The sha256 of a file that somebody has claimed and nobody has verified.
    fn unverified_sha256(&self, file: FileHash) -> BoxFuture<'_, Result<Option<Sha256>, IndexError>>;

    /// Which store this is the index of, and how far it has come with its records.
    fn store_mark(&self) -> BoxFuture<'_, Result<StoreMark, IndexError>>;

    /// Says which store this is the index of, and that it has taken the records up to this one. A number below what was said
    /// before leaves that.
    fn set_store(&self, id: StoreId, last_record: Option<u64>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Adds records to those that could not be taken.
    fn leave_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>>;
}
