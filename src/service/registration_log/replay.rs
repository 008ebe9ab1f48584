//! Replays records, from the oldest to the newest, in an index that has all xorbs.
//!
//! The terms and the time of a file are those of its *first* registration. They stay when the
//! repository of that registration removes its claim and others still have the file. Only a record
//! of new terms changes the terms. Such a record may be the only proof of a file, because the xorbs
//! of the old terms may have been deleted since. So records of new terms are read in a first pass.
//!
//! The terms in a record are not trusted: each file is proven like a file of a client. The owners
//! of its xorbs and its time are trusted, because the record's own hash shows that they are
//! unchanged. A file with a missing xorb waits. If a later registration names other xorbs that
//! exist, every waiting registration of the file is applied with its terms. A later removal may
//! instead drop the file.

mod enter;
mod hub;
mod parts;
mod prove;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use self::parts::{Problem, Proven, Unproven, Waiting, claim_of};
use super::owners_of;
use super::rebuilt::{RebuildError, Rebuilt};
use super::record::{Record, RecordError, Registered as Registrations, parse};
use crate::blob::BlobErrorKind;
use crate::blob::records::Seq;
use crate::format::shard::{FileInfo, Shard, parse_stored as parse_shard};
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::index::{Allowance, Claim, NewFile, Registration};
use crate::runtime::clock::Timestamp;
use crate::runtime::fair::FairGate;
use crate::service::Store;
use crate::service::access::RepoScope;
use crate::service::archive::Watch;
use crate::service::contents::{Contents, file_count};
use crate::service::error::{RegisterError, StoreError};
use crate::service::permits::write_steps;
use crate::service::possession::single_chunks;
use crate::service::register::distinct;
use crate::service::scope::domain;

/// Maximum time for reading a file in order to decide between two claims of its sha256. The time is
/// long, because no request waits for a replay.
const CONFLICT_WAIT: Duration = Duration::from_secs(24 * 3600);

/// One replay of all records, or of those after a given one.
pub(super) struct Replay<'a> {
    store: &'a Store,
    /// The gate of the write steps. Nothing else writes to the index meanwhile, so no step has to
    /// wait.
    write_steps: FairGate,
    watch: &'a dyn Watch,
    rebuilt: &'a mut Rebuilt,
    /// For each file that was switched, its records of new terms, oldest first.
    switched: HashMap<FileHash, Vec<Seq>>,
    /// Registrations that wait for a missing xorb.
    waiting: HashMap<FileHash, Vec<Waiting>>,
    /// Only the records after this one are replayed.
    begin: Option<Seq>,
    /// Only these records are replayed; `None` for all.
    only: Option<BTreeSet<Seq>>,
    /// The record that is being replayed.
    current: Seq,
    /// Records that could not be replayed completely.
    left: BTreeSet<Seq>,
    /// The storage names of Hub repositories of which only the creation was replayed.
    only_created: BTreeSet<String>,
    /// Those of them that lost their names to later ones, and have no later record yet.
    evicted: BTreeSet<String>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(store: &'a Store, watch: &'a dyn Watch, rebuilt: &'a mut Rebuilt) -> Self {
        Self {
            store,
            write_steps: write_steps(),
            watch,
            rebuilt,
            switched: HashMap::new(),
            waiting: HashMap::new(),
            begin: None,
            only: None,
            current: Seq::new(0),
            left: BTreeSet::new(),
            only_created: BTreeSet::new(),
            evicted: BTreeSet::new(),
        }
    }

    /// Replays only these records. One that an S3 store stores late, for a server that has ended,
    /// is not replayed.
    pub(super) fn of_tail(mut self, only: BTreeSet<Seq>) -> Self {
        self.begin = only.first().and_then(|first| first.number().checked_sub(1)).map(Seq::new);
        self.only = Some(only);
        self
    }

    /// Replays the records. Returns those that were not replayed completely.
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
                        self.replay_record(seq, record).await?;
                    }
                    Some(Err(source)) => self.skip_damaged(seq, source),
                }
            }
        }
        self.drop_evicted().await?;
        while self.store.index.sweep_removed(self.store.clock.now()).await.map_err(StoreError::from)? {}
        for waiting in std::mem::take(&mut self.waiting).into_values().flatten() {
            self.current = waiting.seq;
            let (file, source) = (waiting.file.hash, RegisterError::MissingXorb { xorb: waiting.missing });
            self.leave_out(file, waiting.repo, source);
        }
        Ok(self.left)
    }

    /// Collects files with new terms, and enters the owners of the new xorbs: these must be known
    /// before earlier registrations are replayed.
    async fn collect_switch(
        &mut self,
        seq: Seq,
        shard: &Shard,
        owners: &BTreeMap<String, Vec<u32>>,
    ) -> Result<(), RebuildError> {
        let named = distinct(shard.files.iter().flat_map(|file| &file.terms).map(|term| term.xorb), &[]);
        for (domain, xorb) in owners_of(owners, &named) {
            self.store.index.share_xorb(xorb, domain.clone()).await.map_err(StoreError::from)?;
        }
        for file in &shard.files {
            self.switched.entry(file.hash).or_default().push(seq);
        }
        Ok(())
    }

    async fn page(&self, after: &mut Option<Seq>) -> Result<Option<Vec<Seq>>, StoreError> {
        let mut page = self.store.records.list(*after).await?;
        if page.is_empty() {
            return Ok(None);
        }
        *after = page.last().copied();
        page.retain(|seq| self.only.as_ref().is_none_or(|only| only.contains(seq)));
        Ok(Some(page))
    }

    /// A record, or why it is invalid; `None` where it was removed.
    async fn read(&self, seq: Seq) -> Result<Option<Result<Record, RecordError>>, RebuildError> {
        let bytes = match self.store.records.read(seq).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(error) if error.kind == BlobErrorKind::Corrupt => return Ok(Some(Err(RecordError::Damaged))),
            Err(error) => return Err(StoreError::from(error).into()),
        };
        match self.store.pool.run(move || parse(&bytes)).await {
            // A record of a newer program is never skipped, because it may be the removal of a
            // file.
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

    async fn replay_record(&mut self, seq: Seq, record: Record) -> Result<(), RebuildError> {
        match record {
            Record::Register(registered) => self.register(seq, registered).await,
            Record::Remove { at, file, repo } => {
                if let Some(waiting) = self.waiting.get_mut(&file) {
                    waiting.retain(|waiting| repo.as_ref().is_some_and(|repo| *repo != waiting.repo));
                }
                if let Some(repo) = &repo {
                    self.settle_before_removal(file, repo).await?;
                }
                self.store.index.remove_claims(file, repo, at).await.map_err(StoreError::from)?;
                Ok(())
            }
            // The first pass has collected these records.
            Record::Terms { .. } => Ok(()),
            Record::Hub(change) => self.change_hub(seq, change).await,
        }
    }

    /// Verifies the sha256 of a file before its only claimant is removed, if other repositories
    /// have the file. When the file was removed, the claim was most likely verified, and so visible
    /// to all these repositories. An unverified claim would be removed with its claimant.
    async fn settle_before_removal(&self, file: FileHash, repo: &str) -> Result<(), StoreError> {
        let readers = self.store.index.readers_of(file).await?;
        let is_only_claimant = readers.iter().all(|(reader, has_claimed)| *has_claimed == (reader == repo));
        if readers.len() > 1
            && is_only_claimant
            && let Some(sha256) = self.store.index.unverified_sha256(file).await?
        {
            self.store.settle_before(Claim { file, sha256 }, Instant::now() + CONFLICT_WAIT).await;
        }
        Ok(())
    }

    async fn register(&mut self, seq: Seq, registered: Registrations) -> Result<(), RebuildError> {
        let Registrations { at, repos, owners, origin, shard } = registered;
        let shard = match self.store.pool.run(move || parse_shard(&shard)).await {
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
            self.store.index.share_xorb(xorb, domain.clone()).await.map_err(StoreError::from)?;
        }
        let (mut dedup, mut listed) = self.prove_listed(seq, &xorbs).await?;
        let (mut proven, mut unproven, mut contents) = (Vec::new(), Vec::new(), Contents::default());
        let (mut files, mut place) = (files.into_iter(), 0_u32);
        let later = origin.as_ref().map_or(&[][..], |origin| &origin.later);
        let later: HashMap<(u32, u32), Timestamp> = later.iter().map(|later| later.entry()).collect();
        while files.len() > 0 {
            let count = file_count(files.as_slice()).max(1);
            let some: Vec<FileInfo> = files.by_ref().take(count).collect();
            let claims: Vec<NewFile> = some.iter().map(claim_of).collect();
            let outcomes;
            (outcomes, contents) = self.prove_some(seq, some, contents).await?;
            for (claim, outcome) in claims.into_iter().zip(outcomes) {
                let since = origin.as_ref().and_then(|origin| origin.since_ms.get(place as usize));
                let at = since.map_or(at, |millis| Timestamp::from_millis(*millis));
                match outcome {
                    Ok((file, first, is_switched)) => proven.push(Proven { file, first, place, at, is_switched }),
                    Err(why) => unproven.push((claim, (place, at), why)),
                }
                place += 1;
            }
        }
        // Enter the dedup chunks of all xorbs of these files, because records of this version list
        // no xorbs.
        let (chunks, unlisted) = self.chunks_to_ask_for(proven.iter()).await?;
        dedup.extend(chunks);
        listed.extend(unlisted);
        // First the files of which each repository was the first, whose time is that of the file.
        for is_later in [false, true] {
            for ((repo, scope), number) in repos.iter().zip(&scopes).zip(0_u32..) {
                let time_of = |place: u32| later.get(&(place, number)).copied();
                for (file, (place, at), why) in &unproven {
                    if time_of(*place).is_some() == is_later {
                        self.postpone(file, time_of(*place).unwrap_or(*at), why, repo).await?;
                    }
                }
                let of_repo = proven.iter().filter(|of_file| time_of(of_file.place).is_some() == is_later);
                let of_repo: Vec<(&Proven, Timestamp)> =
                    of_repo.map(|of_file| (of_file, time_of(of_file.place).unwrap_or(of_file.at))).collect();
                if !is_later {
                    self.register_for((repo, scope), at, &of_repo, (&dedup, &listed)).await?;
                } else if !of_repo.is_empty() {
                    self.register_for((repo, scope), at, &of_repo, (&[], &[])).await?;
                }
            }
        }
        Ok(())
    }

    /// Lets a file wait for a missing xorb, or leaves it out if its record is wrong.
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

    /// Registers proven files for one repository.
    async fn register_for(
        &mut self,
        (repo, scope): (&str, &RepoScope),
        at: Timestamp,
        proven: &[(&Proven, Timestamp)],
        (dedup, listed): (&[(ChunkHash, XorbHash)], &[XorbHash]),
    ) -> Result<(), RebuildError> {
        let mut by_time: BTreeMap<u64, Vec<NewFile>> = BTreeMap::new();
        // Make an entry even without files, because the listed xorbs are registered with it.
        by_time.entry(at.as_millis()).or_default();
        let mut asked_for = dedup.to_vec();
        // Possession was proven for the original terms. The owner did not upload the new xorbs of a
        // switched file, so such files are not checked. Nearly always the owner has the xorbs of
        // all other files, so check these together first.
        let must_prove = |proven: &Proven| *scope != RepoScope::All && !proven.is_switched;
        let terms = proven.iter().map(|(of_file, _)| *of_file).filter(|of_file| must_prove(of_file));
        let terms = terms.flat_map(|proven| &proven.file.terms);
        let unproven = self.store.unproven_xorbs(single_chunks(terms, &[]), &domain(scope), None).await?;
        for (of_file, at) in proven {
            let Proven { file, first, .. } = of_file;
            let mut xorbs = file.terms.iter().map(|term| term.xorb);
            if must_prove(of_file)
                && let Some(xorb) = xorbs.find(|xorb| unproven.contains(xorb))
            {
                self.leave_out(file.hash, repo.to_owned(), RegisterError::MissingXorb { xorb });
                continue;
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
                // Dedup chunks and listed xorbs are entered once, with the last part.
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
}
