//! Repairs findings. Every repair checks its finding again.

use futures_util::TryStreamExt;

use super::plan::future;
use super::{Finding, Fsck, Presence, Repair};
use crate::blob::{BlobKey, Draft};
use crate::format::{ByteRange, FileHash, XorbHash};
use crate::index::{IndexErrorKind, Ticket, XorbState};
use crate::service::error::StoreError;
use crate::service::verify::{Pace, Proven, Verdict, key};

/// Xorbs whose times are set back in one transaction: it must not hold the lock of the database for
/// long.
const TIMES_PAGE_COUNT: u32 = 500;

/// The result of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is repaired, or was no longer wrong.
    Repaired,
    /// The xorb is quarantined. An upload or an archive can restore it.
    Quarantined,
    /// Nothing was done, since no repair is possible here.
    Left,
    /// Nothing was done, since a server may be running.
    NeedsAlone,
}

impl Outcome {
    /// In words.
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
    /// Repairs a finding, as far as possible. May be repeated.
    ///
    /// # Errors
    ///
    /// The store failed; the finding stands.
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
                self.index.repair_totals(drift).await?;
                Ok(Outcome::Repaired)
            }
            (Repair::Clear, ..) => {
                self.blobs.remove_stray_drafts().await?;
                Ok(Outcome::Repaired)
            }
            (Repair::SetBack, ..) if self.trusts_clock => self.set_times_back().await,
            _ => Ok(Outcome::Left),
        }
    }

    async fn set_times_back(&self) -> Result<Outcome, StoreError> {
        let (now, mut after) = (self.clock.now(), None);
        loop {
            after = self.index.set_times_back(after, TIMES_PAGE_COUNT, future(now), now).await?;
            if after.is_none() {
                break;
            }
        }
        // Last: until then no garbage is collected, whatever a crash leaves.
        self.index.set_collection_back(now).await?;
        Ok(Outcome::Repaired)
    }

    async fn rebuild(&self, file: FileHash) -> Result<Outcome, StoreError> {
        self.index.rebuild_references(file).await?;
        Ok(Outcome::Repaired)
    }

    /// Reads the blob again and marks its row, unless it was healed since.
    async fn quarantine(&self, hash: XorbHash) -> Result<Outcome, StoreError> {
        let Some(seen) = self.index.find_health(hash).await? else { return Ok(Outcome::Repaired) };
        match self.verifier().verify(key(&seen), Some(seen.serialized_len), &mut Pace::new(None)).await? {
            Verdict::Sound(proven) if proven.is_described(&*self.index, &seen).await? => Ok(Outcome::Repaired),
            _ => {
                self.index.mark_damaged(seen, self.clock.now()).await?;
                Ok(Outcome::Quarantined)
            }
        }
    }

    /// Reads the blob again and updates its row.
    async fn recheck(&self, hash: XorbHash) -> Result<Outcome, StoreError> {
        let Some(seen) = self.index.find_health(hash).await? else { return Ok(Outcome::Repaired) };
        match self.verifier().verify(key(&seen), Some(seen.serialized_len), &mut Pace::new(None)).await? {
            Verdict::Sound(proven) if proven.is_described(&*self.index, &seen).await? => {
                let is_marked = self.index.mark_sound(seen, self.clock.now()).await?;
                Ok(if is_marked { Outcome::Repaired } else { Outcome::Left })
            }
            Verdict::Sound(_) if self.presence == Presence::Shared => Ok(Outcome::NeedsAlone),
            Verdict::Sound(proven) => {
                self.make_durable(key(&seen), &proven).await?;
                match self.index.heal_xorb(proven.into_row(), seen.ticket, self.clock.now()).await {
                    Err(error) if error.kind == IndexErrorKind::Lost => Ok(Outcome::Left),
                    healed => healed.map(|()| Outcome::Repaired).map_err(StoreError::from),
                }
            }
            Verdict::Damaged(_) => {
                self.index.mark_damaged(seen, self.clock.now()).await?;
                Ok(Outcome::Quarantined)
            }
        }
    }

    /// Enters or removes a blob that the index does not know.
    async fn settle(&self, finding: &Finding) -> Result<Outcome, StoreError> {
        let Some(blob) = finding.blob else { return Ok(Outcome::Left) };
        let name = (blob.xorb_hash(), blob.incarnation());
        if self.index.unaccounted(vec![name]).await?.is_empty() {
            return Ok(Outcome::Repaired);
        }
        if finding.repair == Repair::Adopt { self.adopt(blob).await } else { self.remove(blob).await }
    }

    async fn adopt(&self, blob: BlobKey) -> Result<Outcome, StoreError> {
        let Verdict::Sound(proven) = self.verifier().verify(blob, None, &mut Pace::new(None)).await? else {
            return Ok(Outcome::Left);
        };
        self.make_durable(blob, &proven).await?;
        let (hash, incarnation, now) = (blob.xorb_hash(), blob.incarnation(), self.clock.now());
        let len = proven.serialized_len();
        let row = proven.into_row();
        let Some(seen) = self.index.find_health(hash).await? else {
            // The row is not staged first. The next start would delete the blob of a staged row,
            // and it may be the last copy of a file's data.
            self.index.adopt_xorb(row, incarnation, Ticket::random(), now).await?;
            return Ok(Outcome::Repaired);
        };
        if self.is_surplus(blob).await? {
            return Ok(Outcome::Left);
        }
        self.index.begin_object(hash, incarnation, len, now).await?;
        match self.index.replace_xorb(row, seen.ticket, incarnation, now).await {
            Err(error) if error.kind == IndexErrorKind::Lost => Ok(Outcome::Left),
            replaced => replaced.map(|()| Outcome::Repaired).map_err(StoreError::from),
        }
    }

    /// Publishes a blob once more, unchanged. Its durability is unknown, since it was found without
    /// a row or with a wrong one.
    async fn make_durable(&self, key: BlobKey, proven: &Proven) -> Result<(), StoreError> {
        let bytes = ByteRange::new(0, proven.serialized_len()).expect("a xorb has at least a chunk");
        let Some(mut blob) = self.blobs.read(key, bytes).await? else { return Ok(()) };
        let blobs = self.blobs.clone();
        let mut draft = self.pool.run(move || blobs.draft()).await?;
        while let Some(piece) = blob.try_next().await? {
            let write = move || draft.write(&piece).map(|()| draft);
            draft = self.pool.run(write).await?;
        }
        Draft::publish(draft, key).await?;
        Ok(())
    }

    async fn remove(&self, blob: BlobKey) -> Result<Outcome, StoreError> {
        let (hash, incarnation) = (blob.xorb_hash(), blob.incarnation());
        if self.index.bury_object(hash, incarnation, 0, self.clock.now()).await? {
            self.blobs.delete(blob).await?;
            self.index.forget_object(hash, incarnation).await?;
        }
        Ok(Outcome::Repaired)
    }

    /// Completes an unfinished row like the start of a server.
    async fn finish(&self, hash: XorbHash) -> Result<Outcome, StoreError> {
        let unfinished = self.index.unfinished_xorbs().await?;
        let Some((_, state)) = unfinished.into_iter().find(|(xorb, _)| *xorb == hash) else {
            return Ok(Outcome::Repaired);
        };
        if state == XorbState::Staged {
            self.index.abandon_xorb(hash, self.clock.now()).await?;
        }
        if let Some(incarnation) = self.index.incarnation_of(hash).await? {
            self.blobs.delete(BlobKey::new(hash, incarnation)).await?;
        }
        self.index.forget_xorb(hash).await?;
        Ok(Outcome::Repaired)
    }
}
