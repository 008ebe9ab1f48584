//! Xorbs whose upload or deletion was interrupted and that an unapplied record needs.
//!
//! A registration may lose a race against a collection: its record is durable, but the row of a
//! xorb is `Deleting`. A crash may then come before the blob is deleted or the record is rolled
//! back. An index that was restored from a copy can look the same, although the store went on. The
//! deletion was completed, the xorb was uploaded again, and the record is that of an acknowledged
//! file. So the deletion must not be completed. A `Staged` row can have the blob, too, if the
//! deletion was completed and a crash came during the next upload.
//!
//! In both cases the blob is verified and copied to a new name, which the row gets as it goes live.
//! The record is then applied like every other one. The old name becomes a dead object, because an
//! S3 store may still execute a request of an ended server that deletes it.

use std::collections::HashSet;

use super::tail::Need;
use crate::blob::{BlobKey, Draft};
use crate::format::XorbHash;
use crate::index::Ticket;
use crate::service::Store;
use crate::service::error::StoreError;
use crate::service::verify::{BlobVerifier, Pace, Verdict};

impl Store {
    /// Restores xorbs with an interrupted upload or deletion where an unapplied record needs them.
    /// To be called before [`agree`](Self::agree), and only while no other process deletes blobs or
    /// uses the store. Returns their number.
    ///
    /// A crash in the middle leaves the row as it was, and a pending object; the next start begins
    /// again.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn restore_half_deleted(&self) -> Result<usize, StoreError> {
        let unfinished = self.index.unfinished_xorbs().await?;
        let unfinished: HashSet<XorbHash> = unfinished.into_iter().map(|(hash, _)| hash).collect();
        let mark = self.index.store_mark().await?;
        // If the index and the directory are of different stores, `agree` reports it.
        if unfinished.is_empty() || mark.id.is_none() || mark.id != self.records.store_id().await? {
            return Ok(0);
        }
        let Ok((_, needs)) = self.read_tail_needs(&mark).await? else { return Ok(0) };
        let mut needed: HashSet<XorbHash> = needs.into_values().flat_map(Need::into_xorbs).collect();
        self.add_needs_of_open(&mut needed).await?;
        let mut count = 0;
        for xorb in needed.intersection(&unfinished) {
            if self.restore_xorb(*xorb).await? {
                tracing::warn!(%xorb, "restored a xorb whose upload or deletion was interrupted: an unapplied record needs it");
                count += 1;
            }
        }
        Ok(count)
    }

    /// Gives an unfinished row a copy of the blob that it names, and makes it live. Returns whether
    /// the blob exists and is sound.
    pub(super) async fn restore_xorb(&self, xorb: XorbHash) -> Result<bool, StoreError> {
        let Some(was) = self.index.incarnation_of(xorb).await? else { return Ok(false) };
        let (key, ticket) = (BlobKey::new(xorb, was), Ticket::random());
        if self.blobs.head(key).await?.is_none() {
            return Ok(false);
        }
        let verifier = BlobVerifier { blobs: self.blobs.clone(), pool: self.pool.clone() };
        let Verdict::Sound(proven) = verifier.verify(key, None, &mut Pace::new(None)).await? else {
            return Ok(false);
        };
        let Some(draft) = verifier.copy(key, &proven).await? else { return Ok(false) };
        let (name, len) = (ticket.incarnation(), proven.serialized_len());
        self.index.begin_object(xorb, name, len, self.clock.now()).await?;
        Draft::publish(draft, BlobKey::new(xorb, name)).await?;
        Ok(self.index.restore_xorb(proven.into_row(), was, ticket, self.clock.now()).await?)
    }
}
