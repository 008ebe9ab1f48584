//! Queries and repairs of `zorb fsck`, which checks that the index is consistent.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::health::XorbHealth;
use super::xorbs::{NewXorb, Ticket, Totals};
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// A file whose references contradict its terms, or whose terms name missing xorbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The hash of the file.
    pub file: FileHash,
    /// Xorbs that its terms name and that have no visible row.
    pub lost: Vec<XorbHash>,
    /// Visible xorbs that its terms name and that have no reference from the file. GC may delete
    /// them.
    pub unreferenced: Vec<XorbHash>,
    /// The number of references from the file to xorbs that its terms do not name, or that are
    /// invisible.
    pub surplus_count: u64,
    /// Whether a stored run of its terms does not parse. The other fields are empty then.
    pub is_unreadable: bool,
}

/// A page of checked files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPage {
    /// The faults of those files that have any.
    pub faults: Vec<FileFault>,
    /// The number of checked files.
    pub file_count: u64,
    /// The last checked file; `None` at the end.
    pub last: Option<FileHash>,
}

/// The error of the stored totals: the differences that must be added to correct them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TotalsError {
    /// Number of xorbs.
    pub xorb_count: i64,
    /// Bytes of their blobs.
    pub serialized_len: i64,
    /// Raw bytes of their chunks.
    pub raw_len: i64,
}

/// Times in the index that are later than the present time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FutureTimes {
    /// The number of xorbs with a time of touch, change of state, verification or replacement in
    /// the future.
    pub xorb_count: u64,
    /// Whether the time of the last garbage collection or of the last registration is in the
    /// future.
    pub has_collection: bool,
    /// The latest of these times; `None` if no time is in the future.
    pub latest: Option<Timestamp>,
}

/// The methods of [`Index`](super::Index) for checks and repairs of the index.
pub trait RepairIndex {
    /// The health of visible xorbs after `after`, in the order of their hashes.
    fn health_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>>;

    /// Inserts a live row for a verified blob whose xorb has no row. Returns whether there was no
    /// row.
    ///
    /// If the name of the blob is an object, the object is deleted in the same transaction. So only
    /// the process that may delete blobs may call this: GC could be deleting the blob of a dead
    /// object.
    fn adopt_xorb(
        &self,
        xorb: NewXorb,
        incarnation: Incarnation,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Replaces the blob of a xorb by a verified blob that no row and no object names, like
    /// [`replace_xorb`](super::ObjectIndex::replace_xorb). The blob does not become a pending
    /// object first: after a crash GC would delete it, and it may be the last copy of its data.
    fn adopt_blob(
        &self,
        xorb: NewXorb,
        ticket: Ticket,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Makes the row of an interrupted upload or deletion live. It then names the pending object of
    /// this ticket, whose blob was verified, in place of the blob `was`, which becomes a dead
    /// object: a request that deletes it may be under way. Returns false, without effect, if the
    /// row is visible or names another blob, or if there is no such pending object.
    fn restore_xorb(
        &self,
        xorb: NewXorb,
        was: Incarnation,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Compares the references of a page of files after `after` with their terms, in one snapshot.
    fn faulty_files(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<FaultPage, IndexError>>;

    /// Makes the references of a file agree with its terms, except for xorbs that have no visible
    /// row. Returns whether anything was changed.
    fn rebuild_references(&self, file: FileHash) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// The difference between the stored totals and the sums over the table of xorbs, in one
    /// snapshot. Reads the whole table without blocking other operations.
    fn totals_drift(&self) -> BoxFuture<'_, Result<TotalsError, IndexError>>;

    /// Adds `drift` to the totals, and returns the corrected totals. Uploads and deletions since
    /// [`totals_drift`](Self::totals_drift) changed the totals and the table by the same amounts,
    /// so `drift` is still right. Only one process may do this at a time.
    fn repair_totals(&self, drift: TotalsError) -> BoxFuture<'_, Result<Totals, IndexError>>;

    /// The times later than `than`. Excludes the ends of leases, which are meant to be in the
    /// future. Reads the whole table without blocking other operations.
    fn future_times(&self, than: Timestamp) -> BoxFuture<'_, Result<FutureTimes, IndexError>>;

    /// Corrects times later than `than`, for `limit` xorbs after `after`. Returns the last of these
    /// xorbs; `None` at the end.
    ///
    /// Times of a touch, change of state or replacement are set to `now`. Times of a verification
    /// are deleted, so that the xorb is verified soon. A xorb that was condemned at such a time
    /// becomes live, because the clock that ended its grace period was wrong.
    fn clamp_times(
        &self,
        after: Option<XorbHash>,
        limit: u32,
        than: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<XorbHash>, IndexError>>;

    /// Sets the times of the last garbage collection and of the last registration back to `now` if
    /// they are later.
    fn set_collection_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}
