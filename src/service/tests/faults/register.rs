//! Faults in each step of a registration.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{FaultyIndex, index_error};
use crate::format::ChunkHash;
use crate::index::{Begun, Cursor, Entered, IndexError, RegisterIndex, Registration};
use crate::runtime::clock::Timestamp;

impl RegisterIndex for FaultyIndex {
    fn begin_registration<'a>(&'a self, registration: &'a Registration) -> BoxFuture<'a, Result<Begun, IndexError>> {
        self.faults.around("begin_registration", self.inner.begin_registration(registration), index_error).boxed()
    }

    fn enter_files<'a>(
        &'a self,
        begun: Begun,
        registration: &'a Registration,
        from: Cursor,
    ) -> BoxFuture<'a, Result<Entered, IndexError>> {
        let entered = self.weakness.enter_files(&self.inner, begun, registration, from);
        self.faults.around("enter_files", entered, index_error).boxed()
    }

    fn publish_registration<'a>(&'a self, begun: Begun, record: Option<u64>) -> BoxFuture<'a, Result<(), IndexError>> {
        let published = self.inner.publish_registration(begun, record);
        self.faults.around("publish_registration", published, index_error).boxed()
    }

    fn enter_dedup<'a>(
        &'a self,
        registration: &'a Registration,
        from: usize,
        count: usize,
    ) -> BoxFuture<'a, Result<(), IndexError>> {
        self.faults.around("enter_dedup", self.inner.enter_dedup(registration, from, count), index_error).boxed()
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

    fn clear_registration(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.faults.around("clear_registration", self.inner.clear_registration(now), index_error).boxed()
    }

    fn abandon_registrations(&self, id: Option<i64>) -> BoxFuture<'_, Result<u64, IndexError>> {
        let abandoned = self.weakness.abandon_registrations(&self.inner, id);
        self.faults.around("abandon_registrations", abandoned, index_error).boxed()
    }
}
