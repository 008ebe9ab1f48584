//! Faults in the operations of checks and repairs.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::faults::{FaultyIndex, index_error};
use crate::format::{FileHash, XorbHash};
use crate::index::{
    AffectedFiles, FaultPage, FutureTimes, HealthIndex, HealthSums, IndexError, NewXorb, RepairIndex, Ticket, Totals,
    TotalsError, XorbHealth,
};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

type IndexFuture<'a, T> = BoxFuture<'a, Result<T, IndexError>>;

impl HealthIndex for FaultyIndex {
    fn find_health(&self, hash: XorbHash) -> IndexFuture<'_, Option<XorbHealth>> {
        self.faults.around("find_health", self.inner.find_health(hash), index_error).boxed()
    }

    fn due_xorbs(&self, before: Timestamp, limit: u32) -> IndexFuture<'_, Vec<XorbHealth>> {
        self.faults.around("due_xorbs", self.inner.due_xorbs(before, limit), index_error).boxed()
    }

    fn damaged_after(&self, after: Option<XorbHash>, limit: u32) -> IndexFuture<'_, Vec<XorbHealth>> {
        self.faults.around("damaged_after", self.inner.damaged_after(after, limit), index_error).boxed()
    }

    fn health_sums(&self) -> IndexFuture<'_, HealthSums> {
        self.faults.around("health_sums", self.inner.health_sums(), index_error).boxed()
    }

    fn affected_files(&self, hash: XorbHash, limit: u32) -> IndexFuture<'_, AffectedFiles> {
        self.faults.around("affected_files", self.inner.affected_files(hash, limit), index_error).boxed()
    }

    fn mark_damaged(&self, seen: XorbHealth, now: Timestamp) -> IndexFuture<'_, bool> {
        self.faults.around("mark_damaged", self.weakness.mark_damaged(&self.inner, seen, now), index_error).boxed()
    }

    fn mark_sound(&self, seen: XorbHealth, now: Timestamp) -> IndexFuture<'_, bool> {
        self.faults.around("mark_sound", self.inner.mark_sound(seen, now), index_error).boxed()
    }

    fn describe_xorb_again(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> IndexFuture<'_, ()> {
        self.faults
            .around(
                "describe_xorb_again",
                self.weakness.describe_xorb_again(&self.inner, xorb, ticket, now),
                index_error,
            )
            .boxed()
    }
}

impl RepairIndex for FaultyIndex {
    fn health_after(&self, after: Option<XorbHash>, limit: u32) -> IndexFuture<'_, Vec<XorbHealth>> {
        self.faults.around("health_after", self.inner.health_after(after, limit), index_error).boxed()
    }

    fn adopt_xorb(
        &self,
        xorb: NewXorb,
        incarnation: Incarnation,
        ticket: Ticket,
        now: Timestamp,
    ) -> IndexFuture<'_, bool> {
        self.faults.around("adopt_xorb", self.inner.adopt_xorb(xorb, incarnation, ticket, now), index_error).boxed()
    }

    fn adopt_blob(
        &self,
        xorb: NewXorb,
        ticket: Ticket,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> IndexFuture<'_, ()> {
        self.faults.around("adopt_blob", self.inner.adopt_blob(xorb, ticket, incarnation, now), index_error).boxed()
    }

    fn restore_xorb(&self, xorb: NewXorb, was: Incarnation, ticket: Ticket, now: Timestamp) -> IndexFuture<'_, bool> {
        self.faults.around("restore_xorb", self.inner.restore_xorb(xorb, was, ticket, now), index_error).boxed()
    }

    fn faulty_files(&self, after: Option<FileHash>) -> IndexFuture<'_, FaultPage> {
        self.faults.around("faulty_files", self.inner.faulty_files(after), index_error).boxed()
    }

    fn rebuild_references(&self, file: FileHash) -> IndexFuture<'_, bool> {
        self.faults.around("rebuild_references", self.inner.rebuild_references(file), index_error).boxed()
    }

    fn totals_drift(&self) -> IndexFuture<'_, TotalsError> {
        self.faults.around("totals_drift", self.inner.totals_drift(), index_error).boxed()
    }

    fn repair_totals(&self, drift: TotalsError) -> IndexFuture<'_, Totals> {
        self.faults.around("repair_totals", self.inner.repair_totals(drift), index_error).boxed()
    }

    fn future_times(&self, than: Timestamp) -> IndexFuture<'_, FutureTimes> {
        self.faults.around("future_times", self.inner.future_times(than), index_error).boxed()
    }

    fn clamp_times(
        &self,
        after: Option<XorbHash>,
        limit: u32,
        than: Timestamp,
        now: Timestamp,
    ) -> IndexFuture<'_, Option<XorbHash>> {
        let set = self.inner.clamp_times(after, limit, than, now);
        self.faults.around("clamp_times", set, index_error).boxed()
    }

    fn set_collection_back(&self, now: Timestamp) -> IndexFuture<'_, ()> {
        self.faults.around("set_collection_back", self.inner.set_collection_back(now), index_error).boxed()
    }
}
