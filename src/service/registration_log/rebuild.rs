//! Builds an index from blobs and records alone.
//!
//! Blobs are read and verified, and get rows. A blob that is damaged, or that the disk cannot read,
//! is reported and gets no row. If a xorb has several sound blobs, the shortest one gets the row,
//! and the others become dead objects. Then all registrations and removals are replayed in their
//! order ([`replay`](super::replay)), so that readers see the same files as with the old index. A
//! file with a missing xorb is reported and left out. Its record stays, so the next rebuild
//! registers the file if the xorb exists again.
//!
//! The index must be new, and no other process may use the store. A rebuild that fails or is killed
//! has changed nothing but this index, which must be discarded. The next rebuild begins anew.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use thiserror::Error;

use super::agree::new_store_id;
use super::rebuilt::{RebuildError, Rebuilt};
use super::replay::Replay;
use crate::blob::BlobKey;
use crate::blob::records::Seq;
use crate::format::XorbHash;
use crate::index::{RepoKind, Ticket};
use crate::service::Store;
use crate::service::archive::Watch;
use crate::service::error::StoreError;
use crate::service::verify::{BlobVerifier, Damage, Pace, Verdict};

/// Blobs that are read at once. Each has some MiB in memory, and the workers alternate between
/// them.
pub(super) const IN_FLIGHT_COUNT: usize = 8;

/// Blobs whose lengths are asked for at once.
const HEAD_COUNT: usize = 32;

/// A blob that does not match its name.
#[derive(Debug, Error)]
#[error("the blob of xorb {hash} is damaged; it stays on disk but is no longer in the index")]
pub(super) struct DamagedBlob {
    hash: XorbHash,
    #[source]
    source: Damage,
}

impl Store {
    /// Fills the index of this store, which must be new ([`has_index`](Self::has_index)), from
    /// blobs and records. No other process may use the store meanwhile.
    ///
    /// # Errors
    ///
    /// See [`RebuildError`]. The index is to be discarded then.
    pub async fn rebuild(&self, watch: &Arc<dyn Watch>) -> Result<Rebuilt, RebuildError> {
        let mut rebuilt = Rebuilt::default();
        self.adopt_all(watch, &mut rebuilt).await?;
        let left = Replay::new(self, &**watch, &mut rebuilt).run().await?;
        // All records are applied, except those in `left`, whose xorbs a collection must retain.
        let left = left.into_iter().map(Seq::number).collect();
        self.index.add_unapplied_records(left).await.map_err(StoreError::from)?;
        let id = self.records.store_id().await.map_err(StoreError::from)?.unwrap_or_else(new_store_id);
        let mut last = self.records.last().await.map_err(StoreError::from)?;
        if self.index.is_shared() {
            // Its number is far beyond those that ended servers have: a record of theirs that is
            // stored late is never applied.
            last.iter().for_each(|last| self.records.reserve_through(*last));
            last = Some(self.append_mark().await?);
        }
        self.index.set_store(id, last.map(Seq::number)).await.map_err(StoreError::from)?;
        rebuilt.store_id = Some(id);
        Ok(rebuilt)
    }

    /// Whether the index has an id, a xorb, a file or a repository of the Hub. Then it is not new:
    /// a store uses it, or a rebuild was interrupted.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn has_index(&self) -> Result<bool, StoreError> {
        let index = &self.index;
        if self.has_rows().await? || index.store_mark().await?.id.is_some() {
            return Ok(true);
        }
        for kind in RepoKind::ALL {
            if !index.list_hub_repos(kind, None, i64::MAX, 1).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(!index.file_records(None).await?.is_empty() || index.next_deleted_hub_repo(0).await?.is_some())
    }

    /// Verifies all blobs, and gives one sound blob of each xorb a row.
    async fn adopt_all(&self, watch: &Arc<dyn Watch>, rebuilt: &mut Rebuilt) -> Result<(), StoreError> {
        let (mut blobs, mut total) = (HashMap::<XorbHash, Vec<(BlobKey, u64)>>::new(), 0_u64);
        let keys = self.blobs.list().await?;
        // Several at once, because each is a request if the blobs are in a bucket.
        let mut lens = stream::iter(keys)
            .map(|key| async move { Ok::<_, StoreError>((key, self.blobs.head(key).await?)) })
            .buffer_unordered(HEAD_COUNT);
        while let Some((key, len)) = lens.try_next().await? {
            // If the blob no longer exists, it was deleted since it was listed.
            let Some(len) = len else { continue };
            blobs.entry(key.xorb_hash()).or_default().push((key, len));
            total = total.saturating_add(len);
        }
        drop(lens);
        watch.total(total);
        let mut adopted = stream::iter(blobs.into_values())
            .map(|blobs| async move {
                let len = blobs.iter().map(|(_, len)| len).sum::<u64>();
                (len, self.adopt_one(blobs).await)
            })
            .buffer_unordered(IN_FLIGHT_COUNT);
        let mut position = 0_u64;
        while let Some((len, outcome)) = adopted.next().await {
            match outcome? {
                Ok(adopted_len) => {
                    rebuilt.xorb_count += 1;
                    rebuilt.serialized_len = rebuilt.serialized_len.saturating_add(adopted_len);
                }
                Err(damaged) => {
                    rebuilt.damaged_xorb_count += 1;
                    watch.problem(&damaged);
                }
            }
            position = position.saturating_add(len);
            watch.position(position);
        }
        Ok(())
    }

    /// Gives the row to the shortest sound blob of a xorb, makes the others dead objects, and
    /// returns the length of that blob. If all are damaged, returns the damage of the longest one.
    async fn adopt_one(&self, mut blobs: Vec<(BlobKey, u64)>) -> Result<Result<u64, DamagedBlob>, StoreError> {
        blobs.sort_unstable_by_key(|(key, len)| (*len, key.incarnation()));
        let mut outcome = Ok(0);
        for (index, (key, len)) in blobs.iter().enumerate() {
            outcome = self.adopt(*key, *len).await?;
            if outcome.is_ok() {
                blobs.remove(index);
                for (key, len) in blobs {
                    self.index.mark_object_dead(key.xorb_hash(), key.incarnation(), len, self.clock.now()).await?;
                }
                break;
            }
        }
        Ok(outcome)
    }

    /// Gives a blob its row, if it matches its name. Returns its length.
    async fn adopt(&self, key: BlobKey, len: u64) -> Result<Result<u64, DamagedBlob>, StoreError> {
        let verifier = BlobVerifier { blobs: self.blobs.clone(), pool: self.pool.clone() };
        let row = match verifier.verify(key, None, &mut Pace::new(None)).await? {
            Verdict::Sound(proven) => proven.into_row(),
            Verdict::Damaged(source) => return Ok(Err(DamagedBlob { hash: key.xorb_hash(), source })),
        };
        self.index.adopt_xorb(row, key.incarnation(), Ticket::random(), self.clock.now()).await?;
        Ok(Ok(len))
    }
}
