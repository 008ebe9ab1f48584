//! Walks through a store and returns a finding for each fault. Changes nothing.
//!
//! What each kind of finding means and how it is repaired is in [`fsck`](super).

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{Finding, Fsck, Kind, NAMED_FILE_COUNT, Presence, Repair};
use crate::blob::BlobKey;
use crate::format::{FileHash, XorbHash};
use crate::index::{FileFault, HubRepo, Index, MAX_CLOCK_LEAD, RepoKind, TotalsError, XorbHealth, XorbState};
use crate::runtime::clock::Timestamp;
use crate::runtime::telemetry::chain;
use crate::service::error::StoreError;
use crate::service::hub::RepoFault;
use crate::service::verify::{Damage, Pace, Verdict, key};

/// Rows of xorbs that one query lists.
const PAGE_COUNT: u32 = 256;

/// Rows whose blobs are checked or read concurrently: enough that a disk can reorder its requests.
const AT_ONCE: usize = 4;

/// How far in the future a time may be without a finding. Such a time has passed before the
/// operator reads the report.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// A walk through a store, step by step.
#[derive(Debug)]
pub struct Walk<'a> {
    fsck: &'a Fsck,
    step: Step,
    seen: Seen,
}

/// How much a walk has checked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Rows of xorbs.
    pub xorb_count: u64,
    /// Files.
    pub file_count: u64,
    /// Hub repositories.
    pub repo_count: u64,
    /// Bytes that were read from the blobs of these xorbs.
    pub read_len: u64,
}

/// What the next call of [`Walk::next_findings`] checks.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Rows of interrupted uploads and deletions. The step `Rows` does not see them, because they
    /// are not visible.
    Unfinished,
    /// The next page of visible rows, after this xorb, against their blobs.
    Rows(Option<XorbHash>),
    /// The blobs in this directory of 256, against the rows.
    Blobs(u8),
    /// The next page of files, after this one.
    Files(Option<FileHash>),
    /// The next Hub repository, of these kinds and before this number.
    Repos(&'static [RepoKind], i64),
    Totals,
    Times,
    Drafts,
    /// Nothing: the walk is complete.
    Over,
}

impl<'a> Walk<'a> {
    pub(super) const fn new(fsck: &'a Fsck) -> Self {
        Self { fsck, step: Step::Unfinished, seen: Seen { xorb_count: 0, file_count: 0, repo_count: 0, read_len: 0 } }
    }

    /// How much was checked so far.
    #[must_use]
    pub const fn seen(&self) -> Seen {
        self.seen
    }

    /// The findings of the next part of the store, possibly none; `None` after the last part.
    ///
    /// # Errors
    ///
    /// The store cannot be read. Earlier findings stay valid.
    pub async fn next_findings(&mut self) -> Result<Option<Vec<Finding>>, StoreError> {
        let (findings, next) = match self.step {
            Step::Unfinished => (self.unfinished().await?, Step::Rows(None)),
            Step::Rows(after) => self.rows(after).await?,
            Step::Blobs(group) => {
                (self.blobs(group).await?, group.checked_add(1).map_or(Step::Files(None), Step::Blobs))
            }
            Step::Files(after) => self.files(after).await?,
            Step::Repos(kinds, before) => self.repos(kinds, before).await?,
            Step::Totals => (self.totals().await?, Step::Times),
            Step::Times => (self.times().await?, Step::Drafts),
            Step::Drafts => (self.drafts().await?, Step::Over),
            Step::Over => return Ok(None),
        };
        self.step = next;
        Ok(Some(findings))
    }

    async fn unfinished(&self) -> Result<Vec<Finding>, StoreError> {
        if self.fsck.presence == Presence::Shared {
            // A running upload also has a staged row, and a running deletion a `Deleting` one.
            return Ok(Vec::new());
        }
        let rows = self.fsck.store.index.unfinished_xorbs().await?;
        let finding = |(hash, state)| {
            let what = if state == XorbState::Staged { "an upload" } else { "a deletion" };
            Finding::new(Kind::UnfinishedRow, format!("{what} was interrupted"), Repair::Finish).of_xorb(hash)
        };
        Ok(rows.into_iter().map(finding).collect())
    }

    async fn rows(&mut self, after: Option<XorbHash>) -> Result<(Vec<Finding>, Step), StoreError> {
        let page = self.fsck.store.index.health_after(after, PAGE_COUNT).await?;
        let Some(last) = page.last().map(|xorb| xorb.hash) else { return Ok((Vec::new(), Step::Blobs(0))) };
        self.seen.xorb_count += page.len() as u64;
        let fsck = self.fsck;
        let checks = stream::iter(page.into_iter().map(|xorb| fsck.check_row(xorb))).buffered(AT_ONCE);
        let checked: Vec<_> = checks.try_collect().await?;
        self.seen.read_len += checked.iter().map(|(_, read_len)| read_len).sum::<u64>();
        Ok((checked.into_iter().filter_map(|(finding, _)| finding).collect(), Step::Rows(Some(last))))
    }

    async fn blobs(&self, group: u8) -> Result<Vec<Finding>, StoreError> {
        let keys = self.fsck.store.blobs.list_group(group).await?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let names = keys.iter().map(|key| (key.xorb_hash(), key.incarnation())).collect();
        let mut findings = Vec::new();
        for (hash, incarnation) in self.fsck.store.index.unknown_names(names).await? {
            findings.extend(self.fsck.check_orphan(BlobKey::new(hash, incarnation)).await?);
        }
        Ok(findings)
    }

    async fn files(&mut self, after: Option<FileHash>) -> Result<(Vec<Finding>, Step), StoreError> {
        let page = self.fsck.store.index.faulty_files(after).await?;
        self.seen.file_count += page.file_count;
        let next = page.last.map_or(Step::Repos(&RepoKind::ALL, i64::MAX), |last| Step::Files(Some(last)));
        Ok((page.faults.into_iter().flat_map(file_findings).collect(), next))
    }

    async fn repos(&mut self, kinds: &'static [RepoKind], before: i64) -> Result<(Vec<Finding>, Step), StoreError> {
        let Some((kind, others)) = kinds.split_first() else { return Ok((Vec::new(), Step::Totals)) };
        let store = &self.fsck.store;
        let Some(repo) = store.index.list_hub_repos(*kind, None, before, 1).await?.pop() else {
            return Ok((Vec::new(), Step::Repos(others, i64::MAX)));
        };
        self.seen.repo_count += 1;
        let faults = store.check_hub_repo(&repo, self.fsck.is_deep).await?;
        let findings = faults.into_iter().map(|fault| repo_finding(&repo, fault)).collect();
        Ok((findings, Step::Repos(kinds, repo.id)))
    }

    async fn totals(&self) -> Result<Vec<Finding>, StoreError> {
        let drift = self.fsck.store.index.totals_drift().await?;
        if drift == TotalsError::default() {
            return Ok(Vec::new());
        }
        let TotalsError { xorb_count, serialized_len, raw_len } = drift;
        let detail = format!(
            "the totals lack {xorb_count} xorbs, {serialized_len} bytes of blobs and {raw_len} bytes of chunks"
        );
        Ok(vec![Finding::new(Kind::WrongTotals, detail, Repair::Add(drift))])
    }

    async fn times(&self) -> Result<Vec<Finding>, StoreError> {
        let now = self.fsck.store.clock.now();
        let found = self.fsck.store.index.future_times(future(self.fsck.store.index.as_ref(), now)).await?;
        let Some(latest) = found.latest else { return Ok(Vec::new()) };
        let xorbs = match found.xorb_count {
            0 => None,
            1 => Some("times of one xorb".to_owned()),
            count => Some(format!("times of {count} xorbs")),
        };
        let collection = found.has_collection.then(|| "the time of the last GC".to_owned());
        let what = xorbs.into_iter().chain(collection).collect::<Vec<_>>().join(" and ");
        let hours = (latest.as_secs() - now.as_secs()).div_ceil(3600);
        let detail = format!(
            "{what} in the future, by up to {hours} h; GC does not run until then: a clock ran ahead, or this \
             machine's clock is behind"
        );
        Ok(vec![Finding::new(Kind::FutureTimes, detail, Repair::SetBack)])
    }

    async fn drafts(&self) -> Result<Vec<Finding>, StoreError> {
        let count = self.fsck.store.blobs.draft_count().await?;
        if count == 0 || self.fsck.presence == Presence::Shared {
            return Ok(Vec::new());
        }
        let detail = format!("{count} temporary files of interrupted uploads");
        Ok(vec![Finding::new(Kind::TemporaryFiles, detail, Repair::Clear)])
    }
}

impl Fsck {
    /// Compares a row with its blob. Returns the finding, if there is one, and how many bytes were
    /// read. The finding names the xorb and the affected files.
    async fn check_row(&self, seen: XorbHealth) -> Result<(Option<Finding>, u64), StoreError> {
        match self.judge(&seen).await {
            Ok((None, read_len)) => Ok((None, read_len)),
            Ok((Some(mut finding), read_len)) => {
                finding.files = self.store.index.affected_files(seen.hash, NAMED_FILE_COUNT).await?;
                Ok((Some(finding.of_xorb(seen.hash)), read_len))
            }
            Err(StoreError::Blob(error)) => {
                let finding = Finding::new(Kind::Unchecked, chain(&error), Repair::LookInto);
                Ok((Some(finding.of_xorb(seen.hash)), 0))
            }
            Err(error) => Err(error),
        }
    }

    /// As [`check_row`](Self::check_row), but the finding names neither the xorb nor files, and a
    /// blob that cannot be read is an error.
    async fn judge(&self, seen: &XorbHealth) -> Result<(Option<Finding>, u64), StoreError> {
        let (verifier, is_known) = (self.verifier(), seen.damaged_at.is_some());
        let repair = if is_known { Repair::Upload } else { Repair::Quarantine };
        let len = match verifier.len(key(seen)).await? {
            Ok(len) => len,
            Err(damage) => {
                let kind = if matches!(damage, Damage::Missing) { Kind::MissingBlob } else { Kind::WrongBytes };
                return Ok((Some(Finding::new(kind, chain(&damage), repair)), 0));
            }
        };
        if !self.is_deep && !is_known && len == seen.serialized_len {
            return Ok((None, 0));
        }
        // The blob is read even if its length differs from the row: it may be another valid
        // serialization of the xorb.
        let mut pace = Pace::new(None);
        let verdict = verifier.verify(key(seen), Some(seen.serialized_len), &mut pace).await?;
        let finding = match verdict {
            Verdict::Sound(proven) if proven.is_described(&*self.store.index, seen).await? => is_known
                .then(|| Finding::new(Kind::FalseAlarm, "it was marked as damaged and is valid", Repair::Release)),
            Verdict::Sound(_) => {
                let detail = "its row describes another serialization than the blob's";
                // Beside a running server, only the server may update the row. It does so when it
                // scrubs the xorb. Until then the xorb must be quarantined, because the offsets in
                // the row are wrong. If the damage is known, it is quarantined already.
                let must_quarantine = self.presence == Presence::Shared && !is_known;
                let repair = if must_quarantine { Repair::Quarantine } else { Repair::Describe };
                Some(Finding::new(Kind::WrongRow, detail, repair))
            }
            Verdict::Damaged(damage) => {
                let kind = match damage {
                    Damage::Missing => Kind::MissingBlob,
                    Damage::Length { .. } => Kind::WrongLength,
                    Damage::Invalid(_) | Damage::OtherXorb { .. } | Damage::Unreadable(_) => Kind::WrongBytes,
                };
                Some(Finding::new(kind, chain(&damage), repair))
            }
        };
        Ok((finding, pace.read_len()))
    }

    /// Verifies a blob that the index does not know. `None` if the blob no longer exists.
    async fn check_orphan(&self, blob: BlobKey) -> Result<Option<Finding>, StoreError> {
        let verdict = match self.verifier().verify(blob, None, &mut Pace::new(None)).await {
            Err(StoreError::Blob(error)) => {
                return Ok(Some(Finding::new(Kind::Unchecked, chain(&error), Repair::LookInto).of_blob(blob)));
            }
            verdict => verdict?,
        };
        let finding = match verdict {
            Verdict::Sound(_) if self.is_surplus(blob).await? => {
                Finding::new(Kind::OrphanBlob, "a valid blob, but its xorb has another one", Repair::Remove)
            }
            Verdict::Sound(_) => Finding::new(Kind::OrphanBlob, "a valid blob has no row", Repair::Adopt),
            // The blob was deleted after it was listed.
            Verdict::Damaged(Damage::Missing) => return Ok(None),
            // The disk does not read it now. It may be the only copy, so it is not removed.
            Verdict::Damaged(damage @ Damage::Unreadable(_)) => {
                Finding::new(Kind::Unchecked, chain(&damage), Repair::LookInto)
            }
            Verdict::Damaged(_) => Finding::new(Kind::OrphanGarbage, "an invalid blob has no row", Repair::Remove),
        };
        Ok(Some(finding.of_blob(blob)))
    }

    /// Whether this unknown blob is not needed, because the row of its xorb names another blob that
    /// is sound. This reads the other blob. It may have damage that the row does not show yet, and
    /// then the unknown blob may be the last sound copy.
    pub(super) async fn is_surplus(&self, blob: BlobKey) -> Result<bool, StoreError> {
        let Some(seen) = self.store.index.find_health(blob.xorb_hash()).await? else { return Ok(false) };
        if seen.damaged_at.is_some() {
            return Ok(false);
        }
        let verdict = self.verifier().verify(key(&seen), Some(seen.serialized_len), &mut Pace::new(None)).await?;
        Ok(matches!(verdict, Verdict::Sound(_)))
    }
}

/// The time after which all times count as in the future: `now` and [`CLOCK_SLACK`], or what GC
/// tolerates of the clocks of other servers.
pub(super) fn future(index: &dyn Index, now: Timestamp) -> Timestamp {
    let slack = if index.has_other_clocks() { MAX_CLOCK_LEAD } else { CLOCK_SLACK };
    let slack = u64::try_from(slack.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_add(slack))
}

/// The finding for a fault of a Hub repository.
fn repo_finding(repo: &HubRepo, fault: RepoFault) -> Finding {
    match fault {
        RepoFault::Broken(detail) => Finding::new(Kind::BrokenRepository, detail, Repair::Recover),
        RepoFault::LostFiles(count, first) => {
            let (files, name) = (if count == 1 { "file" } else { "files" }, &repo.storage_name);
            let detail = format!(
                "the contents of {count} {files} of {name} are not registered for it: removed with zorb rm, or lost with \
                 their records; {first} is one of the hashes"
            );
            Finding::new(Kind::LostContents, detail, Repair::Commit)
        }
        RepoFault::Unchecked(detail) => {
            Finding::new(Kind::Unchecked, format!("{}: {detail}", repo.storage_name), Repair::LookInto)
        }
    }
}

/// The findings for the faults of one file.
fn file_findings(fault: FileFault) -> Vec<Finding> {
    let FileFault { file, lost, unreferenced, surplus_count, is_unreadable } = fault;
    let mut findings = Vec::new();
    if is_unreadable {
        findings.push(Finding::new(Kind::UnreadableTerms, "its terms do not parse", Repair::LookInto).of_file(file));
    }
    if !lost.is_empty() {
        let detail = format!("{} of its xorbs are missing", lost.len());
        let finding = Finding::new(Kind::LostXorbs, detail, Repair::Upload).of_file(file);
        findings.push(Finding { lost, ..finding });
    }
    if !unreferenced.is_empty() || surplus_count > 0 {
        let missing = unreferenced.len();
        let detail = format!("the file lacks {missing} references and has {surplus_count} surplus ones");
        findings.push(Finding::new(Kind::WrongReferences, detail, Repair::Rebuild).of_file(file));
    }
    findings
}
