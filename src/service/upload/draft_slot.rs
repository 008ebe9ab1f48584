//! The draft of an upload, which may not have begun yet.

use crate::blob::{BlobStore, Draft};
use crate::runtime::blocking::Pool;
use crate::service::error::StoreError;

/// A draft, if it has begun. When this is dropped, a blocking thread removes the draft: that takes
/// time, and an upload may end anywhere, as when its client disconnects.
#[derive(Debug)]
pub(super) struct DraftSlot {
    draft: Option<Box<dyn Draft>>,
    /// Bytes that it may still have. A longer draft is discarded.
    left: u64,
    pool: Pool,
}

impl DraftSlot {
    /// None yet.
    pub(super) const fn new(pool: Pool) -> Self {
        Self::limited(pool, u64::MAX)
    }

    /// None yet, and none at the end if it would have more bytes than this.
    pub(super) const fn limited(pool: Pool, max_len: u64) -> Self {
        Self { draft: None, left: max_len, pool }
    }

    /// Appends bytes to the draft, which begins with the first of them. Blocks.
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

    /// Writes the buffered bytes: the draft is complete now. Blocks.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        Ok(self.draft.as_mut().map_or(Ok(()), |draft| draft.flush())?)
    }

    /// Removes the draft, and waits for that: a client that got the response finds nothing of it.
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
