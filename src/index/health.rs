//! The health of blobs in the index, and what a check compares and repairs.
//!
//! Damage is not a state of a row: a damaged xorb stays live or condemned, with its references;
//! only its blob is wrong. Only the statements here set and clear it. Each is conditional on the
//! ticket of the row, which changes with every upload and every heal. So a finding about a blob
//! that was replaced meanwhile has no effect.

use futures_util::future::BoxFuture;

use super::{IndexError, NewXorb, Ticket, Totals};
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// A visible xorb, as a check knows it before it reads the blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XorbHealth {
    /// Which one.
    pub hash: XorbHash,
    /// Which of its blobs.
    pub incarnation: Incarnation,
    /// The ticket of the last upload or heal.
    pub ticket: Ticket,
    /// CRC-64/NVME of a sound blob.
    pub crc64: u64,
    /// Bytes of a sound blob.
    pub serialized_len: u64,
    /// When its blob was last found sound; an upload counts.
    pub verified_at: Option<Timestamp>,
    /// Since when its blob is known to be damaged.
    pub damaged_at: Option<Timestamp>,
}

/// Sums over the health of all visible xorbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthSums {
    /// Xorbs known to be damaged.
    pub damaged_count: u64,
    /// The oldest verification of a sound xorb; `None` if there is no sound xorb, or one was never
    /// verified.
    pub oldest: Option<Timestamp>,
}

/// Files that reference a xorb.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesHit {
    /// Some of them.
    pub files: Vec<FileHash>,
    /// Their number.
    pub count: u64,
}

/// Health of blobs. Each method is one transaction.
pub trait HealthIndex {
    /// A visible xorb's health.
    fn find_health(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbHealth>, IndexError>>;

    /// Sound xorbs that were last verified before this moment, or never, the oldest verification
    /// first.
    fn due_xorbs(&self, before: Timestamp, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>>;

    /// Damaged xorbs after `after`, in the order of their hashes.
    fn damaged_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>>;

    /// Sums over the health of visible xorbs. The cost is proportional to the number of damaged
    /// xorbs.
    fn health_sums(&self) -> BoxFuture<'_, Result<HealthSums, IndexError>>;

    /// Files that reference a xorb, `limit` at most, and their number.
    fn files_hit(&self, hash: XorbHash, limit: u32) -> BoxFuture<'_, Result<FilesHit, IndexError>>;

    /// Records that the blob is damaged. Returns whether that is new: not if the row has changed
    /// since `seen`, nor if it is known already.
    fn mark_damaged(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Records that the blob is sound, and clears the damage. Returns whether the row is still the
    /// one in `seen`.
    fn mark_sound(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Describes the blob that the row names, in any serialization: the row is live, sound, and has
    /// a new ticket. An error of kind
    /// [`IndexErrorKind::Lost`](super::IndexErrorKind::Lost) if the row is no longer visible under
    /// this ticket; then nothing is changed.
    fn heal_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}

/// A file whose references contradict its terms, or whose terms name missing xorbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// Which file.
    pub file: FileHash,
    /// Xorbs in its terms without a visible row.
    pub lost: Vec<XorbHash>,
    /// Visible xorbs in its terms without a reference: they may be collected.
    pub unreferenced: Vec<XorbHash>,
    /// The number of referenced xorbs that its terms do not name.
    pub surplus_count: u64,
    /// Whether a run of its terms does not parse; then nothing else is known.
    pub is_unreadable: bool,
}

/// A page of checked files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPage {
    /// The faulty ones.
    pub faults: Vec<FileFault>,
    /// The number of checked files.
    pub file_count: u64,
    /// The last checked file; `None` at the end.
    pub last: Option<FileHash>,
}

/// What must be added to the stored totals to make them right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Xorbs.
    pub xorb_count: i64,
    /// Bytes of blobs.
    pub serialized_len: i64,
    /// Bytes of chunks.
    pub raw_len: i64,
}

/// Times in the index that lie in the future.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FutureTimes {
    /// Xorbs that were touched, condemned, verified or replaced in the future.
    pub xorb_count: u64,
    /// Whether the last garbage collection lies in the future.
    pub has_collection: bool,
    /// The latest of all; `None` if there is none.
    pub latest: Option<Timestamp>,
}

/// What a check reads page by page, and what it repairs. Each method is one transaction.
pub trait RepairIndex {
    /// Visible xorbs after `after`, in the order of their hashes.
    fn health_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>>;

    /// Inserts a row for a verified blob whose xorb has none: live and unreferenced. Returns
    /// whether there was no row. The caller has the right to delete blobs, since the blob may be a
    /// dead object.
    fn adopt_xorb(
        &self,
        xorb: NewXorb,
        incarnation: Incarnation,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Compares the references of some files with their terms.
    fn faulty_files(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<FaultPage, IndexError>>;

    /// Makes the references of a file agree with its terms, as far as their xorbs exist. Returns
    /// whether anything was changed.
    fn rebuild_references(&self, file: FileHash) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// The error of the totals, in one snapshot. Reads the whole table without blocking other
    /// operations.
    fn totals_drift(&self) -> BoxFuture<'_, Result<Drift, IndexError>>;

    /// Adds this error to the totals. Concurrent uploads and deletions change both sides alike, so
    /// the table is not read again under the lock. Only one process may do this at a time.
    fn repair_totals(&self, drift: Drift) -> BoxFuture<'_, Result<Totals, IndexError>>;

    /// Times later than `than`, except leases, which are meant to end later. Reads the whole table
    /// without blocking other operations.
    fn future_times(&self, than: Timestamp) -> BoxFuture<'_, Result<FutureTimes, IndexError>>;

    /// Sets times later than `than` back to `now`, for `limit` xorbs after `after`. Returns the
    /// last of them; `None` at the end. A later verification counts as none. A xorb that was
    /// condemned later becomes live: the clock that ended its grace period was wrong.
    fn set_times_back(
        &self,
        after: Option<XorbHash>,
        limit: u32,
        than: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<XorbHash>, IndexError>>;

    /// Sets the time of the last garbage collection back to `now`, if it is later.
    fn set_collection_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}
