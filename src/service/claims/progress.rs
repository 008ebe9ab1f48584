//! The progress of the verification of claims. It is in memory only: after a crash or a restart,
//! partly read files are read from their start.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use sha2::{Digest, Sha256 as Hasher};
use tokio::time::Instant;

use super::{CheckError, Pauses};
use crate::format::FileHash;
use crate::format::shard::Term;
use crate::index::{Claim, ClaimState, Reader};
use crate::runtime::telemetry::chain;
use crate::service::Server;
use crate::service::contents::Walk;
use crate::service::download::Proof;

/// The progress of one lane.
#[derive(Debug, Default)]
pub(in crate::service) struct Progress {
    /// Files whose last read failed, and when each is tried again.
    pub(super) unreadable: HashMap<FileHash, Unreadable>,
    /// For each repository its partly read file, if it has one.
    pub(super) reading: HashMap<String, Reading>,
}

/// A file that is being read for a claim.
#[derive(Debug)]
pub(in crate::service) struct Reading {
    pub(super) claim: Claim,
    /// The position in the file.
    pub(super) walk: Walk,
    /// Terms that were read from the index and not hashed yet.
    pub(super) terms: VecDeque<Term>,
    /// The sha256 of the bytes so far.
    pub(super) hasher: Hasher,
    /// Whether the chunks are compared with their hashes. The first read of a file does not compare
    /// them, because the right sha256 already proves the bytes.
    pub(super) proof: Proof,
}

impl Server {
    /// Wakes the tasks that verify claims: another server may have registered some.
    pub fn verify_claims_of_others(&self) {
        self.unsettled.notify();
    }
}

impl Reading {
    /// At the start of the file.
    pub(super) fn new(claim: Claim, proof: Proof) -> Self {
        let walk = Walk::new(claim.file, Reader::All);
        Self { claim, walk, terms: VecDeque::new(), hasher: Hasher::new(), proof }
    }
}

impl Progress {
    /// Whether the last read of the file failed, and the pause after it is not over.
    pub(super) fn is_paused(&self, file: FileHash) -> bool {
        self.unreadable.get(&file).is_some_and(|tried| tried.next_try > Instant::now())
    }

    /// Records whether the file of a claim could be read. After a failure, the file is paused for
    /// twice as long as the last time.
    pub(super) fn record(&mut self, claim: Claim, read: Result<Read, CheckError>, pauses: Pauses) {
        let Err(error) = read else {
            self.unreadable.remove(&claim.file);
            return;
        };
        let before = self.unreadable.get(&claim.file);
        let pause = before.map_or(pauses.first, |tried| tried.pause.saturating_mul(2).min(pauses.longest));
        let (file, error) = (claim.file, chain(&error));
        if before.is_none() {
            // Only the first failure is an error in the log. Later tries log at debug level.
            tracing::error!(%file, %error, "cannot read a file to verify its sha256; retrying later");
        } else {
            tracing::debug!(%file, %error, "still unreadable");
        }
        self.unreadable.insert(file, Unreadable { next_try: Instant::now() + pause, pause });
    }
}

/// How far a file was read.
pub(super) enum Read {
    /// Not to its end; this continues it.
    Part(Box<Reading>),
    /// To its end, with this result. `None` if the file does not exist any more.
    Done(Option<ClaimState>),
}

/// A file that could not be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreadable {
    pub(super) next_try: Instant,
    /// The current pause; the next one is twice as long.
    pause: Duration,
}
