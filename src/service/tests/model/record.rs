//! The model: the claims to files, and the promises that clients were given.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use crate::format::ByteRange;
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// A registered file cannot be read as it was registered.
    Lost,
    /// A promised xorb was deleted, condemned, or refused.
    Promise,
    /// A xorb was deleted without the delay after its condemnation.
    Hasty,
    /// A reader sees a file without a claim to it.
    Seen,
    /// Rows, blobs and totals contradict each other.
    Torn,
    /// An unneeded xorb still exists.
    Garbage,
    /// A wrong response.
    Response,
    /// An actor waits for ever.
    Stuck,
    /// A blob that is known to be damaged is used, or is not healed, or a sound one counts as
    /// damaged.
    Damage,
}

/// A failure of the store.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// The details.
    pub(super) what: String,
}

impl Failure {
    pub(super) fn new(fault: Fault, what: impl Into<String>) -> Self {
        Self { fault, what: what.into() }
    }
}

/// Fails unless the condition holds.
pub(super) fn ensure(holds: bool, fault: Fault, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::new(fault, what())) }
}

/// The promise that a xorb stays until a moment.
#[derive(Clone, Copy, Debug)]
struct Promise {
    until: u64,
    /// The latest time that the clock has shown since the promise. If the clock goes back, an
    /// action that was right at that time stays right.
    seen: u64,
    /// Whether the promise follows from the loss of the last file of the xorb.
    is_of_loss: bool,
}

/// A URL of bytes of a xorb.
#[derive(Clone, Debug)]
pub(super) struct Url {
    pub(super) xorb: usize,
    pub(super) incarnation: Incarnation,
    pub(super) bytes: ByteRange,
    pub(super) expected: Bytes,
    pub(super) issued: u64,
    pub(super) until: u64,
    /// Whether its xorb was damaged since the URL was made, and may have been replaced.
    pub(super) may_be_refused: bool,
    /// Whether the clock was set back since the URL was made, so that a replacement may look older
    /// than the URL.
    pub(super) is_confused: bool,
}

/// The claims, URLs and promises that the store must honour. Files, repositories and xorbs are
/// numbers.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The repositories of each registered file; never empty.
    pub(super) claims: BTreeMap<usize, BTreeSet<usize>>,
    /// The xorbs of registered files.
    pub(super) made_of: BTreeMap<usize, Vec<usize>>,
    pub(super) urls: Vec<Url>,
    promises: BTreeMap<usize, Vec<Promise>>,
    /// The minimum delay between condemnation and deletion, in milliseconds.
    condemned: u64,
}

impl Record {
    pub(super) fn new(condemned: Duration) -> Self {
        Self { condemned: u64::try_from(condemned.as_millis()).unwrap(), ..Self::default() }
    }

    /// Records that a client was promised that the xorb stays until this time.
    pub(super) fn promise(&mut self, xorb: usize, until: u64, now: Timestamp) {
        self.promises.entry(xorb).or_default().push(Promise { until, seen: now.as_millis(), is_of_loss: false });
    }

    /// Records that the last file with the xorb was removed, so that the xorb stays until this
    /// time.
    pub(super) fn lose(&mut self, xorb: usize, until: u64, now: Timestamp) {
        self.promises.entry(xorb).or_default().push(Promise { until, seen: now.as_millis(), is_of_loss: true });
    }

    /// Records that a file needs the xorb again, so that promises that follow from a loss are
    /// dropped.
    pub(super) fn need(&mut self, xorb: usize) {
        self.promises.entry(xorb).or_default().retain(|promise| !promise.is_of_loss);
    }

    /// Updates the promises after the clock has moved, and drops those that no longer matter.
    pub(super) fn look_at_clock(&mut self, now: Timestamp) {
        let condemned = self.condemned;
        for promises in self.promises.values_mut() {
            for promise in promises.iter_mut() {
                promise.seen = promise.seen.max(now.as_millis());
            }
            promises.retain(|promise| promise.seen < promise.until + condemned);
        }
        self.urls.retain(|url| now.as_millis() < url.until);
    }

    /// The reasons that retain a xorb, for debugging.
    pub(super) fn why(&self, xorb: usize) -> String {
        format!("{:?}, files {:?}", self.promises.get(&xorb), self.made_of)
    }

    pub(super) fn is_promised(&self, xorb: usize) -> bool {
        self.promises.get(&xorb).is_some_and(|promises| promises.iter().any(|promise| promise.seen < promise.until))
    }

    /// Whether the xorb must still exist, because it cannot have been condemned for long enough.
    pub(super) fn is_retained(&self, xorb: usize) -> bool {
        self.promises.get(&xorb).is_some_and(|promises| !promises.is_empty())
    }

    /// Whether a registered file is made of it.
    pub(super) fn is_needed(&self, xorb: usize) -> bool {
        self.made_of.values().any(|xorbs| xorbs.contains(&xorb))
    }

    /// Whether a shard that names it must be accepted.
    pub(super) fn is_safe(&self, xorb: usize) -> bool {
        self.is_promised(xorb) || self.is_needed(xorb)
    }

    pub(super) fn has(&self, file: usize, repo: usize) -> bool {
        self.claims.get(&file).is_some_and(|repos| repos.contains(&repo))
    }

    /// Every claim, as a file and a repository.
    pub(super) fn all_claims(&self) -> Vec<(usize, usize)> {
        self.claims.iter().flat_map(|(file, repos)| repos.iter().map(|repo| (*file, *repo))).collect()
    }
}
