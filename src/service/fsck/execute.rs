//! Repairs findings. What a crash can leave, and which repairs are safe beside a server, is in
//! [`fsck`](super).

use super::plan::future;
use super::{Finding, Fsck, Presence, Repair};
use crate::blob::{BlobKey, Draft};
use crate::format::{FileHash, XorbHash};
use crate::index::{IndexErrorKind, Ticket, XorbState};
use crate::service::error::StoreError;
use crate::service::verify::{Pace, Proven, Verdict, key};

/// Maximum number of xorbs whose times one transaction sets back. A transaction of more xorbs would
/// hold the lock of the database for too long.
const TIMES_PAGE_COUNT: u32 = 500;

/// The result of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The fault is repaired, or no longer exists.
    Repaired,
    /// The xorb is quarantined. An upload or an archive can restore it.
    Quarantined,
    /// The fault is not repaired: fsck cannot repair it, or the store has changed meanwhile.
    Left,
    /// Nothing was done, because the repair needs exclusive use of the store.
    NeedsAlone,
}

impl Outcome {
    /// The name in the output of `zorb fsck`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Repaired => "repaired",
            Self::Quarantined => "quarantined",
            Self::Left => "left",
            Self::NeedsAlone => "needs_stopped_server",
        }
    }
}

impl Fsck {
    /// Repairs a finding, if that is possible without an upload or an archive.
    ///
    /// The caller must hold the right to delete blobs of this store. A second call with the same
    /// finding does no harm, except for [`Repair::Add`], which is added again.
    ///
    /// # Errors
    ///
    /// The store failed, and the fault may still exist.
    pub async fn execute(&self, finding: &Finding) -> Result<Outcome, StoreError> {
        if finding.repair.needs_alone() && self.presence == Presence::Shared {
            return Ok(Outcome::NeedsAlone);
        }
        match (finding.repair, finding.xorb, finding.file) {
            (Repair::Adopt | Repair::Remove, ..) => self.settle(finding).await,
            (Repair::Quarantine, Some(xorb), _) => self.quarantine(xorb).await,
            (Repair::Release | Repair::Describe, Some(xorb), _) => self.recheck(xorb).await,
            (Repair::Finish, Some(xorb), _) => self.finish(xorb).await,
            (Repair::Rebuild, _, Some(file)) => self.rebuild(file).await,
            (Repair::Add(drift), ..) => {
                self.store.index.repair_totals(drift).await?;
                Ok(Outcome::Repaired)
            }
            (Repair::Clear, ..) => {
                self.store.blobs.remove_stray_drafts().await?;
                Ok(Outcome::Repaired)
            }
            (Repair::SetBack, ..) if self.trusts_clock => self.clamp_times().await,
            _ => Ok(Outcome::Left),
        }
    }

    async fn clamp_times(&self) -> Result<Outcome, StoreError> {
        let (now, mut after) = (self.store.clock.now(), None);
        loop {
            let future = future(self.store.index.as_ref(), now);
            after = self.store.index.clamp_times(after, TIMES_PAGE_COUNT, future, now).await?;
            if after.is_none() {
                break;
            }
        }
        // This must be last: GC does not run while the time of the last collection is in the
        // future. So GC does not run after a crash before this line, which may leave other times in
        // the future.
        self.store.index.set_collection_back(now).await?;
        Ok(Outcome::Repaired)
    }

    async fn rebuild(&self, file: FileHash) -> Result<Outcome, StoreError> {
        self.store.index.rebuild_references(file).await?;
        Ok(Outcome::Repaired)
    }

    /// Reads the blob again. Marks its row as damaged, unless the row describes the blob now.
    async fn quarantine(&self, hash: XorbHash) -> Result<Outcome, StoreError> {
        let Some(seen) = self.store.index.find_health(hash).await? else { return Ok(Outcome::Repaired) };
        match self.verifier().verify(key(&seen), Some(seen.serialized_len), &mut Pace::new(None)).await? {
            Verdict::Sound(proven) if proven.is_described(&*self.store.index, &seen).await? => Ok(Outcome::Repaired),
            _ => {
                self.store.index.mark_damaged(seen, self.store.clock.now()).await?;
                Ok(Outcome::Quarantined)
            }
        }
    }

    /// Reads the blob again. Marks its row as sound if the row describes the blob, and as damaged
    /// if the blob is damaged. If the blob is another serialization, updates the row to describe
    /// it.
    async fn recheck(&self, hash: XorbHash) -> Result<Outcome, StoreError> {
        let Some(seen) = self.store.index.find_health(hash).await? else { return Ok(Outcome::Repaired) };
        match self.verifier().verify(key(&seen), Some(seen.serialized_len), &mut Pace::new(None)).await? {
            Verdict::Sound(proven) if proven.is_described(&*self.store.index, &seen).await? => {
                let is_marked = self.store.index.mark_sound(seen, self.store.clock.now()).await?;
                Ok(if is_marked { Outcome::Repaired } else { Outcome::Left })
            }
            Verdict::Sound(_) if self.presence == Presence::Shared => Ok(Outcome::NeedsAlone),
            Verdict::Sound(proven) => {
                if !self.make_durable(key(&seen), &proven).await? {
                    return Ok(Outcome::Left);
                }
                match self.store.index.describe_xorb_again(proven.into_row(), seen.ticket, self.store.clock.now()).await
                {
                    Err(error) if error.kind == IndexErrorKind::Lost => Ok(Outcome::Left),
                    healed => healed.map(|()| Outcome::Repaired).map_err(StoreError::from),
                }
            }
            Verdict::Damaged(_) => {
                self.store.index.mark_damaged(seen, self.store.clock.now()).await?;
                Ok(Outcome::Quarantined)
            }
        }
    }

    /// Adopts or removes a blob, unless the index knows it by now.
    async fn settle(&self, finding: &Finding) -> Result<Outcome, StoreError> {
        let Some(blob) = finding.blob else { return Ok(Outcome::Left) };
        let name = (blob.xorb_hash(), blob.incarnation());
        if self.store.index.unknown_names(vec![name]).await?.is_empty() {
            return Ok(Outcome::Repaired);
        }
        if finding.repair == Repair::Adopt { self.adopt(blob).await } else { self.remove(blob).await }
    }

    /// Makes a sound blob that the index does not know the blob of its xorb, unless the xorb has
    /// another sound blob.
    async fn adopt(&self, blob: BlobKey) -> Result<Outcome, StoreError> {
        let Verdict::Sound(proven) = self.verifier().verify(blob, None, &mut Pace::new(None)).await? else {
            return Ok(Outcome::Left);
        };
        if !self.make_durable(blob, &proven).await? {
            return Ok(Outcome::Left);
        }
        let (hash, incarnation, now) = (blob.xorb_hash(), blob.incarnation(), self.store.clock.now());
        let row = proven.into_row();
        let Some(mut seen) = self.store.index.find_health(hash).await? else {
            // The row becomes live in one step and is not staged first. After a crash, the next
            // start would delete the blob of a staged row, which may be the last copy of its data.
            self.store.index.adopt_xorb(row, incarnation, Ticket::random(), now).await?;
            return Ok(Outcome::Repaired);
        };
        if self.is_surplus(blob).await? {
            return Ok(Outcome::Left);
        }
        if seen.damaged_at.is_none() {
            // `is_surplus` has found that the blob of the row is damaged, but the row does not say
            // so. The mark keeps this blob from being served by its old URLs after the replacement.
            self.store.index.mark_damaged(seen, now).await?;
            let Some(marked) = self.store.index.find_health(hash).await? else { return Ok(Outcome::Left) };
            seen = marked;
        }
        match self.store.index.adopt_blob(row, seen.ticket, incarnation, now).await {
            Err(error) if error.kind == IndexErrorKind::Lost => Ok(Outcome::Left),
            replaced => replaced.map(|()| Outcome::Repaired).map_err(StoreError::from),
        }
    }

    /// Makes an existing blob durable before a row describes it: copies the blob into a draft, and
    /// publishes the draft under the same name. The blob may never have been synced, because of a
    /// crash during its upload. Returns false if its bytes are not the verified ones any more; then
    /// no row may describe it.
    async fn make_durable(&self, key: BlobKey, proven: &Proven) -> Result<bool, StoreError> {
        let Some(draft) = self.verifier().copy(key, proven).await? else { return Ok(false) };
        Draft::publish(draft, key).await?;
        Ok(true)
    }

    /// Removes a blob that no row names. The order of the steps is explained in [`fsck`](super).
    async fn remove(&self, blob: BlobKey) -> Result<Outcome, StoreError> {
        let (hash, incarnation) = (blob.xorb_hash(), blob.incarnation());
        if self.store.index.mark_object_dead(hash, incarnation, 0, self.store.clock.now()).await? {
            self.store.blobs.delete(blob).await?;
            self.store.index.forget_object(hash, incarnation).await?;
        }
        Ok(Outcome::Repaired)
    }

    /// Deletes the row and the blob of an interrupted upload or deletion, as the start of a server
    /// does.
    async fn finish(&self, hash: XorbHash) -> Result<Outcome, StoreError> {
        let unfinished = self.store.index.unfinished_xorbs().await?;
        let Some((_, state)) = unfinished.into_iter().find(|(xorb, _)| *xorb == hash) else {
            return Ok(Outcome::Repaired);
        };
        if state == XorbState::Staged {
            self.store.index.abandon_xorb(hash, self.store.clock.now()).await?;
        }
        if let Some(incarnation) = self.store.index.incarnation_to_delete(hash).await? {
            self.store.blobs.delete(BlobKey::new(hash, incarnation)).await?;
        }
        self.store.index.forget_xorb(hash).await?;
        Ok(Outcome::Repaired)
    }
}
