//! Settles open records: those of changes that several servers have begun and may not have made.
//!
//! The index knows which records are open: each is from when its number was taken until the
//! transaction of its change. A record is abandoned if it is open and its server has ended, or has
//! given it up. Then its change was not made and never will be, and the record is removed: while
//! servers run by [`Store::settle_ended`], and at the first start by [`Store::agree`].
//!
//! After a removal the record stays open for a day and is removed again from time to time, because
//! an S3 store may execute the request that stores it late. A crash leaves it open, too.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::record::{HubRecord, Record};
use super::tail::Tail;
use crate::blob::records::Seq;
use crate::format::FileHash;
use crate::runtime::telemetry::chain;
use crate::service::Store;
use crate::service::error::StoreError;

/// A request that stores a record may arrive after its server has ended. So the record is removed
/// again after each of these pauses, for a day.
const REMOVAL_PAUSE: Duration = Duration::from_secs(600);
const REMOVAL_TIME: Duration = Duration::from_secs(24 * 3600);

/// Records of ended servers: when this process first saw each, and when it last removed it.
#[derive(Debug, Default)]
pub struct AbandonedRecords(HashMap<u64, (Instant, Instant)>);

/// What was done about the record of a change that was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Abandoned {
    /// It was removed, or did not exist.
    Removed,
    /// It stays: it has no effect without the last record of its change, which may be applied.
    Part,
    /// It stays: it says what the index has.
    Made,
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
        let abandoned: BTreeSet<u64> = abandoned.into_iter().collect();
        seen.0.retain(|seq, _| abandoned.contains(seq));
        let is_due = |seq: &u64| seen.0.get(seq).is_none_or(|(_, last)| now.duration_since(*last) >= REMOVAL_PAUSE);
        // Those that were not seen before come first.
        let mut due: Vec<u64> = abandoned.into_iter().filter(is_due).collect();
        due.sort_by_key(|seq| seen.0.contains_key(seq));
        let mut failure = None;
        for seq in due {
            if let Err(error) = self.settle_record(seq, now, seen).await {
                // The next call tries again.
                tracing::debug!(record = seq, error = %chain(&error), "cannot remove a record");
                failure.get_or_insert(error);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn settle_record(&self, seq: u64, now: Instant, seen: &mut AbandonedRecords) -> Result<(), StoreError> {
        let outcome = self.remove_abandoned(Seq::new(seq)).await?;
        let first = seen.0.get(&seq).map(|(first, _)| *first);
        if outcome == Abandoned::Unreadable && first.is_none() {
            tracing::warn!(
                record = seq,
                "left the record of a change that was not made, because it is damaged or a newer zorb has written it"
            );
        }
        let is_over = first.is_some_and(|first| now.duration_since(first) >= REMOVAL_TIME);
        if outcome == Abandoned::Part || is_over && outcome != Abandoned::Unreadable {
            self.index.close_record(seq).await?;
        }
        seen.0.insert(seq, (first.unwrap_or(now), now));
        Ok(())
    }

    /// Removes the record of a change that was not made, unless it is a part of a change with
    /// several records, a program of another version has written it, or it is that of a removal
    /// whose claim does not exist. Such a removal may have been made before its record.
    async fn remove_abandoned(&self, seq: Seq) -> Result<Abandoned, StoreError> {
        match self.read_record(seq).await? {
            Some(Ok(Record::Hub(HubRecord { is_partial: true, .. }))) => return Ok(Abandoned::Part),
            Some(Ok(Record::Remove { file, repo, .. })) if !self.is_claimed(file, repo.as_deref()).await? => {
                return Ok(Abandoned::Made);
            }
            Some(Err(_)) => return Ok(Abandoned::Unreadable),
            Some(Ok(_)) | None => {}
        }
        if self.records.remove(seq).await? {
            tracing::info!(record = %seq, "removed the record of a change that a server did not make");
        }
        Ok(Abandoned::Removed)
    }

    /// Whether this repository has a claim to the file, or any if `None`.
    async fn is_claimed(&self, file: FileHash, repo: Option<&str>) -> Result<bool, StoreError> {
        let readers = self.index.readers_of(file).await?;
        Ok(readers.iter().any(|(reader, _)| repo.is_none_or(|repo| repo == reader)))
    }

    /// Several servers, of which this one is the first: settles the open records of the tail. Their
    /// changes were not made, so they are removed, and the caller does not apply them. Another
    /// server may have acknowledged something else meanwhile that changed nothing and has no
    /// record: for example, that a file exists whose removal is in the tail.
    ///
    /// If the database was set back, these changes may have been made and acknowledged, and so may
    /// those of open records before the tail. Then all are applied, and none is removed.
    pub(super) async fn settle_open(&self, tail: &mut Tail) -> Result<(), StoreError> {
        let open: BTreeSet<Seq> = self.index.abandoned_records().await?.into_iter().map(Seq::new).collect();
        if open.is_empty() {
            return Ok(());
        }
        // A record of the tail that is not open is unknown to the database.
        if self.index.was_set_back().await? || tail.seqs.iter().any(|seq| !open.contains(seq)) {
            return self.take_over(open, tail).await;
        }
        for seq in open.into_iter().filter(|seq| tail.listed.contains(seq)).collect::<Vec<_>>() {
            // It stays open, because a request that stores it may still be under way.
            self.remove_abandoned(seq).await?;
            tail.leave_out(seq);
        }
        Ok(())
    }

    /// Closes these records, and adds those before the tail to it, under a number of their own. The
    /// locks of files and repositories ensure that no later change of the same one was made before.
    async fn take_over(&self, open: BTreeSet<Seq>, tail: &mut Tail) -> Result<(), StoreError> {
        tracing::warn!(count = open.len(), "the database was set back: changes of the time before are applied");
        for seq in &open {
            let record = match self.read_record(*seq).await? {
                Some(Ok(Record::Terms { .. } | Record::Hub(HubRecord { is_partial: true, .. })) | Err(_)) | None => {
                    continue;
                }
                Some(Ok(record)) => record,
            };
            if !tail.listed.contains(seq) {
                let again = self.pool.run(move || record.encode()).await;
                let again = self.records.append(again).await?;
                self.index.close_record(again.number()).await?;
                tail.add(again);
                self.records.remove(*seq).await?;
            }
        }
        for seq in open {
            self.index.close_record(seq.number()).await?;
        }
        Ok(())
    }
}
