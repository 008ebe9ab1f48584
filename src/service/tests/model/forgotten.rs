//! A record store that discards everything: the model never reads records.
//!
//! The model has no rebuild. Also, each of its processes would need the same record store. Tests in
//! `service::tests::agree` cover the records that a collection must retain.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

use crate::blob::BlobError;
use crate::blob::records::{RecordStore, Seq};
use crate::format::StoreId;

/// A record store that is always empty.
#[derive(Debug)]
pub(super) struct ForgottenRecords {
    pub(super) id: StoreId,
    next: AtomicU64,
}

impl ForgottenRecords {
    pub(super) const fn new(id: StoreId) -> Self {
        Self { id, next: AtomicU64::new(0) }
    }
}

impl RecordStore for ForgottenRecords {
    fn append(&self, _: Bytes) -> BoxFuture<'_, Result<Seq, BlobError>> {
        ready(Ok(Seq::new(self.next.fetch_add(1, Ordering::Relaxed)))).boxed()
    }

    fn read(&self, _: Seq) -> BoxFuture<'_, Result<Option<Bytes>, BlobError>> {
        ready(Ok(None)).boxed()
    }

    fn list(&self, _: Option<Seq>) -> BoxFuture<'_, Result<Vec<Seq>, BlobError>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn last(&self) -> BoxFuture<'_, Result<Option<Seq>, BlobError>> {
        ready(Ok(None)).boxed()
    }

    fn remove(&self, _: Seq) -> BoxFuture<'_, Result<bool, BlobError>> {
        ready(Ok(true)).boxed()
    }

    fn is_complete(&self) -> BoxFuture<'_, Result<bool, BlobError>> {
        ready(Ok(false)).boxed()
    }

    fn set_complete(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        ready(Ok(())).boxed()
    }

    fn store_id(&self) -> BoxFuture<'_, Result<Option<StoreId>, BlobError>> {
        ready(Ok(Some(self.id))).boxed()
    }

    fn set_store_id(&self, _: StoreId) -> BoxFuture<'_, Result<(), BlobError>> {
        ready(Ok(())).boxed()
    }

    fn reserve_through(&self, _: Seq) {}
}
