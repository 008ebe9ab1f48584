//! Recovery at a start: clears up what a dead process has left.
//!
//! Costs one indexed read and the clearing itself, whatever is stored. The rows show what was under
//! way, so no directory is walked and no blob is opened.

use super::Cas;
use super::error::StoreError;
use crate::blob::BlobKey;
use crate::index::XorbState;

/// The cleared items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Drafts that were never published.
    pub drafts: usize,
    /// Rows that never went live, or whose deletion was not completed.
    pub rows: usize,
}

impl Cas {
    /// Removes drafts and unfinished rows. Only before the first request, since it takes every
    /// draft for a dead one. And only while no other process collects garbage of this store, since
    /// it deletes blobs.
    ///
    /// # Errors
    ///
    /// The store failed; the rest is cleared up next time.
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

    /// Removes drafts and abandons unfinished registrations. Leaves the rows of xorbs to the
    /// process that deletes blobs now. Only before the first request.
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
