//! Healing a store from an archive: restores damaged and lost xorbs. Files and registrations are
//! not restored.
//!
//! A damaged xorb gets a blob with a new name, as in an upload (`service/heal.rs`). A crash leaves
//! it damaged, or a lost one staged, and what was healed before stays.

use std::collections::HashSet;
use std::io::{Read, Seek};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::Watch;
use super::error::RestoreError;
use super::read::{Item, UnpackedXorb, read_archive};
use super::store::repack;
use crate::blob::{BlobKey, BlobStore, Draft};
use crate::format::XorbHash;
use crate::format::xorb::RepackMode;
use crate::index::{Index, NewXorb, Staging, Ticket};
use crate::runtime::blocking::Pool;
use crate::runtime::clock::Clock;
use crate::service::StoreError;
use crate::service::heal::publish_in_place;

/// A store with damaged or lost xorbs. No other process may be using it: blobs are replaced.
#[derive(Debug)]
pub struct RepairTarget {
    /// Its blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// Its index.
    pub index: Arc<dyn Index>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Runs the reader of the archive and the packing of xorbs; at least two threads.
    pub pool: Pool,
}

impl RepairTarget {
    /// Takes these xorbs from an archive; returns those that are sound afterwards. Each is proven
    /// by its own hash, so a healed xorb is right even if the archive is damaged after it.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`]; what was healed before stays.
    pub async fn heal<R>(
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
                    if self.take(xorb).await? {
                        healed.push(hash);
                    }
                }
            }
            Ok::<_, RestoreError>(())
        };
        let taken = taken.await;
        // Before awaiting the reader, which may be blocked on sending.
        drop(items);
        let ending = reading.await;
        taken?;
        // An archive need not be read to its end when everything was found.
        let count = healed.len() as u64;
        ending.map_err(|source| RestoreError::Archive { xorb_count: count, file_count: 0, source })?;
        Ok(healed)
    }

    /// Stores a xorb in place of a damaged one, or where there is none. Returns whether it is sound
    /// then.
    async fn take(&self, xorb: UnpackedXorb) -> Result<bool, RestoreError> {
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
