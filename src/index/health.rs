//! What the index says about the health of blobs, and what a check compares and mends.
//!
//! Damage is no state of a row's life: a damaged xorb stays live or condemned, with its references, and its blob is what
//! is wrong. Only the statements here set and clear it, and each is conditional on the row being the one that was looked
//! at: the ticket changes with every upload and every heal, so whatever was found out about a blob that has been
//! replaced since is lost.

use futures_util::future::BoxFuture;

use super::{IndexError, NewXorb, Ticket, Totals};
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// What there is to know of a visible xorb before its blob is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XorbHealth {
    /// Which one.
    pub hash: XorbHash,
    /// The upload or heal that the row is from.
    pub ticket: Ticket,
    /// CRC-64/NVME that its blob should have.
    pub crc64: u64,
    /// Bytes that its blob should have.
    pub serialized_len: u64,
    /// When its blob was last found sound; an upload counts.
    pub verified_at: Option<Timestamp>,
    /// Since when its blob is known to be damaged.
    pub damaged_at: Option<Timestamp>,
}

/// Sums over the health of all visible xorbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthSums {
    /// Xorbs that are known to be damaged.
    pub damaged_count: u64,
    /// When the sound xorb that has waited for longest was verified; `None` where there is none, or one that never was.
    pub oldest: Option<Timestamp>,
}

/// Files that need a xorb.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesHit {
    /// Some of them.
    pub files: Vec<FileHash>,
    /// How many there are.
    pub count: u64,
}

/// Health of blobs. Each method is one transaction.
pub trait HealthIndex {
    /// A visible xorb's health.
    fn find_health(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbHealth>, IndexError>>;

    /// Sound xorbs that were last verified before this moment, or never, the one that has waited for longest first.
    fn due_xorbs(&self, before: Timestamp, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>>;

    /// Damaged xorbs by their hashes, from behind `after` on.
    fn damaged_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>>;

    /// Sums. Costs as much as there are damaged xorbs.
    fn health_sums(&self) -> BoxFuture<'_, Result<HealthSums, IndexError>>;

    /// Some of the files that need a xorb, `limit` at most, and their number.
    fn files_hit(&self, hash: XorbHash, limit: u32) -> BoxFuture<'_, Result<FilesHit, IndexError>>;

    /// Notes that the blob of what was seen is damaged. Returns whether that is new: not where the row has changed
    /// since, nor where it is known.
    fn mark_damaged(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Notes that the blob of what was seen is sound; it is not damaged any more if it was. Returns whether the row is
    /// still the one that was seen.
    fn mark_sound(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Describes the blob that has replaced a damaged one, in whatever serialization: the row is live, sound, and has a
    /// ticket that nobody has. An error of kind [`IndexErrorKind::Lost`](super::IndexErrorKind::Lost) where the row is
    /// not visible under this ticket any more; nothing is changed then.
    fn heal_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}

/// A file whose references are not what its terms say, or whose terms name what is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// Which file.
    pub file: FileHash,
    /// Xorbs that its terms name and that have no visible row.
    pub lost: Vec<XorbHash>,
    /// Visible xorbs that its terms name and that do not know of it: nothing keeps them from being collected.
    pub unreferenced: Vec<XorbHash>,
    /// Xorbs that are kept for it and that its terms do not name.
    pub surplus_count: u64,
    /// Whether a run of its terms does not parse; then nothing else is known.
    pub is_unreadable: bool,
}

/// Some of the files that were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPage {
    /// Those with faults.
    pub faults: Vec<FileFault>,
    /// Files that were looked at.
    pub file_count: u64,
    /// The last one that was looked at; `None` at the end.
    pub last: Option<FileHash>,
}

/// By how much the totals that are kept are less than what they should be: what is to be added to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Xorbs.
    pub xorb_count: i64,
    /// Bytes of blobs.
    pub serialized_len: i64,
    /// Bytes of chunks.
    pub raw_len: i64,
}

/// Times in the index that have not come yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FutureTimes {
    /// Xorbs that were touched, condemned, verified or replaced then.
    pub xorb_count: u64,
    /// Whether garbage was collected then.
    pub has_collection: bool,
    /// The latest of all; `None` where there is none.
    pub latest: Option<Timestamp>,
}

/// What a check reads a page at a time, and what it mends. Each method is one transaction.
pub trait RepairIndex {
    /// Visible xorbs by their hashes, from behind `after` on.
    fn health_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>>;

    /// Those of these xorbs that have no row, in whatever state.
    fn without_row(&self, hashes: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Enters a xorb whose blob was found without a row and verified: live, and referred to by nobody. Returns whether
    /// there was no row.
    fn adopt_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Enters a row in `Deleting` for a blob without one, so that nobody can publish there until it is gone. Returns
    /// whether there was no row.
    fn claim_deleting(&self, hash: XorbHash, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Compares the references of some files with their terms.
    fn faulty_files(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<FaultPage, IndexError>>;

    /// Makes the references of a file what its terms say, as far as their xorbs are there. Returns whether anything was
    /// changed.
    fn rebuild_references(&self, file: FileHash) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// What is wrong with the totals, as of one moment. Reads the whole table, and holds nobody up.
    fn totals_drift(&self) -> BoxFuture<'_, Result<Drift, IndexError>>;

    /// Adds what was found missing to the totals. What is stored or deleted meanwhile changes both sides alike, so the
    /// difference stays right without the table being read again under the lock; provided that nobody else adds it.
    fn mend_totals(&self, drift: Drift) -> BoxFuture<'_, Result<Totals, IndexError>>;

    /// Times that are later than this one. Promises are no such times: they are meant to end later. Reads the whole table,
    /// and holds nobody up.
    fn future_times(&self, than: Timestamp) -> BoxFuture<'_, Result<FutureTimes, IndexError>>;

    /// Sets back to `now` what is later than `than`, for so many xorbs from behind `after` on; returns the last of them,
    /// `None` at the end. What was verified later counts as never verified. What was condemned later is live: the clock
    /// that said that its grace was over was wrong.
    fn set_times_back(
        &self,
        after: Option<XorbHash>,
        limit: u32,
        than: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<XorbHash>, IndexError>>;

    /// Sets back to `now` when garbage was last collected, if that is later.
    fn set_collection_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}
