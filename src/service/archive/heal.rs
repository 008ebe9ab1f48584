//! Repairs a store from an archive: restores xorbs whose blob is damaged or whose row is lost.
//! Files and registrations are not restored.
//!
//! After `Ok` the returned xorbs are live and sound. A damaged xorb gets a new blob with another
//! name, as in an upload (`service/heal.rs`). A crash leaves the current xorb as it was, or leaves
//! a staged row for a lost xorb, which the next start removes. Xorbs that were repaired before the
//! crash stay repaired.

use std::collections::HashSet;
use std::io::{Read, Seek};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::Watch;
use super::error::RestoreError;
use super::read::{Item, UnpackedXorb, read_archive};
use super::store::repack;
use crate::blob::{BlobKey, Draft};
use crate::format::XorbHash;
use crate::format::xorb::RepackMode;
use crate::index::{NewXorb, Staging, Ticket};
use crate::service::heal::publish_in_place;
use crate::service::{Store, StoreError};

impl Store {
    /// Restores the `wanted` xorbs from an archive, as far as it has them. Returns the xorbs that
    /// are sound afterwards. Each xorb is proven by its own hash, so a restored xorb is right even
    /// if another part of the archive is damaged.
    ///
    /// The pool of this store must have at least two workers: one reads the archive during the
    /// whole repair, and the others repack xorbs. No other process may use the store, because this
    /// replaces blobs without the publish lock.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`]. Xorbs that were repaired before the error stay repaired.
    pub async fn heal_from<R>(
        &self,
        source: R,
        mut wanted: HashSet<XorbHash>,
        watch: Arc<dyn Watch>,
    ) -> Result<Vec<XorbHash>, RestoreError>
    where
        R: Read + Seek + Send + 'static,
    {
        let (sender, mut items) = mpsc::channel(1);
        let reading = self.pool.start(move || read_archive(source, &sender, &watch)).await;
        let mut healed = Vec::new();
        let taken = async {
            while !wanted.is_empty() {
                let Some(item) = items.recv().await else { break };
                if let Item::Xorb(xorb) = item
                    && wanted.remove(&xorb.hash)
                {
                    let hash = xorb.hash;
                    if self.take_archived(xorb).await? {
                        healed.push(hash);
                    }
                }
            }
            Ok::<_, RestoreError>(())
        };
        let taken = taken.await;
        // Must be before `reading.await`: the reader may be blocked on sending, and dropping the
        // receiver ends that.
        drop(items);
        let ending = reading.await;
        taken?;
        // If all wanted xorbs were found, the receiver was dropped early and `reading` ends with
        // `Ok(None)`. The rest of the archive is not read then.
        let count = healed.len() as u64;
        ending.map_err(|source| RestoreError::Archive { xorb_count: count, file_count: 0, source })?;
        Ok(healed)
    }

    /// Stores a xorb from the archive, if its row is missing or marked as damaged. Returns whether
    /// the xorb is sound afterwards.
    async fn take_archived(&self, xorb: UnpackedXorb) -> Result<bool, RestoreError> {
        let (named, blobs) = (xorb.hash, Arc::clone(&self.blobs));
        let made = self.pool.run(move || repack(&*blobs, &xorb, RepackMode::Compressed)).await?;
        let (actual, crc64, draft) = made;
        if actual.hash() != named {
            return Err(RestoreError::OtherXorb { named, actual: actual.hash() });
        }
        let (hash, layout, chunk_hashes, schemes) = actual.into_parts();
        let row = NewXorb { hash, crc64, layout, chunk_hashes, schemes, owner: None, grant: None };
        let (ticket, now) = (Ticket::random(), self.clock.now());
        match self.index.stage_xorb(named, ticket, now).await.map_err(StoreError::from)? {
            Staging::Staged => {
                Draft::publish(draft, BlobKey::new(named, ticket.incarnation())).await.map_err(StoreError::from)?;
                self.index.publish_xorb(row, ticket, now).await.map_err(StoreError::from)?;
            }
            Staging::Damaged => {
                publish_in_place(self.index.as_ref(), draft, row, ticket, self.clock.as_ref()).await?;
            }
            Staging::Live { .. } => {}
            Staging::Deleting => return Ok(false),
        }
        Ok(true)
    }
}
