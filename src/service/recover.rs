//! Recovery at a start: removes unfinished work of the last process.
//!
//! After `Ok` of [`Store::recover`] every row is live or condemned, and there are no drafts and no
//! abandoned registrations. After a crash the next start continues. The rows show which work is
//! unfinished, so no blob is opened. Blobs without a row are not found here, but by `zorb fsck`.
//!
//! A server that joins others ([`Store::join`]) removes only its own drafts. What a server has left
//! that died while others went on is removed later: rows of xorbs by garbage collection after a
//! day, registrations and records by [`Store::settle_ended`].

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::error::StoreError;
use super::{Gap, Store};
use crate::blob::BlobKey;
use crate::blob::records::Seq;
use crate::index::XorbState;

/// A request that stores a record may arrive after its server has ended. So the record is removed
/// again after each of these pauses, for a day.
const REMOVAL_PAUSE: Duration = Duration::from_secs(600);
const REMOVAL_TIME: Duration = Duration::from_secs(24 * 3600);

/// Numbers of removed items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Drafts that were never published.
    pub drafts: usize,
    /// Rows that never went live, or whose deletion was not completed.
    pub rows: usize,
}

/// Records of ended servers: when this process first saw each, and when it last removed it.
#[derive(Debug, Default)]
pub struct AbandonedRecords(HashMap<u64, (Instant, Option<Instant>)>);

impl Store {
    /// Checks that index and blobs are of one store, and removes the drafts of this server. For a
    /// server that joins others, before its first request.
    ///
    /// # Errors
    ///
    /// See [`Gap`]; or the store failed.
    pub async fn join(&self) -> Result<Recovered, Gap> {
        let mark = self.mark_of_store().await?;
        // The server that has the store alone at its start reserves them only in its memory.
        let newest = self.records.last().await.map_err(StoreError::from)?;
        for seq in [newest, mark.last_record.map(Seq::new)].into_iter().flatten() {
            self.records.reserve_through(seq);
        }
        let drafts = self.blobs.remove_stray_drafts().await.map_err(StoreError::from)?;
        Ok(Recovered { drafts, rows: 0 })
    }

    /// Removes what servers that have ended have left unfinished: their registrations, and the
    /// records of changes that they did not make. To be called from time to time by one of several
    /// servers.
    ///
    /// Without this, a record of a removal that was not made could be followed by a registration of
    /// the same file that changes nothing, and has no record. A rebuilt index would lack the file.
    ///
    /// # Errors
    ///
    /// The store failed; the next call continues.
    pub async fn settle_ended(&self, seen: &mut AbandonedRecords) -> Result<(), StoreError> {
        self.index.abandon_registrations_of_ended().await?;
        let (abandoned, now) = (self.index.abandoned_records().await?, Instant::now());
        seen.0.retain(|seq, _| abandoned.contains(seq));
        for seq in abandoned {
            let (since, last) = *seen.0.entry(seq).or_insert((now, None));
            if last.is_some_and(|last| now.duration_since(last) < REMOVAL_PAUSE) {
                continue;
            }
            seen.0.insert(seq, (since, Some(now)));
            let is_over = now.duration_since(since) >= REMOVAL_TIME;
            if !self.remove_abandoned(Seq::new(seq)).await? || is_over {
                self.index.close_record(seq).await?;
            }
        }
        Ok(())
    }

    /// Removes the record of a change that was not made. Returns false for a part of a change with
    /// several records: it has no effect without the last one, which may be applied.
    pub(super) async fn remove_abandoned(&self, seq: Seq) -> Result<bool, StoreError> {
        if self.is_partial_record(seq).await? {
            return Ok(false);
        }
        if self.records.remove(seq).await? {
            tracing::info!(record = %seq, "removed the record of a change that a server did not make");
        }
        Ok(true)
    }

    /// Removes drafts and unfinished rows. To be called before the first request, because it
    /// removes every draft. No other process may collect garbage of this store meanwhile, because
    /// this also deletes blobs.
    ///
    /// # Errors
    ///
    /// The store failed; the next start continues.
    pub async fn recover(&self) -> Result<Recovered, StoreError> {
        let Recovered { drafts, .. } = self.recover_drafts().await?;
        let unfinished = self.index.unfinished_xorbs().await?;
        let rows = unfinished.len();
        for (hash, state) in unfinished {
            if state == XorbState::Staged {
                self.index.abandon_xorb(hash, self.clock.now()).await?;
            }
            if let Some(incarnation) = self.index.incarnation_to_delete(hash).await? {
                self.blobs.delete(BlobKey::new(hash, incarnation)).await?;
            }
            self.index.forget_xorb(hash).await?;
        }
        Ok(Recovered { drafts, rows })
    }

    /// Removes drafts and abandons unfinished registrations. Does not touch the rows of xorbs,
    /// because another process may be deleting blobs now. To be called before the first request.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn recover_drafts(&self) -> Result<Recovered, StoreError> {
        let drafts = self.blobs.remove_stray_drafts().await?;
        self.discard_abandoned().await?;
        Ok(Recovered { drafts, rows: 0 })
    }

    /// Abandons unfinished registrations and discards their rows. To be called before the first
    /// request.
    pub(super) async fn discard_abandoned(&self) -> Result<(), StoreError> {
        self.index.abandon_registrations(None).await?;
        let now = self.clock.now();
        while self.index.sweep_registrations(now).await? {}
        Ok(())
    }
}
