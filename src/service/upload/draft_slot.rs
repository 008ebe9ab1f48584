//! The draft of an upload, which is created with the first written bytes.

use crate::blob::{BlobStore, Draft};
use crate::runtime::blocking::Pool;
use crate::service::error::StoreError;

/// A draft, if one was begun. When this is dropped, a blocking thread removes the draft. An upload
/// may be dropped anywhere, for example when its client disconnects, and removing a file takes
/// time.
#[derive(Debug)]
pub(super) struct DraftSlot {
    draft: Option<Box<dyn Draft>>,
    /// Bytes that may still be written. A draft that would be longer is removed.
    left: u64,
    pool: Pool,
}

impl DraftSlot {
    /// No draft yet.
    pub(super) const fn new(pool: Pool) -> Self {
        Self::limited(pool, u64::MAX)
    }

    /// No draft yet. A draft that would be longer than `max_len` is removed.
    pub(super) const fn limited(pool: Pool, max_len: u64) -> Self {
        Self { draft: None, left: max_len, pool }
    }

    /// Appends bytes to the draft, which the first call creates. If the draft would exceed its
    /// maximum length, removes it, and drops these and all further bytes. Blocks.
    pub(super) fn write(&mut self, blobs: &dyn BlobStore, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            self.left = 0;
            drop(self.draft.take());
            return Ok(());
        };
        self.left = left;
        let draft = match &mut self.draft {
            Some(draft) => draft,
            none => none.insert(blobs.draft()?),
        };
        Ok(draft.write(bytes)?)
    }

    /// Completes the draft: writes buffered bytes to the file. Blocks.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        Ok(self.draft.as_mut().map_or(Ok(()), |draft| draft.flush())?)
    }

    /// Removes the draft, and returns when it is removed, so that nothing is left of it after the
    /// response.
    pub(super) async fn discard(mut self) {
        if let Some(draft) = self.draft.take() {
            self.pool.run(move || drop(draft)).await;
        }
    }

    /// Returns the written bytes and removes the draft. Blocks.
    pub(super) fn into_bytes(mut self) -> Result<Vec<u8>, StoreError> {
        Ok(self.draft.take().map_or_else(|| Ok(Vec::new()), |draft| draft.into_bytes())?)
    }

    pub(super) fn into_draft(mut self) -> Option<Box<dyn Draft>> {
        self.draft.take()
    }
}

impl Drop for DraftSlot {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.pool.dispose(draft);
        }
    }
}
