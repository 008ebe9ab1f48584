//! Faults in the operations on objects.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::faults::{FaultyIndex, index_error};
use crate::format::XorbHash;
use crate::index::{DeadObject, IndexError, NewXorb, ObjectIndex, ObjectSums, Ticket, XorbRow};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

type IndexFuture<'a, T> = BoxFuture<'a, Result<T, IndexError>>;

impl ObjectIndex for FaultyIndex {
    fn incarnation_of(&self, hash: XorbHash) -> IndexFuture<'_, Option<Incarnation>> {
        self.faults.around("incarnation_of", self.inner.incarnation_of(hash), index_error).boxed()
    }

    fn incarnation_to_delete(&self, hash: XorbHash) -> IndexFuture<'_, Option<Incarnation>> {
        let found = self.inner.incarnation_to_delete(hash);
        self.faults.around("incarnation_to_delete", found, index_error).boxed()
    }

    fn begin_object(&self, hash: XorbHash, incarnation: Incarnation, len: u64, now: Timestamp) -> IndexFuture<'_, ()> {
        let begun = self.weakness.begin_object(&self.inner, (hash, incarnation), len, now);
        self.faults.around("begin_object", begun, index_error).boxed()
    }

    fn replace_xorb(
        &self,
        xorb: NewXorb,
        ticket: Ticket,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> IndexFuture<'_, ()> {
        let replaced = self.weakness.replace_xorb(&self.inner, xorb, ticket, incarnation, now);
        self.faults.around("replace_xorb", replaced, index_error).boxed()
    }

    fn mark_object_dead(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
        len: u64,
        now: Timestamp,
    ) -> IndexFuture<'_, bool> {
        self.faults
            .around("mark_object_dead", self.inner.mark_object_dead(hash, incarnation, len, now), index_error)
            .boxed()
    }

    fn abandon_objects(&self, before: Timestamp, now: Timestamp) -> IndexFuture<'_, u64> {
        let abandoned = self.weakness.abandon_objects(&self.inner, before, now);
        self.faults.around("abandon_objects", abandoned, index_error).boxed()
    }

    fn dead_objects(
        &self,
        before: Timestamp,
        after: Option<(XorbHash, Incarnation)>,
        limit: u32,
    ) -> IndexFuture<'_, Vec<DeadObject>> {
        let dead = self.weakness.dead_objects(&self.inner, before, after, limit);
        self.faults.around("dead_objects", dead, index_error).boxed()
    }

    fn forget_object(&self, hash: XorbHash, incarnation: Incarnation) -> IndexFuture<'_, bool> {
        self.faults.around("forget_object", self.inner.forget_object(hash, incarnation), index_error).boxed()
    }

    fn find_replaced(&self, hash: XorbHash, incarnation: Incarnation) -> IndexFuture<'_, Option<XorbRow>> {
        self.faults.around("find_replaced", self.inner.find_replaced(hash, incarnation), index_error).boxed()
    }

    fn unknown_names(&self, names: Vec<(XorbHash, Incarnation)>) -> IndexFuture<'_, Vec<(XorbHash, Incarnation)>> {
        self.faults.around("unknown_names", self.inner.unknown_names(names), index_error).boxed()
    }

    fn object_sums(&self) -> IndexFuture<'_, ObjectSums> {
        self.faults.around("object_sums", self.inner.object_sums(), index_error).boxed()
    }

    fn set_objects_back(&self, now: Timestamp) -> IndexFuture<'_, ()> {
        self.faults.around("set_objects_back", self.inner.set_objects_back(now), index_error).boxed()
    }
}
