//! What a start does if the database was set back: a standby was promoted that lacks the last
//! changes, and the blobs and records of these changes are there.
//!
//! The records are applied as after a crash ([`agree`](super::agree)), but they may need xorbs of
//! which the database has no row, and the upload of a xorb has no record at all. So first each xorb
//! with a sound blob gets a row that names one. Then the records are applied. Last, the xorbs that
//! have no blob are marked as damaged, so that the next upload of each one is stored again.
//!
//! A row gets a copy of the blob, with a new name. The deletion of the old name may be under way:
//! an S3 store may still execute a request of an ended server. The old names become dead objects,
//! which a collection deletes.
//!
//! A crash leaves pending objects, and the next start begins again. What this does not do:
//!
//! * The tenant of a xorb without a file is not known, so the tenant may have to upload it again.
//!   Such a xorb is garbage after a while, like each that no file needs.
//! * A row whose blob is sound keeps the name of its blob, also if the deletion of this name was
//!   under way.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::rebuild::IN_FLIGHT_COUNT;
use crate::blob::{BlobKey, Draft};
use crate::format::XorbHash;
use crate::index::{Ticket, XorbHealth};
use crate::service::Store;
use crate::service::error::StoreError;
use crate::service::verify::{BlobVerifier, Pace, Verdict, key};

/// Names that are compared with the index at once, and rows that are read at once.
const PAGE_COUNT: u32 = if cfg!(test) { 2 } else { 1000 };

impl Store {
    /// Gives a row with a blob to each xorb that has a sound blob, whether the index knows the name
    /// of the blob or not. Also completes uploads, and takes back deletions, that were under way.
    /// Returns the number of these xorbs. No other process may use the store meanwhile.
    ///
    /// # Errors
    ///
    /// The store failed. The next start begins again.
    pub(super) async fn adopt_unknown_blobs(&self) -> Result<u64, StoreError> {
        let mut count = 0;
        for (xorb, _) in self.index.unfinished_xorbs().await? {
            count += u64::from(self.restore_xorb(xorb).await?);
        }
        let stored: HashSet<BlobKey> = self.blobs.list().await?.into_iter().collect();
        let mut blobs = HashMap::<XorbHash, Vec<BlobKey>>::new();
        // The blob that has repaired a damaged xorb may have a name: the standby may have lost only
        // the last step of the repair.
        let damaged = self.rows_without(&stored, true).await?;
        let damaged: HashSet<XorbHash> = damaged.into_iter().map(|row| row.hash).collect();
        for blob in stored.iter().filter(|blob| damaged.contains(&blob.xorb_hash())) {
            blobs.entry(blob.xorb_hash()).or_default().push(*blob);
        }
        let others: Vec<&BlobKey> = stored.iter().filter(|blob| !damaged.contains(&blob.xorb_hash())).collect();
        for some in others.chunks(PAGE_COUNT as usize) {
            let names = some.iter().map(|blob| (blob.xorb_hash(), blob.incarnation())).collect();
            for (xorb, incarnation) in self.index.unknown_names(names).await? {
                blobs.entry(xorb).or_default().push(BlobKey::new(xorb, incarnation));
            }
        }
        if !blobs.is_empty() {
            tracing::warn!(count = blobs.len(), "the database was set back: verifying blobs that it does not know");
        }
        let adopting = blobs.into_iter().map(|(xorb, blobs)| self.adopt_copy(xorb, blobs));
        let mut adopting = stream::iter(adopting).buffer_unordered(IN_FLIGHT_COUNT);
        while let Some(is_adopted) = adopting.try_next().await? {
            count += u64::from(is_adopted);
        }
        Ok(count)
    }

    /// Copies the first sound one of these blobs, makes the copy the blob of the xorb, and makes
    /// all of these names dead objects. Returns false if none is sound, and if the xorb has a row
    /// with another sound blob.
    async fn adopt_copy(&self, xorb: XorbHash, blobs: Vec<BlobKey>) -> Result<bool, StoreError> {
        let verifier = BlobVerifier { blobs: self.blobs.clone(), pool: self.pool.clone() };
        let mut seen = self.index.find_health(xorb).await?;
        if let Some(row) = seen.filter(|row| row.damaged_at.is_none()) {
            let verdict = verifier.verify(key(&row), Some(row.serialized_len), &mut Pace::new(None)).await?;
            if let Verdict::Sound(proven) = verdict
                && proven.is_described(&*self.index, &row).await?
            {
                self.mark_dead(&blobs).await?;
                return Ok(false);
            }
            // The mark keeps the old name from being served after the replacement.
            self.index.mark_damaged(row, self.clock.now()).await?;
            seen = self.index.find_health(xorb).await?;
        }
        for blob in &blobs {
            let Verdict::Sound(proven) = verifier.verify(*blob, None, &mut Pace::new(None)).await? else { continue };
            let Some(draft) = verifier.copy(*blob, &proven).await? else { continue };
            let (ticket, len, now) = (Ticket::random(), proven.serialized_len(), self.clock.now());
            let (name, row) = (ticket.incarnation(), proven.into_row());
            self.index.begin_object(xorb, name, len, now).await?;
            Draft::publish(draft, BlobKey::new(xorb, name)).await?;
            let is_adopted = match (&seen, self.index.incarnation_of(xorb).await?) {
                (Some(seen), _) => self.index.replace_xorb(row, seen.ticket, name, now).await.map(|()| true)?,
                (None, Some(was)) => self.index.restore_xorb(row, was, ticket, now).await?,
                (None, None) => self.index.adopt_xorb(row, name, ticket, now).await?,
            };
            if is_adopted {
                self.mark_dead(&blobs).await?;
            }
            return Ok(is_adopted);
        }
        Ok(false)
    }

    /// Makes the names of these blobs dead objects, unless a row has them.
    async fn mark_dead(&self, blobs: &[BlobKey]) -> Result<(), StoreError> {
        for blob in blobs {
            let len = self.blobs.head(*blob).await?.unwrap_or_default();
            self.index.mark_object_dead(blob.xorb_hash(), blob.incarnation(), len, self.clock.now()).await?;
        }
        Ok(())
    }

    /// The visible rows whose blobs are not among these. `with_damaged`: and those that are marked
    /// as damaged.
    async fn rows_without(&self, stored: &HashSet<BlobKey>, with_damaged: bool) -> Result<Vec<XorbHealth>, StoreError> {
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = self.index.health_after(after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { return Ok(rows) };
            after = Some(last.hash);
            let is_without = |row: &XorbHealth| match row.damaged_at {
                Some(_) => with_damaged,
                None => !stored.contains(&key(row)),
            };
            rows.extend(page.into_iter().filter(is_without));
        }
    }

    /// Marks the xorbs whose blobs do not exist as damaged, so that the next upload of each one is
    /// stored again, and returns their number. What a database that was set back lacks may be the
    /// deletion of a xorb. No other process may use the store meanwhile.
    ///
    /// # Errors
    ///
    /// The index or the blob store does not respond.
    pub(super) async fn mark_missing_blobs(&self) -> Result<u64, StoreError> {
        let stored: HashSet<BlobKey> = self.blobs.list().await?.into_iter().collect();
        let (mut count, now) = (0, self.clock.now());
        for row in self.rows_without(&stored, false).await? {
            count += u64::from(self.index.mark_damaged(row, now).await?);
        }
        Ok(count)
    }
}
