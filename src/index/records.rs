//! Queries for the registration log: what a new record must contain, and which records the index
//! has applied. A lost index can be rebuilt from the records.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::sleep;

use super::error::IndexError;
use crate::format::shard::Sha256;
use crate::format::{FileHash, StoreId, XorbHash};
use crate::runtime::telemetry::chain;

/// The store that an index belongs to, and how far it has applied the store's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMark {
    /// The id of the store; `None` until it was written.
    pub id: Option<StoreId>,
    /// The number of the last applied record; `None` if no record was applied. Each earlier record
    /// was applied, was rolled back, is in `left`, or was never acknowledged.
    pub last_record: Option<u64>,
    /// The numbers of earlier records that could not be applied, ascending.
    pub left: Vec<u64>,
}

/// The methods of [`Index`](super::Index) for the registration log.
pub trait RecordIndex {
    /// The xorbs among `hashes` that are visible and belong to this owner, in no order.
    fn owned_xorbs(&self, hashes: Vec<XorbHash>, owner: String) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// The files among `files` that the repository has claimed, in no order. The flag is true if
    /// the sha256 of the file is verified, or if this repository has claimed a sha256.
    fn claimed_files(
        &self,
        files: Vec<FileHash>,
        repo: String,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, bool)>, IndexError>>;

    /// The registered files among `files`, in no order. Files of unpublished registrations are not
    /// registered yet.
    fn visible_files(&self, files: Vec<FileHash>) -> BoxFuture<'_, Result<Vec<FileHash>, IndexError>>;

    /// The repositories that may read a file, ascending. The flag is true if the repository has
    /// claimed the sha256 that the row of the file has, and that sha256 is unverified.
    fn readers_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<(String, bool)>, IndexError>>;

    /// The sha256 in the row of a file, if it is unverified. Other repositories may claim another
    /// one.
    fn unverified_sha256(&self, file: FileHash) -> BoxFuture<'_, Result<Option<Sha256>, IndexError>>;

    /// The store of this index, and which records it has applied.
    fn store_mark(&self) -> BoxFuture<'_, Result<StoreMark, IndexError>>;

    /// Writes the id of the store, and `last_record` as the number of the last applied record. A
    /// lower number than the stored one is ignored. An index that other data directories can reach
    /// keeps its id: if it has another one, the error is of kind
    /// [`IndexErrorKind::Lost`](super::IndexErrorKind::Lost).
    fn set_store(&self, id: StoreId, last_record: Option<u64>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Adds records that could not be applied to [`StoreMark::left`].
    fn add_unapplied_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Several servers: the record is no longer open, because it was removed, or because it says
    /// what the index had before. A transaction with the parameter `record` closes that record.
    fn close_record(&self, seq: u64) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Several servers: whether the record of a change is open, after its transaction has failed.
    /// If it is, the change was not made and never will be; otherwise it was made. `None` with one
    /// server.
    fn is_record_open(&self, seq: u64) -> BoxFuture<'_, Result<Option<bool>, IndexError>>;

    /// Several servers: the change of a record was not made and never will be, and the record may
    /// be stored all the same. It counts as abandoned from now on, although its server lives.
    /// Nothing happens if the record is not open, because then its change was made.
    fn give_up_record(&self, seq: u64) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Several servers: whether the database is another one than at the last
    /// [`note_history`](Self::note_history), because it was restored or a standby was promoted.
    /// Then it may lack changes that were acknowledged.
    fn was_set_back(&self) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Several servers: notes that the database is that of the records.
    fn note_history(&self) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Several servers: the open records that were given up, or whose server has ended. Their
    /// changes were not made and never will be.
    fn abandoned_records(&self) -> BoxFuture<'_, Result<Vec<u64>, IndexError>>;
}

/// [`RecordIndex::give_up_record`], which is tried again for some seconds if the index fails. If it
/// fails all the same, the record is abandoned when this process ends.
pub async fn give_up_record<I: RecordIndex + Sync + ?Sized>(index: &I, seq: u64) {
    const TRY_COUNT: usize = 5;
    for attempt in 1..=TRY_COUNT {
        let Err(error) = index.give_up_record(seq).await else { return };
        tracing::warn!(record = seq, attempt, error = %chain(&error), "cannot give up the record of a failed operation");
        if attempt < TRY_COUNT {
            sleep(Duration::from_secs(1)).await;
        }
    }
}
