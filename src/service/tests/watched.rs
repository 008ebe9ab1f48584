//! A blob store that counts operations, and whose reads can hang.

use std::future::pending;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, once};

use crate::blob::memory::MemoryBlobStore;
use crate::blob::{BlobError, BlobKey, BlobStore, BlobStream, Draft};
use crate::format::ByteRange;

/// Blobs in memory, with a count of the operations.
#[derive(Clone, Debug)]
pub(super) struct WatchedBlobs {
    inner: MemoryBlobStore,
    call_count: Arc<AtomicUsize>,
    stuck: Arc<Mutex<Stuck>>,
}

/// Which reads return one piece and then never end.
#[derive(Clone, Copy, Debug, Default)]
enum Stuck {
    #[default]
    None,
    All,
    Of(BlobKey),
}

impl WatchedBlobs {
    pub(super) fn new(inner: MemoryBlobStore) -> Self {
        Self { inner, call_count: Arc::default(), stuck: Arc::default() }
    }

    /// The number of operations.
    pub(super) fn call_count(&self) -> usize {
        self.call_count.load(Ordering::SeqCst)
    }

    /// Sets whether new reads return one piece and then never end.
    pub(super) fn set_stuck(&self, is_stuck: bool) {
        *self.stuck.lock().unwrap() = if is_stuck { Stuck::All } else { Stuck::None };
    }

    /// Lets only reads of this blob hang.
    pub(super) fn stick_to(&self, key: BlobKey) {
        *self.stuck.lock().unwrap() = Stuck::Of(key);
    }

    /// Counts an operation; returns the store that performs it.
    fn count(&self) -> &MemoryBlobStore {
        self.call_count.fetch_add(1, Ordering::SeqCst);
        &self.inner
    }
}

impl BlobStore for WatchedBlobs {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        self.count().draft()
    }

    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        let read = self.count().read(key, range);
        let is_stuck = match *self.stuck.lock().unwrap() {
            Stuck::None => false,
            Stuck::All => true,
            Stuck::Of(stuck) => stuck == key,
        };
        async move {
            let Some(blob) = read.await? else { return Ok(None) };
            Ok(Some(if is_stuck { blob.take(1).chain(once(pending())).boxed() } else { blob }))
        }
        .boxed()
    }

    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        self.count().head(key)
    }

    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>> {
        self.count().delete(key)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        self.count().list()
    }

    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        self.count().remove_stray_drafts()
    }

    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        self.count().free_len()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        self.count().probe()
    }
}
