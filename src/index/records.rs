//! Queries for the registration log: what a new record must contain, and which records the index
//! has applied. A lost index can be rebuilt from the records.
//!
//! A record is open from when its number is taken until the transaction of its change. With several
//! servers the table `open_records` has the numbers of all open records. With one server it has
//! only those up to the last applied record: the transaction that applies a record adds the numbers
//! that it skips, and a later one deletes its own. After a crash these are the records that were
//! overtaken by later ones.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// was applied, was rolled back, is in `left`, or is open
    /// ([`abandoned_records`](RecordIndex::abandoned_records)).
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
    /// lower number than the stored one is ignored. With one server no record up to `last_record`
    /// is open any more; with several servers only `last_record` is closed. An index that other
    /// data directories can reach keeps its id: if it has another one, the error is of kind
    /// [`IndexErrorKind::Lost`](super::IndexErrorKind::Lost).
    fn set_store(&self, id: StoreId, last_record: Option<u64>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Marks these records as applied, in one transaction: they say what the index has. Other
    /// records may be open.
    fn take_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Adds records that could not be applied to [`StoreMark::left`].
    fn add_unapplied_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>>;

    /// The record is no longer open, because it was removed, or because it says what the index had
    /// before. A transaction with the parameter `record` closes that record. With one server this
    /// is not durable: after a crash the record may count as open.
    fn close_record(&self, seq: u64) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Whether the record of a change is open, after its transaction has failed. If it is, the
    /// change was not made and never will be, also after a power cut; otherwise it was made. `None`
    /// if the index cannot tell.
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

    /// The open records, ascending. With several servers only those that were given up, or whose
    /// server has ended: their changes were not made and never will be. With one server those up to
    /// the last applied record. If the server runs, their changes may be under way.
    fn abandoned_records(&self) -> BoxFuture<'_, Result<Vec<u64>, IndexError>>;
}

/// Maximum number of ranges of closed records that a process remembers. Records of further ones
/// count as open until the next start. A client that is refused again and again makes one range.
const MAX_RANGE_COUNT: usize = 256;

/// With one server: the records that this process has closed, until the index has applied later
/// ones. So closing a record needs no transaction of its own. The end of each range, by its start.
#[derive(Clone, Debug, Default)]
pub(super) struct ClosedRecords(Arc<Mutex<BTreeMap<u64, u64>>>);

impl ClosedRecords {
    pub(super) fn add(&self, seq: u64) {
        let mut closed = self.lock();
        let before = closed.range(..=seq).next_back().map(|(start, end)| (*start, *end));
        if before.is_some_and(|(_, end)| end > seq) {
            return;
        }
        let start = before.filter(|(_, end)| *end == seq).map_or(seq, |(start, _)| start);
        let end = seq.saturating_add(1);
        let end = closed.remove(&end).unwrap_or(end);
        if closed.len() < MAX_RANGE_COUNT || closed.contains_key(&start) {
            closed.insert(start, end);
        }
    }

    /// What the transaction that applies `record` changes, where `last` was the last applied one.
    /// Forgets the closed records up to `last`. If the transaction then fails, they may count as
    /// open until the next start, which does not find them.
    pub(super) fn applying(&self, record: u64, last: Option<u64>) -> Applying {
        let first = last.map_or(0, |last| last.saturating_add(1));
        let mut closed = self.lock();
        let later = closed.split_off(&first);
        let earlier = std::mem::replace(&mut *closed, later);
        let mut over: Vec<Range<u64>> = earlier.into_iter().map(|(start, end)| start..end).collect();
        if let Some(across) = over.last_mut().filter(|range| range.end > first) {
            closed.insert(first, across.end);
            across.end = first;
        }
        if record < first {
            over.push(record..record.saturating_add(1));
            return Applying { over, skipped: Vec::new() };
        }
        let (mut skipped, mut next) = (Vec::new(), first);
        for (start, end) in closed.range(first..record) {
            skipped.push(next..*start);
            next = *end;
        }
        skipped.push(next..record);
        skipped.retain(|range| !range.is_empty());
        Applying { over, skipped }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the table of open records changes when a record is applied.
#[derive(Debug)]
pub(super) struct Applying {
    /// Records up to the last applied one that are not open any more.
    pub(super) over: Vec<Range<u64>>,
    /// Those between the last applied record and this one that become open.
    pub(super) skipped: Vec<Range<u64>>,
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

#[cfg(test)]
mod tests {
    use super::{ClosedRecords, MAX_RANGE_COUNT};

    #[test]
    fn closed_records_are_ranges_and_forgotten_when_passed() {
        let closed = ClosedRecords::default();
        for seq in [3, 5, 4, 4, 9, 0] {
            closed.add(seq);
        }
        // A failed transaction may ask again.
        for _ in 0..2 {
            let applying = closed.applying(11, None);
            assert_eq!((applying.over, applying.skipped), (vec![], vec![1..3, 6..9, 10..11]));
        }
        let applying = closed.applying(6, Some(4));
        assert_eq!((applying.over, applying.skipped), (vec![0..1, 3..5], vec![]));
        let applying = closed.applying(7, Some(9));
        assert_eq!((applying.over, applying.skipped), (vec![5..6, 9..10, 7..8], vec![]));
        assert_eq!(closed.applying(10, Some(9)).over, []);
    }

    #[test]
    fn closed_records_are_limited_except_those_in_a_row() {
        let closed = ClosedRecords::default();
        let end = 2 * MAX_RANGE_COUNT as u64;
        (0..=end).step_by(2).for_each(|seq| closed.add(seq));
        (end + 3..end + 1_000_000).for_each(|seq| closed.add(seq));
        assert_eq!(closed.applying(end + 1, None).skipped.len(), MAX_RANGE_COUNT);
        // The number before a range is in a row with it, too.
        (1..end).step_by(2).for_each(|seq| closed.add(seq));
        let skipped = closed.applying(end + 1_000_000, None).skipped;
        assert_eq!((skipped.len(), &skipped[0]), (1, &(end..end + 1_000_000)));
    }
}
