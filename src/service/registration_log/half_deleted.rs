//! Xorbs whose deletion was interrupted and that an unapplied record needs.
//!
//! A registration may lose a race against a collection: its record is durable, but the row of a
//! xorb is `Deleting`. A crash may then come before the blob is deleted or the record is rolled
//! back. An index that was restored from a copy can look the same, although the store went on. The
//! deletion was completed, the xorb was uploaded again, and the record is that of an acknowledged
//! file. So the deletion must not be completed. Instead the blob is verified and gets a new row,
//! and the record is applied like every other one.

use std::collections::HashSet;

use super::tail::Need;
use crate::blob::BlobKey;
use crate::format::XorbHash;
use crate::index::{Ticket, XorbState};
use crate::service::Store;
use crate::service::error::StoreError;
use crate::service::verify::{BlobVerifier, Pace, Verdict};

impl Store {
    /// Restores xorbs with an interrupted deletion where an unapplied record needs them. To be
    /// called before [`agree`](Self::agree), and only while no other process deletes blobs or uses
    /// the store. Returns their number.
    ///
    /// A crash in the middle leaves a blob without a row. `agree` then refuses the index, and a
    /// rebuild of the index restores the xorb.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn restore_half_deleted(&self) -> Result<usize, StoreError> {
        let unfinished = self.index.unfinished_xorbs().await?;
        let deleting = unfinished.into_iter().filter(|(_, state)| *state == XorbState::Deleting);
        let deleting: HashSet<XorbHash> = deleting.map(|(hash, _)| hash).collect();
        let mark = self.index.store_mark().await?;
        // If the index and the directory are of different stores, `agree` reports it.
        if deleting.is_empty() || mark.id.is_none() || mark.id != self.records.store_id().await? {
            return Ok(0);
        }
        let Ok((_, needs)) = self.read_tail_needs(&mark).await? else { return Ok(0) };
        let needed: HashSet<XorbHash> = needs.into_values().flat_map(Need::into_xorbs).collect();
        let mut count = 0;
        for xorb in needed.intersection(&deleting) {
            count += usize::from(self.restore_xorb(*xorb).await?);
        }
        Ok(count)
    }

    /// Gives a blob a new row in place of one in `Deleting`. Returns whether the blob exists and is
    /// sound.
    async fn restore_xorb(&self, xorb: XorbHash) -> Result<bool, StoreError> {
        let Some(incarnation) = self.index.incarnation_of(xorb).await? else { return Ok(false) };
        let key = BlobKey::new(xorb, incarnation);
        if self.blobs.head(key).await?.is_none() {
            return Ok(false);
        }
        let verifier = BlobVerifier { blobs: self.blobs.clone(), pool: self.pool.clone() };
        let Verdict::Sound(proven) = verifier.verify(key, None, &mut Pace::new(None)).await? else {
            return Ok(false);
        };
        self.index.forget_xorb(xorb).await?;
        let (row, ticket) = (proven.into_row(), Ticket::random());
        let is_restored = self.index.adopt_xorb(row, incarnation, ticket, self.clock.now()).await?;
        tracing::warn!(%xorb, "restored a xorb whose deletion was interrupted: an unapplied record needs it");
        Ok(is_restored)
    }
}
