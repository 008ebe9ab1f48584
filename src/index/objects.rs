//! Objects: names of blobs that no row of a xorb has. Such a blob is being written or is to be
//! deleted.
//!
//! Each blob has a name that is used once: the hash of its xorb and an [`Incarnation`]. The row of
//! a xorb names one blob. All other names that may have a blob are objects:
//!
//! * **Pending**: the name was given to a replacement that is being published.
//! * **Dead**: the blob was replaced, or its publication failed. No upload uses a dead name again;
//!   only [`adopt_xorb`](super::RepairIndex::adopt_xorb) can give it back to a row. After 3 hours
//!   GC deletes the blob, and then the object.
//!
//! The first blob of a xorb is no object, because its name is in the staged row. An upload writes
//! the name into the index before it publishes the blob, and a deletion removes the name after the
//! blob. So the index knows the name of every blob.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::xorbs::{NewXorb, Ticket, XorbRow};
use crate::format::XorbHash;
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// An object whose blob is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadObject {
    /// The hash of the xorb.
    pub hash: XorbHash,
    /// The incarnation of its blob.
    pub incarnation: Incarnation,
    /// The number of bytes of the blob; 0 if it is not known.
    pub len: u64,
}

/// Sums over all objects, pending and dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectSums {
    /// The number of objects.
    pub count: u64,
    /// The number of bytes of their blobs, as far as it is known.
    pub len: u64,
}

/// The methods of [`Index`](super::Index) for objects.
pub trait ObjectIndex {
    /// The incarnation in the row of a xorb, in any state; `None` without a row.
    fn incarnation_of(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<Incarnation>, IndexError>>;

    /// The same for the one process that deletes blobs, when it is about to delete this one. Fails
    /// if another process may do that by now: it may have completed the deletion, and then the row
    /// is that of a later upload.
    fn incarnation_to_delete(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<Incarnation>, IndexError>>;

    /// Inserts a pending object: the name of a blob of `len` bytes that is about to be published.
    fn begin_object(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
        len: u64,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Replaces the blob of a xorb: the row names the published blob, and the name of the old blob
    /// becomes a dead object. The xorb becomes live and sound, and gets a new ticket.
    ///
    /// The error is of kind [`IndexErrorKind::Lost`](super::IndexErrorKind::Lost) if the row is no
    /// longer visible under `ticket`, or if the new name is not a pending object. Then nothing is
    /// changed.
    fn replace_xorb(
        &self,
        xorb: NewXorb,
        ticket: Ticket,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Makes the name of a blob of `len` bytes a dead object, whether the name was pending, dead or
    /// unknown. Returns false, without effect, if a row has this name.
    fn mark_object_dead(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
        len: u64,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Makes pending objects dead if they were inserted at `before` or earlier. Returns their
    /// number.
    fn abandon_objects(&self, before: Timestamp, now: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// Objects that became dead at `before` or earlier, ordered by hash and incarnation: those
    /// after `after`, at most `limit`.
    fn dead_objects(
        &self,
        before: Timestamp,
        after: Option<(XorbHash, Incarnation)>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<DeadObject>, IndexError>>;

    /// Deletes a dead object, after its blob was deleted. Returns whether there was one.
    fn forget_object(&self, hash: XorbHash, incarnation: Incarnation) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// The description of a replaced blob, as the row had it before the replacement. `None` if the
    /// blob must not be read, because it was damaged or was never live.
    fn find_replaced(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
    ) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>>;

    /// The names among `names` that no row of a xorb and no object has.
    fn unknown_names(
        &self,
        names: Vec<(XorbHash, Incarnation)>,
    ) -> BoxFuture<'_, Result<Vec<(XorbHash, Incarnation)>, IndexError>>;

    /// Sums over all objects.
    fn object_sums(&self) -> BoxFuture<'_, Result<ObjectSums, IndexError>>;

    /// Sets the times of objects back to `now` if they are later.
    fn set_objects_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}
