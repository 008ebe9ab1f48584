//! Faults in each step of a registration.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{FaultyIndex, index_error};
use crate::format::ChunkHash;
use crate::index::{
    Cursor, IndexError, OpenRegistration, RegisterIndex, Registered, Registration, StepOutcome, StoreLock,
    StoreLockIndex, StoreLockKeys,
};
use crate::runtime::clock::Timestamp;

impl RegisterIndex for FaultyIndex {
    fn register_of<'a>(
        &'a self,
        registration: &'a Registration,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Option<Registered>, IndexError>> {
        self.faults.around("register", self.weakness.register(&self.inner, registration, record), index_error).boxed()
    }

    fn begin_registration<'a>(
        &'a self,
        registration: &'a Registration,
    ) -> BoxFuture<'a, Result<OpenRegistration, IndexError>> {
        self.faults.around("begin_registration", self.inner.begin_registration(registration), index_error).boxed()
    }

    fn write_step<'a>(
        &'a self,
        begun: OpenRegistration,
        registration: &'a Registration,
        from: Cursor,
    ) -> BoxFuture<'a, Result<StepOutcome, IndexError>> {
        let entered = self.weakness.write_step(&self.inner, begun, registration, from);
        self.faults.around("write_step", entered, index_error).boxed()
    }

    fn publish_registration<'a>(
        &'a self,
        begun: OpenRegistration,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<(), IndexError>> {
        let published = self.inner.publish_registration(begun, record);
        self.faults.around("publish_registration", published, index_error).boxed()
    }

    fn write_dedup_step<'a>(
        &'a self,
        registration: &'a Registration,
        from: usize,
        count: usize,
    ) -> BoxFuture<'a, Result<(), IndexError>> {
        self.faults
            .around("write_dedup_step", self.inner.write_dedup_step(registration, from, count), index_error)
            .boxed()
    }

    fn dedup_chunk_count(&self) -> BoxFuture<'_, Result<u64, IndexError>> {
        self.faults.around("dedup_chunk_count", self.inner.dedup_chunk_count(), index_error).boxed()
    }

    fn dedup_chunks_after(
        &self,
        after: Option<ChunkHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>> {
        self.faults.around("dedup_chunks_after", self.inner.dedup_chunks_after(after, limit), index_error).boxed()
    }

    fn sweep_registrations(&self, id: Option<i64>, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("sweep_registrations", self.inner.sweep_registrations(id, now), index_error).boxed()
    }

    fn abandon_registrations(&self, id: Option<i64>) -> BoxFuture<'_, Result<u64, IndexError>> {
        let abandoned = self.weakness.abandon_registrations(&self.inner, id);
        self.faults.around("abandon_registrations", abandoned, index_error).boxed()
    }

    fn abandon_registrations_of_ended(&self) -> BoxFuture<'_, Result<u64, IndexError>> {
        self.inner.abandon_registrations_of_ended()
    }
}

impl StoreLockIndex for FaultyIndex {
    fn has_other_clocks(&self) -> bool {
        self.faults.is_shared()
    }

    fn is_shared(&self) -> bool {
        self.faults.is_shared() || self.inner.is_shared()
    }

    fn try_lock_store(&self, keys: StoreLockKeys) -> BoxFuture<'_, Result<Option<StoreLock>, IndexError>> {
        self.faults.around("try_lock_store", self.inner.try_lock_store(keys), index_error).boxed()
    }
}
