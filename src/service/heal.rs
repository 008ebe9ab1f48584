//! Quarantine and heal: how readers are kept off a damaged blob, and how its xorb is repaired.
//!
//! Once the row says "damaged", no read of this process begins on the blob. After a heal, no read
//! continues with a layout from before. Another serialization has its chunks at other offsets, so
//! an old layout gives wrong bytes, and clients do not check them.
//!
//! The epoch ensures that. It advances *before* the blob is replaced and again after the row was,
//! or whenever else a known layout becomes wrong. A reader compares the epoch after it has opened a
//! blob. If the layout was read in another epoch, the row is read again. A blob that was opened in
//! time has its old bytes.
//!
//! Other processes can mark and delete, too. They advance the generation of the index, which a
//! server polls every second. They replace no blobs while it runs. One case within that second is
//! not covered: another process deletes a xorb, and this one stores it again in another
//! serialization. A reader that has found the old layout and has not opened the blob yet does not
//! notice.
//!
//! A heal is blob first, then row. A crash between leaves a sound xorb that its row calls damaged.
//! It is not read, and the next scrub, fsck or upload describes the blob again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{ReadError, StoreError};
use super::{Cas, StoredXorb};
use crate::blob::{BlobKey, Draft};
use crate::format::XorbHash;
use crate::index::{IndexErrorKind, NewXorb, Ticket};

/// Counts the times that a known layout became wrong.
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
    /// Forgets the layout of a xorb, also for readers that hold it.
    pub(super) fn forget_layout(&self, hash: XorbHash) {
        self.epoch.advance();
        self.xorbs.invalidate(&hash);
    }

    /// The same for deleted xorbs: they may be uploaded again in another serialization. The epoch
    /// is one for all xorbs, so every reader checks the index once.
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

    /// Checks, after a blob was opened, that the xorb's layout still holds.
    pub(super) async fn check_current(&self, xorb: &StoredXorb) -> Result<(), ReadError> {
        if xorb.epoch == self.epoch.now() {
            return Ok(());
        }
        let hash = xorb.hash();
        match self.index.find_xorb(hash).await.map_err(StoreError::from)? {
            Some(row) if row.is_damaged => Err(ReadError::Quarantined { hash }),
            // A CRC is no protection against chosen bytes. Where all chunks have the same offsets,
            // it does not matter whose serialization they are.
            Some(row) if row.crc64 == xorb.crc64() && row.layout == *xorb.layout() => Ok(()),
            Some(_) => Err(ReadError::Replaced { hash }),
            None => {
                self.xorbs.invalidate(&hash);
                Err(ReadError::Deleted { hash })
            }
        }
    }

    /// Replaces a damaged blob, and describes the new one. To be called under the publish lock,
    /// with the ticket that was issued under it.
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

    /// Describes the stored blob. Under the publish lock and with the row's ticket, as above.
    pub(super) async fn describe_blob(&self, row: NewXorb, ticket: Ticket) -> Result<(), StoreError> {
        let hash = row.hash;
        let healed = self.index.heal_xorb(row, ticket, self.clock.now()).await;
        // Also after an error: the transaction may have been committed.
        self.forget_layout(hash);
        healed?;
        self.metrics.repaired.inc();
        Ok(())
    }
}
