//! The health of blobs in the index: when each was last verified, and whether it is damaged.
//!
//! Damage is not a state of a row. A damaged xorb stays live or condemned and keeps its references,
//! because only its blob is wrong. The methods here, and
//! [`replace_xorb`](super::ObjectIndex::replace_xorb), set and clear the damage. Each is
//! conditional on the ticket of the row, which changes with every upload and repair. So the result
//! of a check has no effect if the blob was replaced during the check.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::xorbs::{NewXorb, Ticket};
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// A visible xorb, as read from the index before its blob is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XorbHealth {
    /// The hash of the xorb.
    pub hash: XorbHash,
    /// The incarnation of its blob.
    pub incarnation: Incarnation,
    /// The ticket of the last upload or repair.
    pub ticket: Ticket,
    /// The CRC-64/NVME that the blob must have.
    pub crc64: u64,
    /// The number of bytes that the blob must have.
    pub serialized_len: u64,
    /// When its blob was last found sound. A first upload counts as a verification.
    pub verified_at: Option<Timestamp>,
    /// When its blob was found damaged; `None` if it is sound as far as is known.
    pub damaged_at: Option<Timestamp>,
}

/// Sums over the health of all visible xorbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthSums {
    /// The number of xorbs known to be damaged.
    pub damaged_count: u64,
    /// The time `verified_at` of the sound xorb that was not verified for longest. `None` if there
    /// is no sound xorb, or if a sound xorb was never verified.
    pub oldest: Option<Timestamp>,
}

/// Files that reference a xorb.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AffectedFiles {
    /// The first files, up to a limit.
    pub files: Vec<FileHash>,
    /// The number of all files that reference the xorb.
    pub count: u64,
}

/// The methods of [`Index`](super::Index) for the health of blobs.
pub trait HealthIndex {
    /// The health of a xorb, if it is visible.
    fn find_health(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbHealth>, IndexError>>;

    /// Sound xorbs that were last verified before `before`, or never. Xorbs without a verification
    /// come first, then the oldest verifications.
    fn due_xorbs(&self, before: Timestamp, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>>;

    /// Damaged xorbs after `after`, in the order of their hashes.
    fn damaged_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>>;

    /// Sums over the health of visible xorbs. The cost is proportional to the number of damaged
    /// xorbs.
    fn health_sums(&self) -> BoxFuture<'_, Result<HealthSums, IndexError>>;

    /// At most `limit` of the files that reference a xorb, and the number of all of them.
    fn affected_files(&self, hash: XorbHash, limit: u32) -> BoxFuture<'_, Result<AffectedFiles, IndexError>>;

    /// Records that the blob of the row `seen` is damaged. Returns false, without effect, if the
    /// row has another ticket or checksum by now, or if the damage is known already.
    fn mark_damaged(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Records that the blob of the row `seen` is sound, and clears the damage. Returns false,
    /// without effect, if the row has another ticket or checksum by now.
    fn mark_sound(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Corrects the description of the blob that the row names: the blob was verified and may be
    /// another serialization than the row says. The row becomes live and sound, and gets a new
    /// ticket.
    ///
    /// If the row is no longer visible under this ticket, nothing is changed, and the error is of
    /// kind [`IndexErrorKind::Lost`](super::IndexErrorKind::Lost).
    fn describe_xorb_again(
        &self,
        xorb: NewXorb,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>>;
}
