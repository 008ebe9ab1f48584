//! Quarantine and heal: how readers are kept off a damaged blob, and how its xorb is repaired.
//!
//! Once the row says "damaged", no read of this process begins on the blob. Another serialization
//! has its chunks at other offsets, and clients do not check the bytes. So a new serialization is a
//! blob with a name of its own, and a layout is only used with the blob that it was read with.
//!
//! An upload replaces a damaged blob with any serialization, and a sound one with a much shorter
//! serialization ([`is_worth`]). The new blob is a pending object first, then published, then the
//! row names it and the old one is a dead object. A crash leaves the old blob in use, and at most
//! an object whose blob is deleted later. A sound blob that was replaced is read until then: by
//! readers that know its layout, and for URLs that were made with it.
//!
//! The epoch advances whenever a known layout becomes wrong. A reader compares the epoch after it
//! has opened a blob. If the layout was read in another epoch, the row is read again. Other
//! processes can mark and delete, too. They advance the generation of the index, which a server
//! polls every second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{ReadError, StoreError};
use super::{Cas, StoredXorb};
use crate::blob::{BlobKey, BlobStream, Draft};
use crate::format::{ByteRange, XorbHash};
use crate::index::{Index, IndexErrorKind, NewXorb, Ticket};
use crate::runtime::clock::Clock;
use crate::runtime::incarnation::Incarnation;

/// Whether a serialization of this length replaces a stored one: it is at most three quarters as
/// long. So a xorb is replaced a few times at most.
pub(super) const fn is_worth(new_len: u64, stored_len: u64) -> bool {
    new_len <= max_worth(stored_len)
}

/// The greatest length of a serialization that replaces a stored one of this length.
pub(super) const fn max_worth(stored_len: u64) -> u64 {
    stored_len / 4 * 3 + stored_len % 4 * 3 / 4
}

/// Publishes a blob, and names it in place of that of a visible row with this ticket, which names
/// the new blob.
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
    // The retention of the old blob begins only now.
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

    /// [`missing`](Self::missing) for a blob that may have been replaced and deleted since.
    async fn missing_blob(&self, xorb: &StoredXorb) -> ReadError {
        let hash = xorb.hash();
        match self.index.incarnation_of(hash).await {
            Ok(Some(incarnation)) if incarnation != xorb.incarnation() => {
                self.xorbs.invalidate(&hash);
                ReadError::Replaced { hash }
            }
            Ok(_) => self.missing(hash).await,
            Err(error) => StoreError::from(error).into(),
        }
    }

    /// Distinguishes a missing blob from a xorb that was deleted since its layout was cached.
    pub(super) async fn missing(&self, hash: XorbHash) -> ReadError {
        self.xorbs.invalidate(&hash);
        match self.index.find_xorb(hash).await {
            Ok(Some(_)) => ReadError::Missing { hash },
            Ok(None) => ReadError::Deleted { hash },
            Err(error) => StoreError::from(error).into(),
        }
    }

    /// Checks, after a blob was opened, that the xorb's layout still holds.
    pub(super) async fn check_current(&self, xorb: &StoredXorb) -> Result<(), ReadError> {
        if xorb.epoch == self.epoch.now() {
            return Ok(());
        }
        let hash = xorb.hash();
        match self.index.find_xorb(hash).await.map_err(StoreError::from)? {
            Some(row) if row.incarnation != xorb.incarnation() => {
                match self.index.find_replaced(hash, xorb.incarnation()).await.map_err(StoreError::from)? {
                    Some(row) if row.layout == *xorb.layout() => Ok(()),
                    _ => Err(ReadError::Replaced { hash }),
                }
            }
            Some(row) if row.is_damaged => Err(ReadError::Quarantined { hash }),
            // A CRC is no protection against chosen bytes.
            Some(row) if row.crc64 == xorb.crc64() && row.layout == *xorb.layout() => Ok(()),
            Some(_) => Err(ReadError::Replaced { hash }),
            None => {
                self.xorbs.invalidate(&hash);
                Err(ReadError::Deleted { hash })
            }
        }
    }

    /// A blob that was replaced and is still retained, as it was described; `None` if this is none.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn find_replaced(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
    ) -> Result<Option<Arc<StoredXorb>>, StoreError> {
        let epoch = self.epoch.now();
        let row = self.index.find_replaced(hash, incarnation).await?;
        Ok(row.map(|row| Arc::new(StoredXorb::new(row, epoch))))
    }

    /// Bytes of blobs that no xorb uses any more and that were not deleted yet.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn replaced_len(&self) -> Result<u64, StoreError> {
        Ok(self.index.object_sums().await?.len)
    }

    /// [`replace_blob`](Self::replace_blob) where the present blob is damaged.
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

    /// Publishes a blob in place of the present one. To be called under the publish lock, with the
    /// ticket that was issued under it.
    pub(super) async fn replace_blob(
        &self,
        draft: Box<dyn Draft>,
        row: NewXorb,
        ticket: Ticket,
    ) -> Result<(), StoreError> {
        let (hash, len) = (row.hash, row.layout.serialized_len());
        let replaced = publish_in_place(self.index.as_ref(), draft, row, ticket, self.clock.as_ref()).await;
        // Also after an error: the transaction may have been committed.
        self.forget_layout(hash);
        if matches!(&replaced, Err(StoreError::Index(error)) if error.kind == IndexErrorKind::Lost) {
            self.account_for(hash, ticket, len).await;
        }
        replaced
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
