//! The collection of garbage: xorbs that no file needs go, and nothing else does.
//!
//! [`Cas::plan_collection`] reads and says what would go, and why; [`Cas::collect`] does what a plan says. A xorb goes in
//! two steps with a day between them, so that a mistake, of a clock or of a person, can be noticed: it is *condemned*
//! after its grace, stays readable, and is live again as soon as anybody uploads, asks for, or registers it. A day later
//! its row is marked as being deleted, then its blob goes, then the row.
//!
//! What keeps a xorb: a file that refers to it; a touch less than the grace ago; a promise that has not ended. A plan is
//! only a proposal: each step checks all of that again in its own statement, so that plans may be old, or made while
//! the store is in use, or executed twice.
//!
//! **What happens in doubt is nothing.** Whatever is not understood while a plan is made, be it an error, a row that does
//! not parse, a file whose terms name a xorb that has no reference, or a clock that has gone back, ends it without a plan
//! ([`Doubt`]). Errors while deleting are counted and logged, and the next run goes on: a row in `Deleting` says that its
//! blob is to go, and deleting what is not there is a success. So what a crash leaves is such rows, at most.
//!
//! Any number of processes may plan at once, but **one process at a time deletes blobs of a store**: of two that finish
//! the same row, the slower one would delete the blob of an upload that came in between. Whoever calls
//! [`Cas::collect`] or [`Cas::recover`] sees to that, and does not drop them midway: an operation on a blob that has
//! begun goes on. To stop, there is [`Pace::stop`].

pub mod compact;
mod execute;
mod plan;

use std::time::Duration;

use thiserror::Error;
use tokio_util::sync::CancellationToken;

pub use self::execute::Collected;
pub use self::plan::{Action, CollectionPlan, Kept, PlannedXorb, Tally};
use super::error::StoreError;
use super::{Cas, Gap};
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// The least grace: for three weeks stock clients remember what they have uploaded, or were told to be there, and do
/// not send it again (spec 7.5).
pub const MIN_GRACE: Duration = Duration::from_secs(21 * 24 * 3600);

/// The least time between the two steps. URLs of xorb data promise nothing to the index: whoever has one got it from a
/// file that referred to the xorb, the loss of the last reference touches the xorb, and the grace and this are both
/// longer than such a URL lives. `http` asserts that of its URLs.
pub const MIN_CONDEMNED: Duration = Duration::from_secs(2 * 3600);

/// Age at which a staged row is taken for one that nobody will publish any more. A process that dies leaves such rows to
/// its next start; those of a failed upload stay until somebody sends the same xorb, or until this.
const STAGED_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Xorbs in one step that writes, at most: it must not hold the lock of the database for long.
const STEP_COUNT: usize = 64;

/// How long xorbs stay that no file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    grace: Duration,
    condemned: Duration,
}

/// A policy that would take from clients what they were promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("gc_grace must be at least {} days and gc_delete_delay at least {} hours", MIN_GRACE.as_secs() / 86400, MIN_CONDEMNED.as_secs() / 3600)]
pub struct PolicyError;

impl Policy {
    /// The grace after the last touch of a xorb, and the time from its condemnation to its deletion.
    ///
    /// # Errors
    ///
    /// One of them is below [`MIN_GRACE`] or [`MIN_CONDEMNED`].
    pub const fn new(grace: Duration, condemned: Duration) -> Result<Self, PolicyError> {
        if grace.as_secs() < MIN_GRACE.as_secs() || condemned.as_secs() < MIN_CONDEMNED.as_secs() {
            return Err(PolicyError);
        }
        Ok(Self { grace, condemned })
    }
}

/// How fast a collection goes, and until when.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Pause between two steps, for others to write.
    pub pause: Duration,
    /// Ends the collection between two steps, or two blobs.
    pub stop: CancellationToken,
}

impl Pace {
    /// Waits until the next step. Returns whether there is to be one.
    async fn next(&self) -> bool {
        self.stop.run_until_cancelled(tokio::time::sleep(self.pause)).await.is_some()
    }
}

/// Why nothing was planned, and so nothing done.
#[derive(Debug, Error)]
pub enum Doubt {
    /// The clock shows less than it did before: ages that are measured with it mean nothing.
    #[error("the clock is at {now} ms since 1970, but the store has a later time of {seen}")]
    Clock {
        /// What it shows.
        now: u64,
        /// What it has shown, or that of another machine.
        seen: u64,
    },
    /// A file needs a xorb that would go, since a reference is missing.
    #[error("index inconsistent: file {file} uses xorb {xorb} without a reference; run zorb fsck")]
    Reference {
        /// The file.
        file: FileHash,
        /// The xorb.
        xorb: XorbHash,
    },
    /// A file needs a xorb that is not there.
    #[error("index inconsistent: file {file} uses xorb {xorb}, which does not exist; run zorb fsck")]
    Unknown {
        /// The file.
        file: FileHash,
        /// The xorb.
        xorb: XorbHash,
    },
    /// A file needs chunks that a xorb cannot have.
    #[error("index inconsistent: files use chunks that xorb {xorb} does not have; run zorb fsck")]
    Chunks {
        /// The xorb.
        xorb: XorbHash,
    },
    /// The index is not that of the store, or is older.
    #[error(transparent)]
    Gap(Gap),
    /// The store failed, or has a row that makes no sense.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
}

impl Doubt {
    fn of_clock(now: Timestamp, seen: Timestamp) -> Result<(), Self> {
        if now < seen { Err(Self::Clock { now: now.as_millis(), seen: seen.as_millis() }) } else { Ok(()) }
    }
}

impl Cas {
    /// Plans and collects, and counts both.
    ///
    /// # Errors
    ///
    /// See [`Doubt`]; nothing was done then.
    pub async fn collect_garbage(&self, policy: Policy, pace: &Pace) -> Result<Collected, Doubt> {
        let metrics = &self.metrics.collection;
        metrics.runs.inc();
        let plan = match self.plan_collection(policy).await {
            Ok(plan) => plan,
            Err(doubt) => {
                metrics.aborted.inc();
                return Err(doubt);
            }
        };
        Ok(self.collect(plan, pace).await)
    }

    /// Clears up what is left of removed files. Returns whether all of it is gone.
    ///
    /// # Errors
    ///
    /// The index does not answer.
    pub async fn sweep_removed_files(&self, pace: &Pace) -> Result<bool, StoreError> {
        while self.index.sweep_removed(self.clock.now()).await? {
            if !pace.next().await {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
