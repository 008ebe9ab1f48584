//! Records in memory: what the contract means, without a disk in the way. For tests.

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
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    records: BTreeMap<Seq, Bytes>,
    is_complete: bool,
    store_id: Option<StoreId>,
    /// The least number of the next record.
    next: Option<Seq>,
}

impl MemoryRecordStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the bytes of a record behind everybody's back, as a failing disk does.
    pub fn damage(&self, seq: Seq, bytes: impl Into<Bytes>) {
        self.lock().records.insert(seq, bytes.into());
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Every statement leaves the map consistent, so a panic elsewhere does not corrupt it.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordStore for MemoryRecordStore {
    fn append(&self, record: Bytes) -> BoxFuture<'_, Result<Seq, BlobError>> {
        if record.len() as u64 > MAX_RECORD_LEN {
            return ready(Err(BlobError::too_long("append a record", record.len() as u64))).boxed();
        }
        let mut kept = self.lock();
        let seq = kept.records.last_key_value().map(|(last, _)| last.next()).max(kept.next).unwrap_or(Seq::new(0));
        kept.records.insert(seq, record);
        kept.next = Some(seq.next());
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
        let mut kept = self.lock();
        let set = match kept.store_id {
            None => {
                kept.store_id = Some(id);
                Ok(())
            }
            Some(_) => Err(BlobError::io("make the file store", None, io::ErrorKind::AlreadyExists.into())),
        };
        ready(set).boxed()
    }

    fn start_behind(&self, seq: Seq) {
        let mut kept = self.lock();
        kept.next = kept.next.max(Some(seq.next()));
    }
}
