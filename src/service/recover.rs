//! What a start does before it serves: clears up what a process that died has left.
//!
//! Costs one indexed read and as much as there is to clear, whatever is stored: the rows know what was under way, so
//! no folder is walked and no blob is opened.

use super::Cas;
use super::error::StoreError;
use crate::blob::BlobKey;
use crate::index::XorbState;

/// What was cleared up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Drafts that were never published.
    pub drafts: usize,
    /// Rows that never went live, or whose deletion was not finished.
    pub rows: usize,
}

impl Cas {
    /// Removes drafts and unfinished rows. Only before the first request: it takes every draft for a dead one. And only
    /// while nobody collects garbage of this store: it deletes blobs.
    ///
    /// # Errors
    ///
    /// The store failed; what is left is cleared up next time.
    pub async fn recover(&self) -> Result<Recovered, StoreError> {
        let Recovered { drafts, .. } = self.recover_drafts().await?;
        let unfinished = self.index.unfinished_xorbs().await?;
        let rows = unfinished.len();
        for (hash, state) in unfinished {
            if state == XorbState::Staged {
                self.index.abandon_xorb(hash, self.clock.now()).await?;
            }
            self.blobs.delete(BlobKey::xorb(hash)).await?;
            self.index.forget_xorb(hash).await?;
        }
        Ok(Recovered { drafts, rows })
    }

    /// Removes drafts and abandons registrations that were being written, and leaves the rows of xorbs to whoever deletes
    /// blobs at this moment. Only before the first request.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn recover_drafts(&self) -> Result<Recovered, StoreError> {
        let drafts = self.blobs.remove_stray_drafts().await?;
        self.index.abandon_registrations(None).await?;
        let now = self.clock.now();
        while self.index.clear_registration(now).await? {}
        Ok(Recovered { drafts, rows: 0 })
    }
}
