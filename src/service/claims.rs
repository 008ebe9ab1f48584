//! Verifies the sha256 that a client states for a file (spec 6.2, rule 11).
//!
//! The file hash does not prove it. So a task reads the file after its registration, one piece at a
//! time, and requests hardly notice. Until then only the repository that made the claim sees it,
//! and it refuses no claim of another repository. The digest of the file replaces all of these
//! claims.
//!
//! Repositories are served round-robin. In each round one of them has its oldest claims settled, or
//! a part of a large file read. However much one of them claims, the others wait for one round, not
//! for all of it.
//!
//! Large files have a lane of their own, and do not hold up the others.
//!
//! A file that cannot be read settles nothing. It is tried again after a growing pause, and the
//! others continue. None of this state needs to survive a crash: a claim is unverified until its
//! row says otherwise.

mod progress;
mod small;

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use futures_util::future::join;
use sha2::{Digest, Sha256 as Hasher};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

pub(super) use self::progress::Progress;
use self::progress::{Read, Reading};
use super::Cas;
use super::access::Claims;
use super::download::Proof;
use super::error::{ReadError, StoreError};
use super::files::{ReconstructError, reader};
use super::reconstruct::Inconsistency;
use crate::format::shard::{Sha256, Term};
use crate::format::{ByteRange, FileHash};
use crate::index::{Claim, ClaimState};
use crate::runtime::fair::Tenant;
use crate::runtime::telemetry::chain;

/// Claims that are listed at once. Small files among them are read together: in so many, some are
/// close to each other.
const PAGE_COUNT: u32 = 4096;

/// Bytes of the smallest large file: reading it takes a worker about half a minute.
pub(super) const LARGE_LEN: u64 = 16 << 30;

/// Raw bytes that are read in one round of a repository: half a second of a worker.
const ROUND_LEN: u64 = if cfg!(test) { 64 << 10 } else { 256 << 20 };

/// Repositories with a partly read file at once; each takes memory for its terms. The others wait
/// until one of these files is done.
const MAX_READING_COUNT: usize = 256;

/// A file that was found by its sha256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sha256File {
    /// Which file.
    pub file: FileHash,
    /// Whether the file was read and has this digest. If not, the reader's own repository claims
    /// it.
    pub is_verified: bool,
}

/// How long to wait after a failure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// Of the index.
    pub(super) index: Duration,
    /// After the first failed read of a file.
    pub(super) first: Duration,
    /// Between two of many failed reads of a file, at most.
    pub(super) longest: Duration,
}

impl Pauses {
    const COMMON: Self =
        Self { index: Duration::from_secs(10), first: Duration::from_secs(60), longest: Duration::from_secs(3600) };
}

/// Signals that there are claims to verify.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// Bytes of the smallest file of the lane of large files.
    large_len: u64,
    common: Lane,
    large: Lane,
}

impl Unsettled {
    /// None so far.
    pub(super) fn new(large_len: u64) -> Self {
        Self { large_len, common: Lane::default(), large: Lane::default() }
    }

    /// There may be new claims.
    pub(super) fn notify(&self) {
        self.common.notify.notify_one();
        self.large.notify.notify_one();
    }

    /// The lane of files of this length, or of more.
    fn lane(&self, least_len: u64) -> &Lane {
        if least_len < self.large_len { &self.common } else { &self.large }
    }
}

/// Claims that are verified one at a time.
#[derive(Debug, Default)]
struct Lane {
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

impl Cas {
    /// A file with this sha256: a verified one, or a claim of the reader's own repository.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn find_sha256(&self, claims: &Claims, sha256: Sha256) -> Result<Option<Sha256File>, StoreError> {
        let known = self.index.find_sha256(sha256, reader(claims)).await?;
        Ok(known.map(|known| Sha256File { file: known.file, is_verified: known.is_verified }))
    }

    /// Verifies claims for ever: the existing ones, and each that is registered. To be dropped when
    /// the store stops; nothing is lost by that.
    pub async fn verify_claims(self) {
        self.verify_claims_with(Pauses::COMMON).await;
    }

    pub(super) async fn verify_claims_with(self, pauses: Pauses) {
        let large_len = self.unsettled.large_len;
        join(self.verify_lane(0..large_len, pauses), self.verify_lane(large_len..u64::MAX, pauses)).await;
    }

    async fn verify_lane(&self, lens: Range<u64>, pauses: Pauses) {
        let (mut progress, mut counted) = (Progress::default(), 0);
        let lane = self.unsettled.lane(lens.start);
        loop {
            let has_read = match self.settle_some(&lens, &mut progress, pauses).await {
                Ok(has_read) => has_read,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "sha256 verification paused: the index does not respond");
                    sleep(pauses.index).await;
                    continue;
                }
            };
            let unreadable = &progress.unreadable;
            let count = i64::try_from(unreadable.len()).unwrap_or(i64::MAX);
            self.metrics.sha256_unreadable.inc_by(count - counted);
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

    /// Serves each repository with claims once. Where none of them had anything to read, settles
    /// the claims without a claimant, as a restored store has them. Files in their pause are left
    /// out. Returns whether any repository's file was read, so that there may be more.
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
        // Files that were abandoned meanwhile.
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
                // A file that is not listed any more was settled by another process, or removed.
                progress.unreadable.retain(|file, tried| listed.contains(file) || tried.next_try > Instant::now());
                return Ok(false);
            }
        }
    }

    /// Serves one repository; returns whether anything was read.
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
            let page = self.index.claims_of(repo.to_owned(), lens.clone(), after, PAGE_COUNT).await?;
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

    /// Reads on, and returns how many bytes are left of the round.
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
                // A file that is empty, or cannot be read, takes time, too.
                rest.min(left.saturating_sub(ROUND_LEN / 1024))
            }
        }
    }

    /// Verifies a claim now, unless that takes too long: then it is the next one to be verified.
    /// `None` where the result is not known.
    pub(super) async fn settle_before(&self, claim: Claim, deadline: Instant) -> Option<ClaimState> {
        let settle = async {
            // The work is for the first claimant and for the tenant that contradicts it, so it
            // counts for neither.
            let _permit = self.walks.wait(Tenant::SERVER, 1).await;
            self.settle(claim).await
        };
        match timeout_at(deadline, settle).await {
            Ok(Ok(state)) => state,
            Ok(Err(error)) => {
                tracing::debug!(file = %claim.file, error = %chain(&error), "cannot verify a claimed sha256 now");
                None
            }
            // It is settled in a round of its repository.
            Err(_) => None,
        }
    }

    /// Reads the file and records the result in the index. `None` where the file does not exist any
    /// more.
    async fn settle(&self, claim: Claim) -> Result<Option<ClaimState>, CheckError> {
        let (mut reading, mut left) = (Reading::new(claim, Proof::Elsewhere), u64::MAX);
        loop {
            match self.read_for(reading, &mut left).await? {
                Read::Part(part) => reading = *part,
                Read::Done(state) => return Ok(state),
            }
        }
    }

    /// Reads so many bytes more, which are counted down, and the rest of a term. At the end of the
    /// file, records the result in the index.
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
            // A client has lied, or the store has lost data. Before either is reported, the chunks
            // are proven.
            return Ok(Read::Part(Box::new(Reading::new(reading.claim, Proof::Chunks))));
        }
        let claim = reading.claim;
        let state = if actual == sha256 { ClaimState::Verified } else { ClaimState::False { actual } };
        if !self.index.settle_claim(claim, state).await.map_err(|error| ReadError::Store(error.into()))? {
            // Another process was faster, and has read the same bytes.
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
