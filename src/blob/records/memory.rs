//! Records in memory, for tests: the simplest implementation of the contract.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

use super::{BlobError, MAX_RECORD_LEN, PAGE_COUNT, RecordStore, Seq};
use crate::format::StoreId;

/// A [`RecordStore`] that forgets everything when it is dropped.
#[derive(Clone, Debug, Default)]
pub struct MemoryRecordStore {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<Seq, Bytes>,
    is_complete: bool,
    store_id: Option<StoreId>,
    /// The minimum for the number of the next record.
    next: Option<Seq>,
}

impl MemoryRecordStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the bytes of a record, as a failing disk does.
    pub fn damage(&self, seq: Seq, bytes: impl Into<Bytes>) {
        self.lock().records.insert(seq, bytes.into());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every statement leaves the map consistent, so a panic elsewhere does not corrupt it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordStore for MemoryRecordStore {
    fn append(&self, record: Bytes) -> BoxFuture<'_, Result<Seq, BlobError>> {
        if record.len() as u64 > MAX_RECORD_LEN {
            return ready(Err(BlobError::too_long("append a record", record.len() as u64))).boxed();
        }
        let mut state = self.lock();
        let seq = state.records.last_key_value().map(|(last, _)| last.next()).max(state.next).unwrap_or(Seq::new(0));
        state.records.insert(seq, record);
        state.next = Some(seq.next());
        ready(Ok(seq)).boxed()
    }

    fn list(&self, after: Option<Seq>) -> BoxFuture<'_, Result<Vec<Seq>, BlobError>> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = self.lock().records.range((after, Bound::Unbounded)).map(|(seq, _)| *seq).take(PAGE_COUNT).collect();
        ready(Ok(page)).boxed()
    }

    fn last(&self) -> BoxFuture<'_, Result<Option<Seq>, BlobError>> {
        let last = self.lock().records.last_key_value().map(|(seq, _)| *seq);
        ready(Ok(last)).boxed()
    }

    fn read(&self, seq: Seq) -> BoxFuture<'_, Result<Option<Bytes>, BlobError>> {
        let record = self.lock().records.get(&seq).cloned();
        ready(Ok(record)).boxed()
    }

    fn remove(&self, seq: Seq) -> BoxFuture<'_, Result<bool, BlobError>> {
        let removed = self.lock().records.remove(&seq).is_some();
        ready(Ok(removed)).boxed()
    }

    fn is_complete(&self) -> BoxFuture<'_, Result<bool, BlobError>> {
        let is_complete = self.lock().is_complete;
        ready(Ok(is_complete)).boxed()
    }

    fn set_complete(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        self.lock().is_complete = true;
        ready(Ok(())).boxed()
    }

    fn store_id(&self) -> BoxFuture<'_, Result<Option<StoreId>, BlobError>> {
        let id = self.lock().store_id;
        ready(Ok(id)).boxed()
    }

    fn set_store_id(&self, id: StoreId) -> BoxFuture<'_, Result<(), BlobError>> {
        let mut state = self.lock();
        let set = match state.store_id {
            None => {
                state.store_id = Some(id);
                Ok(())
            }
            Some(_) => Err(BlobError::io("make the file store", None, io::ErrorKind::AlreadyExists.into())),
        };
        ready(set).boxed()
    }

    fn reserve_through(&self, seq: Seq) {
        let mut state = self.lock();
        state.next = state.next.max(Some(seq.next()));
    }
}
