//! Whether a file has the sha256 that its client says (spec 6.2, rule 11).
//!
//! The file hash does not prove it, so the file is read: after its registration, by a task that takes one claim after
//! the other, the oldest first, and one piece of a file after the other, so that requests hardly notice. Until then the
//! claim is told only to the repository that made it. In the place of one that turns out false comes what the file
//! really has, so a lie about a file can be told once.
//!
//! Files that take long to read have a lane of their own, and do not hold up the others.
//!
//! A file that cannot be read settles nothing. It is tried again, after a pause that grows, and the others go on.
//! Nothing here needs to survive a crash: a claim is unverified until its state says otherwise.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use sha2::{Digest, Sha256 as Hasher};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::Cas;
use super::access::Claims;
use super::contents::Walk;
use super::download::Proof;
use super::error::{ReadError, StoreError};
use super::files::{ReconstructError, reader};
use super::reconstruct::Inconsistency;
use crate::format::shard::{Sha256, Term};
use crate::format::{ByteRange, FileHash};
use crate::index::{Claim, ClaimState, Reader};
use crate::runtime::fair::Tenant;
use crate::runtime::telemetry::chain;

/// Claims that are listed at once.
const PAGE_COUNT: u32 = 100;

/// Bytes of the smallest file that counts as a giant: reading it takes a worker about half a minute.
pub(super) const GIANT_LEN: u64 = 16 << 30;

/// Claims that contradict a later registration and are kept to be taken first. What is too many waits like the others.
const MAX_URGENT_COUNT: usize = 64;

/// A file that is known by its sha256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sha256File {
    /// Which file.
    pub file: FileHash,
    /// Whether the file was read and has it. If not, the reader's own repository says so.
    pub is_verified: bool,
}

/// How long to wait after a failure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// Of the index.
    pub(super) index: Duration,
    /// The first one to read a file.
    pub(super) first: Duration,
    /// One of many to read the same file.
    pub(super) longest: Duration,
}

impl Pauses {
    const COMMON: Self =
        Self { index: Duration::from_secs(10), first: Duration::from_secs(60), longest: Duration::from_secs(3600) };
}

/// That there are claims to be verified.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// Bytes of the smallest file that has to go on the lane of giants.
    giant_len: u64,
    common: Lane,
    giants: Lane,
}

impl Unsettled {
    /// None so far.
    pub(super) fn new(giant_len: u64) -> Self {
        Self { giant_len, common: Lane::default(), giants: Lane::default() }
    }

    /// There may be new claims.
    pub(super) fn ring(&self) {
        self.common.bell.notify_one();
        self.giants.bell.notify_one();
    }

    /// The lane of files of this length, or of more.
    fn lane(&self, least_len: u64) -> &Lane {
        if least_len < self.giant_len { &self.common } else { &self.giants }
    }
}

/// Claims that are verified one after the other.
#[derive(Debug, Default)]
struct Lane {
    bell: Notify,
    /// To be taken before the others.
    urgent: Mutex<VecDeque<Claim>>,
}

impl Lane {
    fn push(&self, claim: Claim) {
        let mut urgent = self.urgent.lock().unwrap_or_else(PoisonError::into_inner);
        if urgent.len() < MAX_URGENT_COUNT && !urgent.contains(&claim) {
            urgent.push_back(claim);
        }
        drop(urgent);
        self.bell.notify_one();
    }

    fn pop(&self) -> Option<Claim> {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Why a file could not be read.
#[derive(Debug, Error)]
pub(super) enum CheckError {
    #[error(transparent)]
    File(#[from] ReconstructError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A file that could not be read.
#[derive(Clone, Copy, Debug)]
struct Unreadable {
    next_try: Instant,
    pause: Duration,
}

impl Cas {
    /// A file with this sha256: a verified one, or what the reader's own repository claims.
    ///
    /// # Errors
    ///
    /// The index does not answer.
    pub async fn find_sha256(&self, claims: &Claims, sha256: Sha256) -> Result<Option<Sha256File>, StoreError> {
        let known = self.index.find_sha256(sha256, reader(claims)).await?;
        Ok(known.map(|known| Sha256File { file: known.file, is_verified: known.is_verified }))
    }

    /// Verifies claims for ever: those that are there, and every one that is registered. To be dropped when the store
    /// is to stop; nothing is lost by that.
    pub async fn verify_claims(self) {
        self.verify_claims_with(Pauses::COMMON).await;
    }

    pub(super) async fn verify_claims_with(self, pauses: Pauses) {
        let giant_len = self.unsettled.giant_len;
        join(self.verify_lane(0..giant_len, pauses), self.verify_lane(giant_len..u64::MAX, pauses)).await;
    }

    async fn verify_lane(&self, lens: Range<u64>, pauses: Pauses) {
        let (mut unreadable, mut counted) = (HashMap::new(), 0);
        let lane = self.unsettled.lane(lens.start);
        loop {
            if let Err(error) = self.settle_all(&lens, &mut unreadable, pauses).await {
                tracing::warn!(error = %chain(&error), "claims of a sha256 wait: the index does not answer");
                sleep(pauses.index).await;
                continue;
            }
            let count = i64::try_from(unreadable.len()).unwrap_or(i64::MAX);
            self.metrics.sha256_unreadable.inc_by(count - counted);
            counted = count;
            let rung = lane.bell.notified();
            match unreadable.values().map(|file: &Unreadable| file.next_try).min() {
                None => rung.await,
                Some(next_try) => drop(timeout_at(next_try, rung).await),
            }
        }
    }

    /// Goes through all claims once, except for files whose pause is not over.
    async fn settle_all(
        &self,
        lens: &Range<u64>,
        unreadable: &mut HashMap<FileHash, Unreadable>,
        pauses: Pauses,
    ) -> Result<(), StoreError> {
        let (mut after, mut listed) = (None, HashSet::new());
        loop {
            let page = self.index.unverified_claims(lens.clone(), after, PAGE_COUNT).await?;
            after = page.last().map(|claim| claim.file);
            for claim in &page {
                while let Some(urgent) = self.unsettled.lane(lens.start).pop() {
                    self.try_settle(urgent, unreadable, pauses).await;
                }
                if unreadable.contains_key(&claim.file) {
                    listed.insert(claim.file);
                }
                self.try_settle(*claim, unreadable, pauses).await;
            }
            if after.is_none() {
                // What is not listed any more was settled by somebody else, or is gone.
                unreadable.retain(|file, tried| listed.contains(file) || tried.next_try > Instant::now());
                return Ok(());
            }
        }
    }

    async fn try_settle(&self, claim: Claim, unreadable: &mut HashMap<FileHash, Unreadable>, pauses: Pauses) {
        let before = unreadable.get(&claim.file).copied();
        if before.is_some_and(|tried| tried.next_try > Instant::now()) {
            return;
        }
        match self.settle(claim).await {
            Ok(_) => {
                unreadable.remove(&claim.file);
            }
            Err(error) => {
                let pause = before.map_or(pauses.first, |tried| tried.pause.saturating_mul(2).min(pauses.longest));
                if before.is_none() {
                    // Once, not with every try.
                    let (file, error) = (claim.file, chain(&error));
                    tracing::error!(%file, %error, "the sha256 of a file cannot be verified now; it is tried again");
                } else {
                    tracing::debug!(file = %claim.file, error = %chain(&error), "still unreadable");
                }
                unreadable.insert(claim.file, Unreadable { next_try: Instant::now() + pause, pause });
            }
        }
    }

    /// Finds out now whether a claim is true, unless that takes too long: then it is the next one to be verified.
    /// `None` where it is not known.
    pub(super) async fn settle_before(&self, claim: Claim, deadline: Instant) -> Option<ClaimState> {
        let settle = async {
            // Of whoever claimed it first, and for whoever contradicts it: nobody in particular.
            let _turn = self.walks.wait(Tenant::SERVER, 1).await;
            self.settle(claim).await
        };
        match timeout_at(deadline, settle).await {
            Ok(Ok(state)) => state,
            Ok(Err(error)) => {
                tracing::debug!(file = %claim.file, error = %chain(&error), "a claim cannot be verified now");
                None
            }
            Err(_) => {
                let known = self.index.find_file(claim.file, Reader::All, None).await.ok().flatten();
                self.unsettled.lane(known.map_or(0, |file| file.raw_len)).push(claim);
                None
            }
        }
    }

    /// Reads the file and says in the index what became of the claim. `None` where there is no such file any more.
    async fn settle(&self, claim: Claim) -> Result<Option<ClaimState>, CheckError> {
        let mut actual = self.sha256_of(claim.file, Proof::Elsewhere).await?;
        if actual.is_some_and(|actual| actual != claim.sha256) {
            // A client has lied, or the store has lost something: what is said of either is proven first.
            actual = self.sha256_of(claim.file, Proof::Chunks).await?;
        }
        let Some(actual) = actual else { return Ok(None) };
        let state = if actual == claim.sha256 { ClaimState::Verified } else { ClaimState::False { actual } };
        if !self.index.settle_claim(claim, state).await.map_err(|error| ReadError::Store(error.into()))? {
            // Somebody else was faster, and has read the same bytes.
            return Ok(Some(state));
        }
        if state == ClaimState::Verified {
            self.metrics.sha256_verified.inc();
        } else {
            self.metrics.sha256_void.inc();
            let (file, claimed) = (claim.file, claim.sha256);
            tracing::warn!(%file, %claimed, %actual, "a client has claimed a false sha256; the true one takes its place");
        }
        Ok(Some(state))
    }

    /// Reads all of a file; `None` where it is not there.
    async fn sha256_of(&self, file: FileHash, proof: Proof) -> Result<Option<Sha256>, CheckError> {
        let (mut walk, mut hasher) = (Walk::new(file, Reader::All), Hasher::new());
        loop {
            let terms = match self.next_terms(&mut walk).await {
                Err(ReconstructError::NotFound) => return Ok(None),
                terms => terms?,
            };
            if terms.is_empty() {
                return Ok(Some(Sha256::from_digest(hasher.finalize().into())));
            }
            for term in terms {
                hasher = self.hash_term(file, &term, proof, hasher).await?;
            }
        }
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
