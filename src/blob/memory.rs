//! Blobs in memory, for tests: the simplest implementation of the contract.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use futures_util::stream::{StreamExt, iter};

use super::{BlobError, BlobKey, BlobStore, BlobStream, Draft};
use crate::format::ByteRange;

/// Bytes per piece of a read. They are few, so that tests see many pieces.
const PIECE_LEN: usize = 1000;

/// A [`BlobStore`] that forgets everything when it is dropped.
#[derive(Clone, Debug, Default)]
pub struct MemoryBlobStore {
    blobs: Arc<Mutex<HashMap<BlobKey, Bytes>>>,
}

impl MemoryBlobStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the bytes of a blob, as a failing disk does.
    pub fn damage(&self, key: BlobKey, bytes: impl Into<Bytes>) {
        self.lock().insert(key, bytes.into());
    }

    /// The key of the only blob of a xorb.
    ///
    /// # Panics
    ///
    /// The xorb has no blob, or several.
    #[cfg(test)]
    #[must_use]
    pub fn key_of(&self, hash: crate::format::XorbHash) -> BlobKey {
        let blobs = self.lock();
        let keys: Vec<_> = blobs.keys().filter(|key| key.xorb_hash() == hash).copied().collect();
        assert_eq!(keys.len(), 1, "{keys:?}");
        keys[0]
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BlobKey, Bytes>> {
        // Every statement leaves the map consistent, so a panic elsewhere does not corrupt it.
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlobStore for MemoryBlobStore {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        Ok(Box::new(MemoryDraft { bytes: Vec::new(), store: self.clone() }))
    }

    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        let blob = self.lock().get(&key).cloned();
        ready(Ok(blob.map(|blob| iter(pieces(key, &blob, range)).boxed()))).boxed()
    }

    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        let len = self.lock().get(&key).map(|blob| blob.len() as u64);
        ready(Ok(len)).boxed()
    }

    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>> {
        let removed = self.lock().remove(&key).is_some();
        ready(Ok(removed)).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        let keys = self.lock().keys().copied().collect();
        ready(Ok(keys)).boxed()
    }

    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        ready(Ok(0)).boxed()
    }

    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        ready(Ok(None)).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        ready(Ok(())).boxed()
    }
}

/// The pieces of `range`. If the blob is shorter, an error follows the last piece.
fn pieces(key: BlobKey, blob: &Bytes, range: ByteRange) -> Vec<Result<Bytes, BlobError>> {
    let len = blob.len() as u64;
    let start = usize::try_from(range.start().min(len)).unwrap_or(usize::MAX);
    let end = usize::try_from(range.end().min(len)).unwrap_or(usize::MAX);
    let present = blob.slice(start..end);
    let mut pieces: Vec<_> = present.chunks(PIECE_LEN).map(|piece| Ok(present.slice_ref(piece))).collect();
    if range.end() > len {
        pieces.push(Err(BlobError::short(key, range, len)));
    }
    pieces
}

#[derive(Debug)]
struct MemoryDraft {
    bytes: Vec<u8>,
    store: MemoryBlobStore,
}

impl Draft for MemoryDraft {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BlobError> {
        Ok(())
    }

    fn into_bytes(self: Box<Self>) -> Result<Vec<u8>, BlobError> {
        Ok(self.bytes)
    }

    fn publish(self: Box<Self>, key: BlobKey) -> BoxFuture<'static, Result<(), BlobError>> {
        let Self { bytes, store } = *self;
        store.lock().insert(key, bytes.into());
        ready(Ok(())).boxed()
    }
}
