//! A blob store that discards everything. A restore into it verifies an archive without storing
//! anything.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

use crate::blob::{BlobError, BlobKey, BlobStore, BlobStream, Draft};
use crate::format::ByteRange;

/// A blob store that accepts every blob and stores none. The same type implements its drafts.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBlobs;

impl BlobStore for NoBlobs {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        Ok(Box::new(Self))
    }

    fn read(&self, _: BlobKey, _: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        ready(Ok(None)).boxed()
    }

    fn head(&self, _: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        ready(Ok(None)).boxed()
    }

    fn delete(&self, _: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>> {
        ready(Ok(false)).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        ready(Ok(Vec::new())).boxed()
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

impl Draft for NoBlobs {
    fn write(&mut self, _: &[u8]) -> Result<(), BlobError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BlobError> {
        Ok(())
    }

    fn into_bytes(self: Box<Self>) -> Result<Vec<u8>, BlobError> {
        Ok(Vec::new())
    }

    fn publish(self: Box<Self>, _: BlobKey) -> BoxFuture<'static, Result<(), BlobError>> {
        ready(Ok(())).boxed()
    }
}
