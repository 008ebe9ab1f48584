//! Verifies the sha256 that a client states for a file (spec 6.2, rule 11).
//!
//! The file hash does not prove the sha256. A sha256 that a client states at a registration is a
//! *claim* of its repository. While a claim is unverified, only its repository can find the file by
//! this sha256, and other repositories may claim another sha256 for the same file. A background
//! task reads the file and computes its digest. The digest then replaces all claims for the file.
//! This *settles* the claim, whether it was true or false.
//!
//! The task serves the repositories round-robin. In its round, a repository has its oldest claims
//! settled, up to a number of bytes; a longer file is continued in the next round. So a repository
//! waits for at most one round of each other repository, however many claims those have.
//!
//! There are two such tasks, each with its own *lane*: one for large files and one for all others.
//! So the others do not wait for large files.
//!
//! If a file cannot be read, its claim stays unverified. The file is tried again after a pause that
//! grows with each failure, and the task continues with other files. A crash loses only the
//! progress within files: the next start begins again with the claims that are still unverified.

mod progress;
mod small;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use sha2::{Digest, Sha256 as Hasher};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

pub(super) use self::progress::Progress;
use self::progress::{Read, Reading};
use super::access::Claims;
use super::download::Proof;
use super::error::{ReadError, StoreError};
use super::files::ReconstructError;
use super::reconstruct::Inconsistency;
use super::scope::reader;
use super::{Server, Store};
use crate::format::shard::{Sha256, Term};
use crate::format::{ByteRange, FileHash};
use crate::index::{Claim, ClaimState};
use crate::runtime::fair::Tenant;
use crate::runtime::telemetry::chain;

/// Claims that one query lists. The small files on one page are read together. So a page has many
/// claims, because then some of its files are close to each other in a xorb.
const PAGE_COUNT: u32 = 4096;

/// A file of at least this length is large. To read such a file takes a worker half a minute or
/// more.
pub(super) const LARGE_LEN: u64 = 16 << 30;

/// Raw bytes that are read in one round of a repository: about half a second of work for one
/// thread.
const ROUND_LEN: u64 = if cfg!(test) { 64 << 10 } else { 256 << 20 };

/// Maximum number of repositories with a partly read file, whose terms are in memory. The other
/// repositories wait until one of these files is done.
const MAX_READING_COUNT: usize = 256;

/// A file that was found by its sha256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sha256File {
    /// Which file.
    pub file: FileHash,
    /// Whether the server has verified the sha256. If not, it is an unverified claim of the
    /// reader's own repository.
    pub is_verified: bool,
}

/// How long to wait after failures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// The pause after a failure of the index.
    pub(super) index: Duration,
    /// The pause after the first failed read of a file. It doubles with every further failure.
    pub(super) first: Duration,
    /// The maximum pause between two reads of a file.
    pub(super) longest: Duration,
}

impl Pauses {
    /// The pauses of a server. Tests use shorter ones.
    const COMMON: Self =
        Self { index: Duration::from_secs(10), first: Duration::from_secs(60), longest: Duration::from_secs(3600) };
}

/// The two lanes of unverified claims.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// Files of at least this length are in the lane of large files.
    large_len: u64,
    common: Lane,
    large: Lane,
}

impl Unsettled {
    /// Two lanes, divided at this length.
    pub(super) fn new(large_len: u64) -> Self {
        Self { large_len, common: Lane::default(), large: Lane::default() }
    }

    /// Wakes the tasks of both lanes. To be called after a registration with a claim.
    pub(super) fn notify(&self) {
        self.common.notify.notify_one();
        self.large.notify.notify_one();
    }

    /// The lane whose shortest files have this length.
    fn lane(&self, least_len: u64) -> &Lane {
        if least_len < self.large_len { &self.common } else { &self.large }
    }
}

/// One of the lanes. Its task reads one file, or one run of small files, at a time.
#[derive(Debug, Default)]
struct Lane {
    /// Wakes the task of the lane.
    notify: Notify,
}

/// Why a file could not be read.
#[derive(Debug, Error)]
pub(super) enum CheckError {
    #[error(transparent)]
    File(#[from] ReconstructError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Server {
    /// A file with this sha256 that the holder of these claims may read. The sha256 is verified, or
    /// is an unverified claim of the holder's own repository.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn find_sha256(&self, claims: &Claims, sha256: Sha256) -> Result<Option<Sha256File>, StoreError> {
        let known = self.store.index.find_sha256(sha256, reader(claims)).await?;
        Ok(known.map(|known| Sha256File { file: known.file, is_verified: known.is_verified }))
    }

    /// Verifies the unverified claims, and waits for new ones, without end. The caller drops the
    /// future when the server stops. The next start verifies the claims that are left.
    pub async fn verify_claims(self: Arc<Self>) {
        self.verify_claims_with(Pauses::COMMON).await;
    }

    pub(super) async fn verify_claims_with(self: Arc<Self>, pauses: Pauses) {
        let large_len = self.unsettled.large_len;
        join(self.verify_lane(0..large_len, pauses), self.verify_lane(large_len..u64::MAX, pauses)).await;
    }

    /// The task of the lane of files with these lengths.
    async fn verify_lane(&self, lens: Range<u64>, pauses: Pauses) {
        let (mut progress, mut counted) = (Progress::default(), 0);
        let lane = self.unsettled.lane(lens.start);
        loop {
            let has_read = match self.store.settle_some(&lens, &mut progress, pauses).await {
                Ok(has_read) => has_read,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "sha256 verification paused: the index does not respond");
                    sleep(pauses.index).await;
                    continue;
                }
            };
            let unreadable = &progress.unreadable;
            let count = i64::try_from(unreadable.len()).unwrap_or(i64::MAX);
            self.store.metrics.sha256_unreadable.inc_by(count - counted);
            counted = count;
            if has_read {
                continue;
            }
            let notified = lane.notify.notified();
            match unreadable.values().map(|file| file.next_try).min() {
                None => notified.await,
                Some(next_try) => drop(timeout_at(next_try, notified).await),
            }
        }
    }

    /// As [`Store::settle_before`], but waits for a permit first, so that registrations do not
    /// start many such reads at once.
    pub(super) async fn settle_before(&self, claim: Claim, deadline: Instant) -> Option<ClaimState> {
        let settle = async {
            // The permit counts for the server, because the claim to be verified may be one of
            // another tenant than the one that waits for the result.
            let _permit = self.permits.walks.wait(Tenant::SERVER, 1).await;
            self.store.settle(claim).await
        };
        known_before(deadline, claim.file, settle).await
    }
}

impl Store {
    /// Serves each repository with unverified claims for files of these lengths once. If there was
    /// nothing to read for any of them, settles the claims that belong to no repository: a restored
    /// store has such claims. Skips files whose pause after a failure is not over. Returns whether
    /// a file was read for a repository, so that there may be more to read.
    pub(super) async fn settle_some(
        &self,
        lens: &Range<u64>,
        progress: &mut Progress,
        pauses: Pauses,
    ) -> Result<bool, StoreError> {
        let (mut after, mut has_read) = (None, false);
        while let Some(repo) = self.index.next_claimant(lens.clone(), after).await? {
            has_read |= self.settle_claims_of(&repo, lens, progress, pauses).await?;
            after = Some(repo);
        }
        if has_read {
            return Ok(true);
        }
        // A partly read file is always continued. So if nothing was read for any repository, the
        // claims of all partly read files were removed meanwhile.
        progress.reading.clear();
        let (mut after, mut listed) = (None, HashSet::new());
        loop {
            let page = self.index.unverified_claims(lens.clone(), after, PAGE_COUNT).await?;
            after = page.last().map(|claim| claim.file);
            for claim in &page {
                if progress.unreadable.contains_key(&claim.file) {
                    listed.insert(claim.file);
                }
                let is_paused = progress.is_paused(claim.file);
                if !is_paused && self.index.readers_of(claim.file).await?.iter().all(|(_, has_claimed)| !has_claimed) {
                    let read = self.settle(*claim).await;
                    progress.record(*claim, read.map(Read::Done), pauses);
                }
            }
            if after.is_none() {
                // If a file is not listed, its claim was settled or the file was removed. Then its
                // entry is forgotten after its pause.
                progress.unreadable.retain(|file, tried| listed.contains(file) || tried.next_try > Instant::now());
                return Ok(false);
            }
        }
    }

    /// One round of a repository: reads about `ROUND_LEN` bytes of the files that it has claims
    /// for. Returns whether anything was read.
    async fn settle_claims_of(
        &self,
        repo: &str,
        lens: &Range<u64>,
        progress: &mut Progress,
        pauses: Pauses,
    ) -> Result<bool, StoreError> {
        let (mut left, mut after, mut has_read) = (ROUND_LEN, None, false);
        if let Some(reading) = progress.reading.remove(repo) {
            let claim = reading.claim;
            left = self.read_in_round(repo, reading, left, progress, pauses).await;
            (after, has_read) = (Some(claim.file), true);
        } else if progress.reading.len() >= MAX_READING_COUNT {
            return Ok(false);
        }
        while left > 0 {
            let page = self.index.sha256_claims_of(repo.to_owned(), lens.clone(), after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.file);
            let page = page.into_iter().filter(|claim| !progress.is_paused(claim.file)).collect();
            let (rest, read_len) = self.settle_small(page, left).await?;
            left = left.saturating_sub(read_len);
            has_read |= read_len > 0;
            for claim in rest {
                if left > 0 && !progress.is_paused(claim.file) {
                    let reading = Reading::new(claim, Proof::Elsewhere);
                    left = self.read_in_round(repo, reading, left, progress, pauses).await;
                    has_read = true;
                }
            }
        }
        Ok(has_read)
    }

    /// Continues to read a file, until its end or until `left` bytes were read. Returns how many
    /// bytes are left of the round.
    async fn read_in_round(
        &self,
        repo: &str,
        reading: Reading,
        left: u64,
        progress: &mut Progress,
        pauses: Pauses,
    ) -> u64 {
        let claim = reading.claim;
        let mut rest = left;
        match self.read_for(reading, &mut rest).await {
            Ok(Read::Part(reading)) => {
                progress.reading.insert(repo.to_owned(), *reading);
                0
            }
            read => {
                progress.record(claim, read, pauses);
                // Every file counts as at least 1/1024 of a round, because a file that is empty or
                // cannot be read takes time, too.
                rest.min(left.saturating_sub(ROUND_LEN / 1024))
            }
        }
    }

    /// Verifies a claim now. `None` if that takes until the deadline or fails, or if the file does
    /// not exist any more. The claim then waits for a round of its repository.
    pub(super) async fn settle_before(&self, claim: Claim, deadline: Instant) -> Option<ClaimState> {
        known_before(deadline, claim.file, self.settle(claim)).await
    }

    /// Reads the whole file and records the result in the index. `None` if the file does not exist
    /// any more.
    async fn settle(&self, claim: Claim) -> Result<Option<ClaimState>, CheckError> {
        let (mut reading, mut left) = (Reading::new(claim, Proof::Elsewhere), u64::MAX);
        loop {
            match self.read_for(reading, &mut left).await? {
                Read::Part(part) => reading = *part,
                Read::Done(state) => return Ok(state),
            }
        }
    }

    /// Continues to read a file for about `left` raw bytes, and lowers `left` by the bytes that
    /// were read. Stops only at the end of a term. At the end of the file, records the result in
    /// the index.
    async fn read_for(&self, mut reading: Reading, left: &mut u64) -> Result<Read, CheckError> {
        let Claim { file, sha256 } = reading.claim;
        loop {
            if reading.terms.is_empty() {
                reading.terms = match self.next_terms(&mut reading.walk).await {
                    Err(ReconstructError::NotFound) => return Ok(Read::Done(None)),
                    terms => terms?.into(),
                };
            }
            let Some(term) = reading.terms.pop_front() else { break };
            reading.hasher = self.hash_term(file, &term, reading.proof, reading.hasher).await?;
            *left = left.saturating_sub(term.raw_len.into());
            if *left == 0 {
                return Ok(Read::Part(Box::new(reading)));
            }
        }
        let actual = Sha256::from_digest(reading.hasher.finalize().into());
        if actual != sha256 && reading.proof == Proof::Elsewhere {
            // Either the claim is false, or a blob is damaged. To tell which, the file is read
            // again from its start, and each chunk is compared with its hash.
            return Ok(Read::Part(Box::new(Reading::new(reading.claim, Proof::Chunks))));
        }
        let claim = reading.claim;
        let state = if actual == sha256 { ClaimState::Verified } else { ClaimState::False { actual } };
        if !self.index.settle_claim(claim, state).await.map_err(|error| ReadError::Store(error.into()))? {
            // The claim was settled by another reader of the file, or removed. The digest is right
            // all the same.
            return Ok(Read::Done(Some(state)));
        }
        if state == ClaimState::Verified {
            self.metrics.sha256_verified.inc();
        } else {
            self.metrics.sha256_mismatch.inc();
            let claimed = sha256;
            tracing::warn!(%file, %claimed, %actual, "sha256 mismatch: stored the actual digest");
        }
        Ok(Read::Done(Some(state)))
    }

    /// Updates the hasher with the raw bytes of a term.
    pub(super) async fn hash_term(
        &self,
        file: FileHash,
        term: &Term,
        proof: Proof,
        hasher: Hasher,
    ) -> Result<Hasher, CheckError> {
        let found = self.find(term.xorb).await.map_err(ReadError::Store)?;
        let xorb = found.ok_or(ReadError::Missing { hash: term.xorb })?;
        let raw = xorb.layout().raw_range(term.chunks).filter(|raw| raw.byte_len() == u64::from(term.raw_len));
        let raw: ByteRange = raw.ok_or_else(|| {
            let (xorb, chunks, term_len) = (term.xorb, term.chunks, term.raw_len.into());
            ReconstructError::Inconsistent { file, source: Inconsistency::Term { xorb, chunks, term_len } }
        })?;
        Ok(self.hash_raw(&xorb, raw, proof, hasher).await?)
    }
}

/// The result of `settle`; `None` if it fails or is not known at the deadline.
async fn known_before(
    deadline: Instant,
    file: FileHash,
    settle: impl Future<Output = Result<Option<ClaimState>, CheckError>>,
) -> Option<ClaimState> {
    match timeout_at(deadline, settle).await {
        Ok(Ok(state)) => state,
        Ok(Err(error)) => {
            tracing::debug!(%file, error = %chain(&error), "cannot verify a claimed sha256 now");
            None
        }
        // The claim waits for a round of its repository.
        Err(_) => None,
    }
}
