//! Blobs that no row of a xorb names: those that are being written, and those to be deleted.
//!
//! Each blob has a name that is used once: the hash of its xorb and an [`Incarnation`]. The row of
//! a xorb names one blob. All other names that may have a blob are objects:
//!
//! * **Pending**: the name was given to a replacement that is being published.
//! * **Dead**: the blob was replaced, or its publication failed. A dead name never becomes the name
//!   of a row again. Its blob is deleted after a retention, and then the object is forgotten.
//!
//! The name of a new xorb is in its staged row instead. So a blob exists only under a name that the
//! index knows: an upload writes the name first, and a deletion removes it last.

use futures_util::future::BoxFuture;

use super::{IndexError, NewXorb, Ticket, XorbRow};
use crate::format::XorbHash;
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// An object whose blob is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadObject {
    /// The xorb.
    pub hash: XorbHash,
    /// Which of its blobs.
    pub incarnation: Incarnation,
    /// Bytes of the blob; 0 if it was never visible.
    pub len: u64,
}

/// Sums over all objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectSums {
    /// Their number.
    pub count: u64,
    /// Bytes of their blobs.
    pub len: u64,
}

/// A part of [`Index`](super::Index).
pub trait ObjectIndex {
    /// The name of a xorb's blob, in whatever state its row is.
    fn incarnation_of(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<Incarnation>, IndexError>>;

    /// Gives a name to a blob of so many bytes that is about to be published: a pending object.
    fn begin_object(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
        len: u64,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Names a published blob in place of the present one, whose object is dead from then on. The
    /// xorb is live and sound, and has a new ticket.
    ///
    /// An error of kind [`IndexErrorKind::Lost`](super::IndexErrorKind::Lost) if the row is no
    /// longer visible under this ticket, or the new blob is no pending object; then nothing is
    /// changed.
    fn replace_xorb(
        &self,
        xorb: NewXorb,
        ticket: Ticket,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Makes a name a dead object, whatever it is now. Returns false, without effect, if a row
    /// names it.
    fn bury_object(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
        len: u64,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Makes pending objects dead that were begun at `before` or earlier. Returns their number.
    fn abandon_objects(&self, before: Timestamp, now: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// Dead objects since `before` or earlier, the oldest first.
    fn dead_objects(&self, before: Timestamp, limit: u32) -> BoxFuture<'_, Result<Vec<DeadObject>, IndexError>>;

    /// Deletes a dead object, after its blob was deleted. Returns whether there was one.
    fn forget_object(&self, hash: XorbHash, incarnation: Incarnation) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// A replaced blob that may still be read, as the row of its xorb described it.
    fn find_replaced(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
    ) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>>;

    /// Those of these names that neither a row nor an object has.
    fn unaccounted(
        &self,
        names: Vec<(XorbHash, Incarnation)>,
    ) -> BoxFuture<'_, Result<Vec<(XorbHash, Incarnation)>, IndexError>>;

    /// Sums over all objects.
    fn object_sums(&self) -> BoxFuture<'_, Result<ObjectSums, IndexError>>;

    /// Sets times of objects that are later than `now` back to it.
    fn set_objects_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}
