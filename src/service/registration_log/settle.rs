//! Settles open records: those of changes that were begun and may not have been made.
//!
//! The index knows which records are open: each is from when its number was taken until the
//! transaction of its change. With one server those after the last applied record are open
//! ([`tail`](super::tail)), and so are those that the index lists, which later ones have overtaken.
//! A start applies both, because the index may be an older copy, and then their changes were
//! acknowledged.
//!
//! With several servers a record is abandoned if it is open and its server has ended, or has given
//! it up. Then its change was not made and never will be, and the record is removed: while servers
//! run by [`Store::settle_ended`], and at the first start by [`Store::agree`]. After a removal the
//! record stays open for a day and is removed again from time to time, because an S3 store may
//! execute the request that stores it late. A crash leaves it open, too.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::agree::Gap;
use super::record::{HubRecord, Record, RecordError, Registered};
use super::tail::Tail;
use crate::blob::records::Seq;
use crate::format::shard::{Shard, parse_stored, write_upload};
use crate::format::{FileHash, XorbHash};
use crate::index::StoreMark;
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

    /// Settles open records. With one server these are records before the tail. Those whose changes
    /// may have been made are added to the tail ([`early`](Self::early)), and the caller applies
    /// them. Without this, a removal that was not made could be followed by a registration of the
    /// same file that changes nothing, and has no record. A rebuilt index would lack the file.
    ///
    /// With several servers, of which this one is the first, these are records of the tail. Their
    /// changes were not made, so they are removed, and the caller does not apply them. Another
    /// server may have acknowledged something else meanwhile that changed nothing and has no
    /// record: for example, that a file exists whose removal is in the tail.
    ///
    /// If the database was set back, these changes may have been made and acknowledged, and so may
    /// those of open records before the tail. Then these are added to the tail
    /// ([`early`](Self::early)).
    ///
    /// Returns the records that the caller must close when it has applied the tail. Until then a
    /// start that dies leaves them open, and the next one does the same.
    ///
    /// # Errors
    ///
    /// [`Gap::Behind`], or the store failed.
    pub(super) async fn settle_open(&self, mark: &StoreMark, tail: &mut Tail) -> Result<Vec<Seq>, Gap> {
        let open = self.index.abandoned_records().await.map_err(StoreError::from)?;
        let open: BTreeSet<Seq> = open.into_iter().map(Seq::new).collect();
        if open.is_empty() {
            return Ok(Vec::new());
        }
        if !self.index.is_shared() {
            for seq in self.early(mark, &open).await? {
                tail.add(seq);
            }
            // This closes the others, too.
            let last = mark.last_record.map(Seq::new);
            return Ok(open.into_iter().rfind(|seq| Some(*seq) <= last).into_iter().collect());
        }
        // A record of the tail that is not open is unknown to the database.
        let is_unknown = tail.seqs.iter().any(|seq| !open.contains(seq));
        if is_unknown || self.index.was_set_back().await.map_err(StoreError::from)? {
            tracing::warn!("the database was set back: changes of the time before are applied from their records");
            let of_tail = open.iter().copied().filter(|seq| tail.listed.contains(seq));
            let mut to_close: Vec<Seq> = of_tail.collect();
            for seq in self.early(mark, &open).await? {
                tail.add(seq);
                to_close.push(seq);
            }
            to_close.sort_unstable();
            return Ok(to_close);
        }
        let mut to_close = Vec::new();
        for seq in open.into_iter().filter(|seq| tail.listed.contains(seq)).collect::<Vec<_>>() {
            match self.remove_abandoned(seq).await? {
                // It changes nothing, and is marked as applied.
                Abandoned::Made => to_close.push(seq),
                // It stays open, because a request that stores it may still be under way.
                Abandoned::Removed | Abandoned::Part | Abandoned::Unreadable => tail.leave_out(seq),
            }
        }
        Ok(to_close)
    }

    /// The open records up to the last applied one whose changes may have been made. A change was
    /// not made if the index has applied a later one of the same file or repository: of two such
    /// changes the first is made before the second gets its number, except for two registrations,
    /// and with one server for a switch of terms.
    ///
    /// # Errors
    ///
    /// [`Gap::Behind`] if the index lacks a xorb that one of them needs, or the store failed.
    async fn early(&self, mark: &StoreMark, open: &BTreeSet<Seq>) -> Result<Vec<Seq>, Gap> {
        let last = mark.last_record.map(Seq::new);
        let (mut early, is_single) = (BTreeMap::new(), !self.index.is_shared());
        for seq in open.iter().copied().filter(|seq| Some(*seq) <= last) {
            match self.read_record(seq).await? {
                Some(Ok(record)) => early.extend(self.touched(record).await.map(|touched| (seq, touched))),
                Some(Err(RecordError::Version { found })) if is_single => return Err(Gap::Newer { seq, found }),
                Some(Err(error)) if is_single => {
                    tracing::warn!(record = %seq, error = %chain(&error), "cannot apply an open record");
                    self.index.add_unapplied_records(vec![seq.number()]).await.map_err(StoreError::from)?;
                }
                Some(Err(_)) | None => {}
            }
        }
        let mut after = early.keys().next().copied();
        while let Some(from) = after
            && Some(from) < last
            && !early.is_empty()
        {
            let page = self.records.list(Some(from)).await.map_err(StoreError::from)?;
            after = page.last().copied();
            for seq in page.into_iter().filter(|seq| Some(*seq) <= last && !open.contains(seq)) {
                if let Some(Ok(record)) = self.read_record(seq).await?
                    && let Some(later) = self.touched(record).await
                {
                    // The locks of one server do not exclude a compaction by a command.
                    let may_overlap = |earlier: &Touched| is_single && later.is_switch && !earlier.is_switch;
                    early
                        .retain(|earlier, touched| *earlier > seq || !touched.excludes(&later) || may_overlap(touched));
                }
            }
        }
        for (seq, touched) in &early {
            let files: Vec<FileHash> = touched.files.keys().copied().collect();
            let known = self.index.visible_files(files).await.map_err(StoreError::from)?;
            let known: HashSet<FileHash> = known.into_iter().collect();
            let missing = touched.files.iter().filter(|(file, _)| !known.contains(*file));
            let mut needed: HashSet<XorbHash> = missing.flat_map(|(_, xorbs)| xorbs.iter().copied()).collect();
            if touched.is_switch && !self.index.is_shared() {
                // As in the tail: a start switches no file that the index has.
                for file in &known {
                    needed.extend(self.terms_in_use(*file).await?);
                }
            }
            if !self.has_all(&needed).await? {
                return Err(Gap::Behind { seq: *seq });
            }
        }
        Ok(early.into_keys().collect())
    }

    /// What a record is about. `None` for a record that registers, removes and changes nothing by
    /// itself, or that cannot be read.
    async fn touched(&self, record: Record) -> Option<Touched> {
        let (shard, is_switch) = match record {
            Record::Hub(HubRecord { is_partial: true, .. }) => return None,
            Record::Hub(change) => return Some(Touched { repo: Some(change.storage_name), ..Touched::default() }),
            Record::Remove { file, .. } => {
                return Some(Touched { files: HashMap::from([(file, Vec::new())]), ..Touched::default() });
            }
            Record::Register(registered) => (registered.shard, false),
            Record::Terms { shard, .. } => (shard, true),
        };
        let shard = self.pool.run(move || parse_stored(&shard)).await.ok()?;
        let files = shard.files.into_iter();
        let files = files.map(|file| (file.hash, file.terms.iter().map(|term| term.xorb).collect())).collect();
        Some(Touched { repo: None, files, is_registration: !is_switch, is_switch })
    }

    /// Appends a record of nothing, which is to be the last applied one. A start expects that one
    /// to exist. Another one of the tail may be removed by a late request of an ended server.
    pub(super) async fn append_mark(&self) -> Result<Seq, StoreError> {
        let shard = Bytes::from(write_upload(&Shard::default()).expect("a shard may be empty"));
        let nothing =
            Registered { at: self.clock.now(), repos: Vec::new(), owners: BTreeMap::new(), origin: None, shard };
        Ok(self.records.append(Record::Register(nothing).encode()).await?)
    }
}

/// The files and the repository of the Hub that a record is about.
#[derive(Debug, Default)]
struct Touched {
    repo: Option<String>,
    /// The files, with the xorbs that they need.
    files: HashMap<FileHash, Vec<XorbHash>>,
    is_registration: bool,
    is_switch: bool,
}

impl Touched {
    /// Whether the first change is over before the other one begins.
    fn excludes(&self, later: &Self) -> bool {
        let has_same_repo = self.repo.is_some() && self.repo == later.repo;
        let has_same_file = || later.files.keys().any(|file| self.files.contains_key(file));
        has_same_repo || !(self.is_registration && later.is_registration) && has_same_file()
    }
}
