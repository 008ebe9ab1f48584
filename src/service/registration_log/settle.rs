//! Settles open records: those of changes that several servers have begun and may not have made.
//!
//! The index knows which records are open: each is from when its number was taken until the
//! transaction of its change. A record is abandoned if it is open and its server has ended, or has
//! given it up. Then its change was not made and never will be, and the record is removed: while
//! servers run by [`Store::settle_ended`], and at the first start by [`Store::agree`].
//!
//! After a removal the record stays open for a day and is removed again from time to time, because
//! an S3 store may execute the request that stores it late. A crash leaves it open, too.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::record::{HubRecord, Record};
use super::tail::Tail;
use crate::blob::records::Seq;
use crate::service::Store;
use crate::service::error::StoreError;

/// A request that stores a record may arrive after its server has ended. So the record is removed
/// again after each of these pauses, for a day.
const REMOVAL_PAUSE: Duration = Duration::from_secs(600);
const REMOVAL_TIME: Duration = Duration::from_secs(24 * 3600);

/// Records of ended servers: when this process first saw each, and when it last removed it.
#[derive(Debug, Default)]
pub struct AbandonedRecords(HashMap<u64, (Instant, Option<Instant>)>);

/// What was done about the record of a change that was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Abandoned {
    /// It was removed, or did not exist.
    Removed,
    /// It stays: it has no effect without the last record of its change, which may be applied.
    Part,
    /// It stays, because only the program that has written it can tell whether it is a part.
    Unreadable,
}

impl Store {
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
            match self.remove_abandoned(Seq::new(seq)).await? {
                Abandoned::Removed if !is_over => {}
                Abandoned::Removed | Abandoned::Part => self.index.close_record(seq).await?,
                Abandoned::Unreadable if last.is_none() => tracing::warn!(
                    record = seq,
                    "left the record of a change that was not made, because it is damaged or a newer zorb has written it"
                ),
                Abandoned::Unreadable => {}
            }
        }
        Ok(())
    }

    /// Removes the record of a change that was not made, unless it is a part of a change with
    /// several records, or a program of another version has written it.
    async fn remove_abandoned(&self, seq: Seq) -> Result<Abandoned, StoreError> {
        match self.read_record(seq).await? {
            Some(Ok(Record::Hub(HubRecord { is_partial: true, .. }))) => return Ok(Abandoned::Part),
            Some(Err(_)) => return Ok(Abandoned::Unreadable),
            Some(Ok(_)) | None => {}
        }
        if self.records.remove(seq).await? {
            tracing::info!(record = %seq, "removed the record of a change that a server did not make");
        }
        Ok(Abandoned::Removed)
    }

    /// Several servers, of which this one is the first: settles the records of changes that the
    /// servers before have not made. All are removed, except that registrations of the tail stay,
    /// for the caller to apply. Changes of other kinds are not applied: another server may have
    /// acknowledged that a file or a branch exists, which changed nothing and has no record.
    ///
    /// A registration gets a new number, because a request of an ended server that removes the old
    /// one may be under way, and would remove a record that the index has applied.
    ///
    /// If the tail shows that the database was set back, none is removed: the changes of all of
    /// them may have been acknowledged.
    pub(super) async fn settle_open(&self, tail: &mut Tail) -> Result<(), StoreError> {
        let open = self.index.abandoned_records().await?;
        let mut was_set_back = false;
        for seq in &tail.seqs {
            // A part is closed without being applied.
            was_set_back |= !open.contains(&seq.number()) && !self.is_partial_record(*seq).await?;
        }
        let mut to_close = Vec::new();
        for seq in open.into_iter().map(Seq::new) {
            if was_set_back {
                to_close.push(seq);
                continue;
            }
            if tail.seqs.contains(&seq)
                && let Some(Ok(Record::Register(_))) = self.read_record(seq).await?
                && let Some(registration) = self.records.read(seq).await?
            {
                let renumbered = self.records.append(registration).await?;
                tail.seqs.push(renumbered);
                to_close.push(renumbered);
            }
            match self.remove_abandoned(seq).await? {
                // It stays open, because its request may still be under way.
                Abandoned::Removed => tail.seqs.retain(|of_tail| *of_tail != seq),
                Abandoned::Part => to_close.push(seq),
                Abandoned::Unreadable => {}
            }
        }
        // Before they are applied: the record of an applied change that is open would be removed by
        // the next start. After the removals: with some of the tail closed and not applied, the
        // next start takes the database for one that was set back, and removes nothing.
        for seq in to_close {
            self.index.close_record(seq.number()).await?;
        }
        Ok(())
    }
}
