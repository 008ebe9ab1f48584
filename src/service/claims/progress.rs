//! Progress of the verification of claims, beside the state in the index.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use sha2::{Digest, Sha256 as Hasher};
use tokio::time::Instant;

use super::{CheckError, Pauses};
use crate::format::FileHash;
use crate::format::shard::Term;
use crate::index::{Claim, ClaimState, Reader};
use crate::runtime::telemetry::chain;
use crate::service::contents::Walk;
use crate::service::download::Proof;

/// The state of one lane beside the index.
#[derive(Debug, Default)]
pub(in crate::service) struct Progress {
    /// Files in their pause, or whose pause ended after their last try.
    pub(super) unreadable: HashMap<FileHash, Unreadable>,
    /// Files that are partly read, by the repository whose rounds read them.
    pub(super) reading: HashMap<String, Reading>,
}

/// A file that is being read for a claim.
#[derive(Debug)]
pub(in crate::service) struct Reading {
    pub(super) claim: Claim,
    pub(super) walk: Walk,
    /// Terms that were listed and not read.
    pub(super) terms: VecDeque<Term>,
    pub(super) hasher: Hasher,
    pub(super) proof: Proof,
}

impl Reading {
    pub(super) fn new(claim: Claim, proof: Proof) -> Self {
        let walk = Walk::new(claim.file, Reader::All);
        Self { claim, walk, terms: VecDeque::new(), hasher: Hasher::new(), proof }
    }
}

impl Progress {
    /// Whether a file could not be read, and its pause is not over.
    pub(super) fn is_paused(&self, file: FileHash) -> bool {
        self.unreadable.get(&file).is_some_and(|tried| tried.next_try > Instant::now())
    }

    /// Records whether a file could be read.
    pub(super) fn record(&mut self, claim: Claim, read: Result<Read, CheckError>, pauses: Pauses) {
        let Err(error) = read else {
            self.unreadable.remove(&claim.file);
            return;
        };
        let before = self.unreadable.get(&claim.file);
        let pause = before.map_or(pauses.first, |tried| tried.pause.saturating_mul(2).min(pauses.longest));
        let (file, error) = (claim.file, chain(&error));
        if before.is_none() {
            // Logged once, not with every try.
            tracing::error!(%file, %error, "cannot read a file to verify its sha256; retrying later");
        } else {
            tracing::debug!(%file, %error, "still unreadable");
        }
        self.unreadable.insert(file, Unreadable { next_try: Instant::now() + pause, pause });
    }
}

/// How far a file was read.
pub(super) enum Read {
    /// Not to its end.
    Part(Box<Reading>),
    /// To its end, or the file does not exist any more.
    Done(Option<ClaimState>),
}

/// A file that could not be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreadable {
    pub(super) next_try: Instant,
    pause: Duration,
}
