//! Replays records, from the oldest to the newest, in an index that has all xorbs.
//!
//! The terms and the time of a file are those of its *first* registration. They stay when that one
//! is removed while other repositories have the file. Only a record of new terms changes the terms.
//! It may be the only proof of a file: the xorbs of the old terms may have been deleted since. So
//! records of new terms are read first.
//!
//! Nothing that a record states of files is trusted: each file is proven as that of a client is.
//! The owners of its xorbs and its time are trusted; the record's own hash proves that they are
//! what was written. A file with a missing xorb waits. A later registration may name other xorbs,
//! and then every repository that had registered the file has it. Or a later removal may drop it.

mod parts;
mod prove;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use self::parts::{Problem, Proven, Unproven, Waiting};
use super::owners_of;
use super::rebuild::{RebuildError, Rebuilt};
use super::record::{Record, RecordError, Registered as Registrations, parse};
use crate::blob::BlobErrorKind;
use crate::blob::records::Seq;
use crate::format::shard::{FileInfo, Shard, parse_stored as parse_shard};
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::index::{Allowance, Claim, ClaimState, NewFile, Registered, Registration};
use crate::runtime::clock::Timestamp;
use crate::runtime::fair::Tenant;
use crate::service::Cas;
use crate::service::access::RepoScope;
use crate::service::archive::Watch;
use crate::service::contents::{Contents, file_count};
use crate::service::error::StoreError;
use crate::service::possession::single_chunks;
use crate::service::register::{RegisterError, distinct, domain};

/// How long it may take to read a file that decides between two claims: no request waits for it.
const CONFLICT_WAIT: Duration = Duration::from_secs(24 * 3600);

/// One pass over all records, or those after one.
pub(super) struct Replay<'a> {
    cas: &'a Cas,
    watch: &'a dyn Watch,
    rebuilt: &'a mut Rebuilt,
    /// The records of new terms for each file that has any, from the oldest on.
    switched: HashMap<FileHash, Vec<Seq>>,
    waiting: HashMap<FileHash, Vec<Waiting>>,
    /// The records after this one are replayed.
    begin: Option<Seq>,
    /// The record that is being replayed.
    current: Seq,
    /// Records that were not replayed completely.
    left: BTreeSet<Seq>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(cas: &'a Cas, watch: &'a dyn Watch, rebuilt: &'a mut Rebuilt) -> Self {
        let (switched, waiting, left) = (HashMap::new(), HashMap::new(), BTreeSet::new());
        Self { cas, watch, rebuilt, switched, waiting, begin: None, current: Seq::new(0), left }
    }

    /// The same over the records after this one.
    pub(super) const fn behind(mut self, begin: Option<Seq>) -> Self {
        self.begin = begin;
        self
    }

    /// Returns the records that were not replayed completely.
    pub(super) async fn run(mut self) -> Result<BTreeSet<Seq>, RebuildError> {
        let mut after = self.begin;
        while let Some(seqs) = self.page(&mut after).await? {
            for seq in seqs {
                if let Some(Ok(Record::Terms { shard, owners, .. })) = self.read(seq).await?
                    && let Ok(shard) = parse_shard(&shard)
                {
                    self.collect_switch(seq, &shard, &owners).await?;
                }
            }
        }
        after = self.begin;
        while let Some(seqs) = self.page(&mut after).await? {
            for seq in seqs {
                self.current = seq;
                match self.read(seq).await? {
                    None => {}
                    Some(Ok(record)) => {
                        self.rebuilt.record_count += 1;
                        self.repeat(seq, record).await?;
                    }
                    Some(Err(source)) => self.skip_damaged(seq, source),
                }
            }
        }
        while self.cas.index.sweep_removed(self.cas.clock.now()).await.map_err(StoreError::from)? {}
        for waiting in std::mem::take(&mut self.waiting).into_values().flatten() {
            self.current = waiting.seq;
            let (file, source) = (waiting.file.hash, RegisterError::MissingXorb { xorb: waiting.missing });
            self.leave_out(file, waiting.repo, source);
        }
        Ok(self.left)
    }

    /// Collects files with new terms, and enters the owners of the new xorbs: they must be known
    /// before earlier registrations are replayed.
    async fn collect_switch(
        &mut self,
        seq: Seq,
        shard: &Shard,
        owners: &BTreeMap<String, Vec<u32>>,
    ) -> Result<(), RebuildError> {
        let named = distinct(shard.files.iter().flat_map(|file| &file.terms).map(|term| term.xorb), &[]);
        for (domain, xorb) in owners_of(owners, &named) {
            self.cas.index.share_xorb(xorb, domain.clone()).await.map_err(StoreError::from)?;
        }
        for file in &shard.files {
            self.switched.entry(file.hash).or_default().push(seq);
        }
        Ok(())
    }

    async fn page(&self, after: &mut Option<Seq>) -> Result<Option<Vec<Seq>>, StoreError> {
        let page = self.cas.records.list(*after).await?;
        *after = page.last().copied().or(*after);
        Ok(Some(page).filter(|page| !page.is_empty()))
    }

    /// A record, or its fault; `None` where it does not exist any more.
    async fn read(&self, seq: Seq) -> Result<Option<Result<Record, RecordError>>, RebuildError> {
        let bytes = match self.cas.records.read(seq).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(error) if error.kind == BlobErrorKind::Corrupt => return Ok(Some(Err(RecordError::Damaged))),
            Err(error) => return Err(StoreError::from(error).into()),
        };
        match self.cas.verify_pool.run(move || parse(&bytes)).await {
            // Never skipped: it may be the removal of a file.
            Err(RecordError::Version { found }) => Err(RebuildError::Newer { seq, found }),
            parsed => Ok(Some(parsed)),
        }
    }

    fn skip_damaged(&mut self, seq: Seq, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) {
        self.rebuilt.damaged_record_count += 1;
        self.left.insert(seq);
        self.watch.problem(&Problem::Record { seq, source: source.into() });
    }

    fn leave_out(&mut self, file: FileHash, repo: String, source: RegisterError) {
        self.rebuilt.left_out_count += 1;
        self.left.insert(self.current);
        self.watch.problem(&Problem::File { file, repo, source });
    }

    async fn repeat(&mut self, seq: Seq, record: Record) -> Result<(), RebuildError> {
        match record {
            Record::Register(registered) => self.register(seq, registered).await,
            Record::Remove { at, file, repo } => {
                if let Some(waiting) = self.waiting.get_mut(&file) {
                    waiting.retain(|waiting| repo.as_ref().is_some_and(|repo| *repo != waiting.repo));
                }
                if let Some(repo) = &repo {
                    self.settle_before_removal(file, repo).await?;
                }
                self.cas.index.remove_claims(file, repo, at).await.map_err(StoreError::from)?;
                Ok(())
            }
            // Those that matter were collected before.
            Record::Terms { .. } => Ok(()),
        }
    }

    /// Reads a file that other repositories have, before its only claimant of a sha256 is removed.
    /// By the time of the removal the claim was most likely verified, and so visible to all of
    /// them. An unverified claim would be removed with the repository.
    async fn settle_before_removal(&self, file: FileHash, repo: &str) -> Result<(), StoreError> {
        let readers = self.cas.index.readers_of(file).await?;
        let is_only_claimant = readers.iter().all(|(reader, has_claimed)| *has_claimed == (reader == repo));
        if readers.len() > 1
            && is_only_claimant
            && let Some(sha256) = self.cas.index.unverified_sha256(file).await?
        {
            self.cas.settle_before(Claim { file, sha256 }, Instant::now() + CONFLICT_WAIT).await;
        }
        Ok(())
    }

    async fn register(&mut self, seq: Seq, registered: Registrations) -> Result<(), RebuildError> {
        let Registrations { at, repos, owners, origin, shard } = registered;
        let shard = match self.cas.verify_pool.run(move || parse_shard(&shard)).await {
            Ok(shard) => shard,
            Err(error) => {
                self.skip_damaged(seq, error);
                return Ok(());
            }
        };
        let scopes = repos.iter().map(|repo| repo.parse::<RepoScope>()).collect::<Result<Vec<_>, _>>();
        let scopes = match scopes {
            Ok(scopes) => scopes,
            Err(error) => {
                self.skip_damaged(seq, error);
                return Ok(());
            }
        };
        let Shard { files, xorbs } = shard;
        let named = distinct(files.iter().flat_map(|file| &file.terms).map(|term| term.xorb), &xorbs);
        for (domain, xorb) in owners_of(&owners, &named) {
            self.cas.index.share_xorb(xorb, domain.clone()).await.map_err(StoreError::from)?;
        }
        let (mut dedup, mut listed) = self.prove_listed(seq, &xorbs).await?;
        let (mut proven, mut unproven, mut contents) = (Vec::new(), Vec::new(), Contents::default());
        let (mut files, mut place) = (files.into_iter(), 0);
        while files.len() > 0 {
            let count = file_count(files.as_slice()).max(1);
            let some: Vec<FileInfo> = files.by_ref().take(count).collect();
            let claims: Vec<NewFile> = some.iter().map(claim_of).collect();
            let outcomes;
            (outcomes, contents) = self.prove_some(seq, some, contents).await?;
            for (claim, outcome) in claims.into_iter().zip(outcomes) {
                let since = origin.as_ref().and_then(|origin| origin.since_ms.get(place));
                let at = since.map_or(at, |millis| Timestamp::from_millis(*millis));
                place += 1;
                match outcome {
                    Ok((file, first, is_switched)) => proven.push(Proven { file, first, at, is_switched }),
                    Err(why) => unproven.push((claim, at, why)),
                }
            }
        }
        // Records of older versions list xorbs beside those of their files.
        let (chunks, unlisted) = self.chunks_to_ask_for(proven.iter()).await?;
        dedup.extend(chunks);
        listed.extend(unlisted);
        for (repo, scope) in repos.into_iter().zip(&scopes) {
            for (file, at, why) in &unproven {
                self.postpone(file, *at, why, &repo).await?;
            }
            self.register_for(&repo, scope, at, &proven, (&dedup, &listed)).await?;
        }
        Ok(())
    }

    async fn postpone(
        &mut self,
        file: &NewFile,
        at: Timestamp,
        why: &Unproven,
        repo: &str,
    ) -> Result<(), RebuildError> {
        match why {
            Unproven::Missing(missing) => {
                let (file, repo) = (file.clone(), repo.to_owned());
                let waiting = Waiting { seq: self.current, file, repo, at, missing: *missing };
                self.waiting.entry(waiting.file.hash).or_default().push(waiting);
            }
            Unproven::False(error) => {
                let actual = match error {
                    RegisterError::FileHash { actual, .. } => *actual,
                    _ => file.hash,
                };
                tracing::debug!(file = %file.hash, error = %crate::runtime::telemetry::chain(error), "not proven");
                let claimed = file.hash;
                self.leave_out(file.hash, repo.to_owned(), RegisterError::FileHash { claimed, actual });
            }
        }
        Ok(())
    }

    async fn register_for(
        &mut self,
        repo: &str,
        scope: &RepoScope,
        at: Timestamp,
        proven: &[Proven],
        (dedup, listed): (&[(ChunkHash, XorbHash)], &[XorbHash]),
    ) -> Result<(), RebuildError> {
        let mut by_time: BTreeMap<u64, Vec<NewFile>> = BTreeMap::new();
        // Also without files: listed xorbs matter, too.
        by_time.entry(at.as_millis()).or_default();
        let mut asked_for = dedup.to_vec();
        // The owner's possession was proven for the original terms. Of a new xorb no owner claims
        // possession. Nearly always the owner has all of them.
        let is_asked = |proven: &&Proven| *scope != RepoScope::All && !proven.is_switched;
        let terms = proven.iter().filter(is_asked).flat_map(|proven| &proven.file.terms);
        let has_all = match self.cas.prove_possession(single_chunks(terms, &[]), &domain(scope)).await {
            Ok(()) => true,
            Err(RegisterError::Store(error)) => return Err(error.into()),
            Err(_) => false,
        };
        for of_file in proven {
            let Proven { file, first, at, .. } = of_file;
            if !has_all && is_asked(&of_file) {
                let single = single_chunks(file.terms.iter(), &[]);
                match self.cas.prove_possession(single, &domain(scope)).await {
                    Ok(()) => {}
                    Err(RegisterError::Store(error)) => return Err(error.into()),
                    Err(other) => {
                        self.leave_out(file.hash, repo.to_owned(), other);
                        continue;
                    }
                }
            }
            asked_for.extend(first);
            by_time.entry(at.as_millis()).or_default().push(file.clone());
        }
        let last = by_time.keys().next_back().copied();
        for (millis, files) in by_time {
            let terms = files.iter().flat_map(|file| &file.terms).map(|term| term.xorb);
            let mut xorbs = distinct(terms, &[]);
            let mut dedup = Vec::new();
            if Some(millis) == last {
                // Once, with the last of them.
                dedup.clone_from(&asked_for);
                let more = listed.iter().copied().chain(asked_for.iter().map(|(_, xorb)| *xorb));
                xorbs = distinct(xorbs.into_iter().chain(more), &[]);
            }
            let now = Timestamp::from_millis(millis);
            self.enter(Registration {
                repo: repo.to_owned(),
                files,
                xorbs,
                dedup,
                now,
                allowance: Allowance::default(),
            })
            .await?;
        }
        Ok(())
    }

    /// Registers proven files, after the registrations that have waited for one of them.
    fn enter(&mut self, registration: Registration) -> BoxFuture<'_, Result<(), RebuildError>> {
        async move {
            for file in &registration.files {
                for waiting in self.waiting.remove(&file.hash).into_iter().flatten() {
                    let first = Registration {
                        repo: waiting.repo,
                        files: vec![NewFile { sha256: waiting.file.sha256, ..file.clone() }],
                        xorbs: distinct(file.terms.iter().map(|term| term.xorb), &[]),
                        dedup: Vec::new(),
                        now: waiting.at,
                        allowance: Allowance::default(),
                    };
                    self.enter(first).await?;
                }
            }
            let mut registration = Arc::new(registration);
            loop {
                // As for a client. A start that is killed leaves hidden rows, which the next one
                // discards.
                let registered = self.cas.write_registration(Tenant::SERVER, &registration, None).await?;
                match registered {
                    Registered::New | Registered::Added | Registered::Known => return Ok(()),
                    Registered::OverQuota(_) => unreachable!("this registration has no limits"),
                    Registered::MissingXorb(xorb) | Registered::DamagedXorb(xorb) => {
                        self.take_out(Arc::make_mut(&mut registration), xorb);
                    }
                    Registered::OtherSha256 { file, unverified } => {
                        let deadline = Instant::now() + CONFLICT_WAIT;
                        let settled = match unverified {
                            Some(sha256) => self.cas.settle_before(Claim { file, sha256 }, deadline).await,
                            None => None,
                        };
                        if !matches!(settled, Some(ClaimState::False { .. })) {
                            tracing::warn!(%file, repo = registration.repo, "left out a sha256: the file has \
                                another one");
                            let files = &mut Arc::make_mut(&mut registration).files;
                            let same = files.iter_mut().filter(|other| other.hash == file);
                            same.for_each(|other| other.sha256 = None);
                        }
                    }
                }
            }
        }
        .boxed()
    }

    /// Removes the files that need this xorb from a registration.
    fn take_out(&mut self, registration: &mut Registration, xorb: XorbHash) {
        registration.xorbs.retain(|other| *other != xorb);
        registration.dedup.retain(|(_, other)| *other != xorb);
        let needs = |file: &NewFile| file.terms.iter().any(|term| term.xorb == xorb);
        let (out, files) = std::mem::take(&mut registration.files).into_iter().partition(needs);
        registration.files = files;
        let out: Vec<NewFile> = out;
        for file in out {
            self.leave_out(file.hash, registration.repo.clone(), RegisterError::MissingXorb { xorb });
        }
    }
}

/// A file of a record without its terms.
fn claim_of(file: &FileInfo) -> NewFile {
    NewFile { hash: file.hash, raw_len: file.raw_len(), terms: Vec::new(), sha256: file.sha256 }
}
