//! Quarantine and repair: how readers are kept from a damaged blob, and how its xorb is repaired.
//!
//! Once the row marks the blob as damaged, this process begins no further read of the blob. Another
//! serialization of the xorb has its chunks at other offsets, and clients do not check the bytes.
//! So a read with a wrong layout would return wrong data. Therefore each serialization has a blob
//! of its own, and a layout is used only for the blob that it describes.
//!
//! An upload replaces a damaged blob with any serialization, and a sound one with a much shorter
//! serialization ([`is_worth`]). Objects are blobs that no row names. The new blob begins as a
//! pending object, is published, and is then named by the row; the old one becomes a dead object. A
//! crash leaves the old blob in use, and at most an object whose blob is deleted later. Until its
//! deletion, a sound blob that was replaced is still read by readers that have its layout, and for
//! URLs that name it.
//!
//! The epoch is a counter that advances whenever a layout in memory becomes wrong. A reader
//! compares epochs after it has opened a blob. If its layout was read in another epoch, the reader
//! reads the row again. Other processes can mark and delete xorbs, too. Such a process advances the
//! generation, a counter in the index, which each server polls every second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use moka::sync::Cache;

use super::error::{ReadError, StoreError};
use super::{Store, StoredXorb};
use crate::blob::{BlobKey, BlobStream, Draft};
use crate::format::{ByteRange, XorbHash};
use crate::index::{Index, IndexErrorKind, NewXorb, Ticket};
use crate::runtime::clock::Clock;
use crate::runtime::incarnation::Incarnation;

/// Whether a serialization of `new_len` bytes replaces a sound one of `stored_len` bytes: it must
/// have at most three quarters of the length. With this limit a xorb is replaced a few times at
/// most.
pub(super) const fn is_worth(new_len: u64, stored_len: u64) -> bool {
    new_len <= max_worth(stored_len)
}

/// The greatest length of a serialization that replaces a stored one of this length.
pub(super) const fn max_worth(stored_len: u64) -> u64 {
    stored_len / 4 * 3 + stored_len % 4 * 3 / 4
}

/// Publishes a blob, and makes the row of its xorb name it in place of the old one. The row must
/// have this ticket, and the name of the new blob is made from it.
pub(super) async fn publish_in_place(
    index: &dyn Index,
    draft: Box<dyn Draft>,
    row: NewXorb,
    ticket: Ticket,
    clock: &dyn Clock,
) -> Result<(), StoreError> {
    let (hash, incarnation) = (row.hash, ticket.incarnation());
    index.begin_object(hash, incarnation, row.layout.serialized_len(), clock.now()).await?;
    draft.publish(BlobKey::new(hash, incarnation)).await?;
    // Read the clock again: the retention of the old blob begins now, not before the publication.
    Ok(index.replace_xorb(row, ticket, incarnation, clock.now()).await?)
}

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

/// Layouts of visible xorbs in memory, and their epoch.
#[derive(Clone, Debug)]
pub(super) struct LayoutCache {
    pub(super) xorbs: Cache<XorbHash, Arc<StoredXorb>>,
    pub(super) epoch: Epoch,
}

impl LayoutCache {
    /// An empty cache for up to `max_len` bytes of layouts.
    pub(super) fn new(max_len: u64) -> Self {
        let xorbs = Cache::builder().weigher(|_, xorb: &Arc<StoredXorb>| xorb.weight()).max_capacity(max_len).build();
        Self { xorbs, epoch: Epoch::default() }
    }
}

impl Store {
    /// Forgets the layout of a xorb, also for readers that hold it.
    pub(super) fn forget_layout(&self, hash: XorbHash) {
        self.layouts.epoch.advance();
        self.layouts.xorbs.invalidate(&hash);
    }

    /// Forgets the layouts of deleted xorbs, which may be uploaded again in another serialization.
    /// The epoch covers all xorbs, so each reader of any xorb then checks the index once.
    pub(super) fn forget_deleted(&self, hashes: &[XorbHash]) {
        if !hashes.is_empty() {
            self.layouts.epoch.advance();
        }
        for hash in hashes {
            self.layouts.xorbs.invalidate(hash);
        }
    }

    /// Forgets all layouts, also for readers that hold one.
    pub(super) fn forget_layouts(&self) {
        self.layouts.epoch.advance();
        self.layouts.xorbs.invalidate_all();
    }

    /// Opens the blob of this layout.
    pub(super) async fn open(&self, xorb: &StoredXorb, bytes: ByteRange) -> Result<BlobStream, ReadError> {
        let hash = xorb.hash();
        if xorb.is_damaged() {
            return Err(ReadError::Quarantined { hash });
        }
        let key = BlobKey::new(hash, xorb.incarnation());
        let blob = self.blobs.read(key, bytes).await.map_err(StoreError::from)?;
        self.check_current(xorb).await?;
        match blob {
            Some(blob) => Ok(blob),
            None => Err(self.missing_blob(xorb).await),
        }
    }

    /// The error for a missing blob. It may have been replaced and deleted since the layout was
    /// read.
    async fn missing_blob(&self, xorb: &StoredXorb) -> ReadError {
        let hash = xorb.hash();
        match self.index.incarnation_of(hash).await {
            Ok(Some(incarnation)) if incarnation != xorb.incarnation() => {
                self.layouts.xorbs.invalidate(&hash);
                ReadError::Replaced { hash }
            }
            Ok(_) => self.missing(hash).await,
            Err(error) => StoreError::from(error).into(),
        }
    }

    /// Distinguishes a missing blob from a xorb that was deleted since its layout was cached.
    pub(super) async fn missing(&self, hash: XorbHash) -> ReadError {
        self.layouts.xorbs.invalidate(&hash);
        match self.index.find_xorb(hash).await {
            Ok(Some(_)) => ReadError::Missing { hash },
            Ok(None) => ReadError::Deleted { hash },
            Err(error) => StoreError::from(error).into(),
        }
    }

    /// Checks, after a blob was opened, that the xorb's layout still describes it.
    pub(super) async fn check_current(&self, xorb: &StoredXorb) -> Result<(), ReadError> {
        if xorb.epoch == self.layouts.epoch.now() {
            return Ok(());
        }
        let hash = xorb.hash();
        match self.index.find_xorb(hash).await.map_err(StoreError::from)? {
            // The blob was replaced. While it is retained, readers with its layout may read it.
            Some(row) if row.incarnation != xorb.incarnation() => {
                match self.index.find_replaced(hash, xorb.incarnation()).await.map_err(StoreError::from)? {
                    Some(row) if row.layout == *xorb.layout() => Ok(()),
                    _ => Err(ReadError::Replaced { hash }),
                }
            }
            Some(row) if row.is_damaged => Err(ReadError::Quarantined { hash }),
            // The layouts are compared, too, because a client can choose bytes with the same CRC.
            Some(row) if row.crc64 == xorb.crc64() && row.layout == *xorb.layout() => Ok(()),
            Some(_) => Err(ReadError::Replaced { hash }),
            None => {
                self.layouts.xorbs.invalidate(&hash);
                Err(ReadError::Deleted { hash })
            }
        }
    }

    /// Another blob of a xorb than the one that [`find`](Self::find) has found, with its layout: a
    /// blob that was replaced and is still retained, or the one by which another process has
    /// replaced it. `None` if it is neither.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn find_other_blob(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
    ) -> Result<Option<Arc<StoredXorb>>, StoreError> {
        let epoch = self.layouts.epoch.now();
        if let Some(row) = self.index.find_replaced(hash, incarnation).await? {
            return Ok(Some(Arc::new(StoredXorb::new(row, epoch))));
        }
        // Another server tells by the generation, within a second, that it has replaced a blob.
        // Until then a URL that it has signed would be refused here.
        self.layouts.xorbs.invalidate(&hash);
        let current = self.find(hash).await?;
        Ok(current.filter(|xorb| xorb.incarnation() == incarnation))
    }

    /// Bytes of dead and pending objects: blobs that no row names and that were not deleted yet.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn replaced_len(&self) -> Result<u64, StoreError> {
        Ok(self.index.object_sums().await?.len)
    }

    /// Replaces a damaged blob, as [`replace_blob`](Self::replace_blob) does, and counts the
    /// repair.
    pub(super) async fn repair_blob(
        &self,
        draft: Box<dyn Draft>,
        row: NewXorb,
        ticket: Ticket,
    ) -> Result<(), StoreError> {
        let hash = row.hash;
        self.replace_blob(draft, row, ticket).await?;
        self.metrics.repaired.inc();
        tracing::info!(xorb = %hash, "repaired a damaged xorb by a new upload");
        Ok(())
    }

    /// Publishes a blob in place of the current one. The caller holds the publish lock, and the
    /// ticket was issued under this lock.
    pub(super) async fn replace_blob(
        &self,
        draft: Box<dyn Draft>,
        row: NewXorb,
        ticket: Ticket,
    ) -> Result<(), StoreError> {
        let (hash, len) = (row.hash, row.layout.serialized_len());
        let replaced = publish_in_place(self.index.as_ref(), draft, row, ticket, self.clock.as_ref()).await;
        // Forget the layout also after an error, because the transaction may have been committed.
        self.forget_layout(hash);
        if matches!(&replaced, Err(StoreError::Index(error)) if error.kind == IndexErrorKind::Lost) {
            self.discard_lost_blob(hash, ticket, len).await;
        }
        replaced
    }

    /// Updates the row to describe the stored blob. The caller holds the publish lock and has the
    /// ticket of the row.
    pub(super) async fn describe_blob(&self, row: NewXorb, ticket: Ticket) -> Result<(), StoreError> {
        let hash = row.hash;
        let healed = self.index.describe_xorb_again(row, ticket, self.clock.now()).await;
        // Forget the layout also after an error, because the transaction may have been committed.
        self.forget_layout(hash);
        healed?;
        self.metrics.repaired.inc();
        Ok(())
    }
}
