//! Recovery at a start: removes unfinished work of the last process.
//!
//! After `Ok` of [`Store::recover`] every row is live or condemned, and there are no drafts and no
//! abandoned registrations. After a crash the next start continues. The rows show which work is
//! unfinished, so no blob is opened. Blobs without a row are not found here, but by `zorb fsck`.
//!
//! A server that joins others ([`Store::join`]) removes only its own drafts. What a server has left
//! that died while others went on is removed later: rows of xorbs by garbage collection after a
//! day, registrations and records by [`Store::settle_ended`].

use super::error::StoreError;
use super::{Gap, Store};
use crate::blob::BlobKey;
use crate::blob::records::Seq;
use crate::index::XorbState;

/// Numbers of removed items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Drafts that were never published.
    pub drafts: usize,
    /// Rows that never went live, or whose deletion was not completed.
    pub rows: usize,
}

impl Store {
    /// Checks that index and blobs are of one store, and removes the drafts of this server. For a
    /// server that joins others, before its first request.
    ///
    /// # Errors
    ///
    /// See [`Gap`]; or the store failed.
    pub async fn join(&self) -> Result<Recovered, Gap> {
        let mark = self.mark_of_store().await?;
        // The server that has the store alone at its start reserves them only in its memory.
        let newest = self.records.last().await.map_err(StoreError::from)?;
        for seq in [newest, mark.last_record.map(Seq::new)].into_iter().flatten() {
            self.records.reserve_through(seq);
        }
        let drafts = self.blobs.remove_stray_drafts().await.map_err(StoreError::from)?;
        Ok(Recovered { drafts, rows: 0 })
    }

    /// Removes drafts and unfinished rows. To be called before the first request, because it
    /// removes every draft. No other process may collect garbage of this store meanwhile, because
    /// this also deletes blobs.
    ///
    /// # Errors
    ///
    /// The store failed; the next start continues.
    pub async fn recover(&self) -> Result<Recovered, StoreError> {
        let Recovered { drafts, .. } = self.recover_drafts().await?;
        let unfinished = self.index.unfinished_xorbs().await?;
        let rows = unfinished.len();
        for (hash, state) in unfinished {
            if state == XorbState::Staged {
                self.index.abandon_xorb(hash, self.clock.now()).await?;
            }
            if let Some(incarnation) = self.index.incarnation_to_delete(hash).await? {
                self.blobs.delete(BlobKey::new(hash, incarnation)).await?;
            }
            self.index.forget_xorb(hash).await?;
        }
        Ok(Recovered { drafts, rows })
    }

    /// Removes drafts and abandons unfinished registrations. Does not touch the rows of xorbs,
    /// because another process may be deleting blobs now. To be called before the first request.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn recover_drafts(&self) -> Result<Recovered, StoreError> {
        let drafts = self.blobs.remove_stray_drafts().await?;
        self.discard_abandoned().await?;
        Ok(Recovered { drafts, rows: 0 })
    }

    /// Abandons unfinished registrations and discards their rows. To be called before the first
    /// request.
    pub(super) async fn discard_abandoned(&self) -> Result<(), StoreError> {
        self.index.abandon_registrations(None).await?;
        let now = self.clock.now();
        while self.index.sweep_registrations(None, now).await? {}
        Ok(())
    }
}
