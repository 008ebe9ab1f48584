//! Quarantine and heal: what readers get of a xorb whose blob is known to be damaged, and how it comes back.
//!
//! What is true: from the moment at which the row says "damaged", no read of this process begins on its blob, and after
//! a heal none goes on with what it knew of the blob before. Other serializations have their chunks elsewhere, so a
//! reader with an old layout would get wrong bytes, and clients do not check them.
//!
//! The epoch makes that so. It counts whenever something that is known of a xorb turns false, *before* the blob is
//! replaced and again after the row was. Whoever opens a blob looks at the epoch afterwards; if it is not the one in
//! which the layout was read, the row is read again. A blob that was opened in time keeps its old bytes.
//!
//! Other processes can mark and delete, too; they let the generation of the index grow, which a server looks at every
//! second. They replace no blobs while it runs. What one of them deletes and this one takes again in another
//! serialization, all within that second, is not seen by whoever had found it before and has not opened it yet.
//!
//! A heal is blob first, then row. A crash between leaves a xorb that is damaged by its row and sound in truth: nobody
//! reads it, and the next scrub, fsck or upload finds out and describes the blob that is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{ReadError, StoreError};
use super::{Cas, StoredXorb};
use crate::blob::{BlobKey, Draft};
use crate::format::XorbHash;
use crate::index::{IndexErrorKind, NewXorb, Ticket};

/// How often something that was known of a xorb has turned false.
#[derive(Clone, Debug, Default)]
pub(super) struct Epoch(Arc<AtomicU64>);

impl Epoch {
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn advance(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Cas {
    /// Forgets what is known of a xorb, also for those who have it in their hands.
    pub(super) fn forget_layout(&self, hash: XorbHash) {
        self.epoch.advance();
        self.xorbs.invalidate(&hash);
    }

    /// The same for xorbs that are deleted: they may come again in another serialization. Costs every reader one look at
    /// the index, once, since the epoch is one for all.
    pub(super) fn forget_deleted(&self, hashes: &[XorbHash]) {
        if !hashes.is_empty() {
            self.epoch.advance();
        }
        for hash in hashes {
            self.xorbs.invalidate(hash);
        }
    }

    /// The same for all xorbs.
    pub(super) fn forget_layouts(&self) {
        self.epoch.advance();
        self.xorbs.invalidate_all();
    }

    /// Whether what is known of a xorb still holds, now that its blob was opened.
    pub(super) async fn check_current(&self, xorb: &StoredXorb) -> Result<(), ReadError> {
        if xorb.epoch == self.epoch.now() {
            return Ok(());
        }
        let hash = xorb.hash();
        match self.index.find_xorb(hash).await.map_err(StoreError::from)? {
            Some(row) if row.is_damaged => Err(ReadError::Quarantined { hash }),
            // The checksum alone is none against who chooses the bytes. Where all chunks are in the same places it does
            // not matter whose serialization they are.
            Some(row) if row.crc64 == xorb.crc64() && row.layout == *xorb.layout() => Ok(()),
            Some(_) => Err(ReadError::Replaced { hash }),
            None => {
                self.xorbs.invalidate(&hash);
                Err(ReadError::Deleted { hash })
            }
        }
    }

    /// Puts a blob in the place of a damaged one, and describes it. To be called under the publishing lock, with the
    /// ticket that was given out under it.
    pub(super) async fn replace_blob(
        &self,
        draft: Box<dyn Draft>,
        row: NewXorb,
        ticket: Ticket,
    ) -> Result<(), StoreError> {
        let hash = row.hash;
        self.forget_layout(hash);
        draft.publish(BlobKey::xorb(hash)).await?;
        let described = self.describe_blob(row, ticket).await;
        if matches!(&described, Err(StoreError::Index(error)) if error.kind == IndexErrorKind::Lost) {
            self.account_for(hash).await;
        }
        described?;
        tracing::info!(xorb = %hash, "repaired a damaged xorb by a new upload");
        Ok(())
    }

    /// Describes the blob that is there. Under the lock, and with the ticket of the row, like above.
    pub(super) async fn describe_blob(&self, row: NewXorb, ticket: Ticket) -> Result<(), StoreError> {
        let hash = row.hash;
        let healed = self.index.heal_xorb(row, ticket, self.clock.now()).await;
        // Also where that failed: it may have been done all the same.
        self.forget_layout(hash);
        healed?;
        self.metrics.repaired.inc();
        Ok(())
    }
}
