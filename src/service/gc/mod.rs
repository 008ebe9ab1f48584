//! Garbage collection: deletes xorbs that no file needs, and no others.
//!
//! [`Cas::plan_collection`] lists what would be deleted, and why; [`Cas::collect`] executes such a
//! plan. A xorb is deleted in two steps with a day between them: a mistake of a clock or of an
//! operator can be noticed meanwhile. After its grace period it is *condemned*. It stays readable,
//! and any upload, dedup query or registration makes it live again. A day later its row is marked
//! as being deleted, then its blob is deleted, then the row.
//!
//! A xorb is retained by a reference of a file, by a touch within the grace period, or by a lease
//! that has not expired. A plan is only a proposal: each step checks all of that again in its own
//! statement. So plans may be old, made while the store is in use, or executed twice.
//!
//! **When anything is inconsistent, nothing is deleted.** Planning ends without a plan
//! ([`GcAbort`]) on any error or unparsable row. So it does if a term names a xorb without a
//! reference, or the clock was set back. Errors while deleting are counted and logged, and the next
//! run continues. A row in `Deleting` means that its blob must be deleted, and deleting a missing
//! blob succeeds. So a crash leaves such rows, at most.
//!
//! Any number of processes may plan at once, but **one process at a time deletes blobs of a
//! store**. Of two that complete the same row, the slower one would delete the blob of an upload in
//! between. Callers of [`Cas::collect`] or [`Cas::recover`] ensure that, and do not drop them
//! midway: a blob operation that has begun continues. To stop, use [`Pace::stop`].

pub mod compact;
mod execute;
mod plan;

use std::time::Duration;

use thiserror::Error;
use tokio_util::sync::CancellationToken;

pub use self::execute::Collected;
pub use self::plan::{Action, CollectionPlan, PlannedXorb, Retained, Tally};
use super::error::StoreError;
use super::{Cas, Gap};
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// The least grace period. For three weeks stock clients remember xorbs that they have uploaded or
/// found by dedup, and do not send them again (spec 7.5).
pub const MIN_GRACE: Duration = Duration::from_secs(21 * 24 * 3600);

/// The least time between the two steps. The index does not know the URLs of xorb data. Such a URL
/// is made for a file that refers to the xorb, and the loss of the last reference touches the xorb.
/// The grace period and this time are both longer than such a URL is valid. `http` asserts that of
/// its URLs.
pub const MIN_CONDEMNED: Duration = Duration::from_secs(2 * 3600);

/// Age at which a staged row counts as abandoned. A start removes the rows of a dead process. Those
/// of a failed upload stay until the same xorb is uploaded again, or until this age.
const STAGED_LIFE: Duration = Duration::from_secs(24 * 3600);

/// How long a blob that was replaced by a shorter one is retained. Plans and URLs that were made
/// with it are served until then: `http` asserts that its URLs end earlier. Uploads take less time
/// to publish a blob, too.
pub const OBJECT_RETENTION: Duration = Duration::from_secs(3 * 3600);

/// Xorbs of one writing step, at most: it must not hold the lock of the database for long.
const STEP_COUNT: usize = 64;

/// How long unneeded xorbs stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    grace: Duration,
    condemned: Duration,
}

/// A policy with shorter times than clients may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("gc_grace must be at least {} days and gc_delete_delay at least {} hours", MIN_GRACE.as_secs() / 86400, MIN_CONDEMNED.as_secs() / 3600)]
pub struct PolicyError;

impl Policy {
    /// The grace period after the last touch of a xorb, and the time from its condemnation to its
    /// deletion.
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

/// The pace of a collection, and how to stop it.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Pause between two steps, so that other writers run.
    pub pause: Duration,
    /// Ends the collection between two steps or two blobs.
    pub stop: CancellationToken,
}

impl Pace {
    /// Waits until the next step. Returns whether there is one.
    async fn next(&self) -> bool {
        self.stop.run_until_cancelled(tokio::time::sleep(self.pause)).await.is_some()
    }
}

/// Why nothing was planned, and nothing done.
#[derive(Debug, Error)]
pub enum GcAbort {
    /// The clock shows an earlier time than before: ages measured with it mean nothing.
    #[error("the clock is at {now} ms since 1970, but the store has a later time of {seen}")]
    Clock {
        /// The time that it shows.
        now: u64,
        /// The latest time that it, or the clock of another machine, has shown.
        seen: u64,
    },
    /// A file needs a xorb that would be deleted, since a reference is missing.
    #[error("index inconsistent: file {file} uses xorb {xorb} without a reference; run zorb fsck")]
    Reference {
        /// The file.
        file: FileHash,
        /// The xorb.
        xorb: XorbHash,
    },
    /// A file needs a xorb that does not exist.
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
    /// The index is not that of the store, or is too old.
    #[error(transparent)]
    Gap(Gap),
    /// The store failed, or has an invalid row.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
}

impl GcAbort {
    fn of_clock(now: Timestamp, seen: Timestamp) -> Result<(), Self> {
        if now < seen { Err(Self::Clock { now: now.as_millis(), seen: seen.as_millis() }) } else { Ok(()) }
    }
}

impl Cas {
    /// Plans and collects, and counts both.
    ///
    /// # Errors
    ///
    /// See [`GcAbort`]; nothing was done then.
    pub async fn collect_garbage(&self, policy: Policy, pace: &Pace) -> Result<Collected, GcAbort> {
        let metrics = &self.metrics.collection;
        metrics.runs.inc();
        let plan = match self.plan_collection(policy).await {
            Ok(plan) => plan,
            Err(abort) => {
                metrics.aborted.inc();
                return Err(abort);
            }
        };
        Ok(self.collect(plan, pace).await)
    }

    /// Clears up the rows of removed files. Returns whether none is left.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn sweep_removed_files(&self, pace: &Pace) -> Result<bool, StoreError> {
        while self.index.sweep_removed(self.clock.now()).await? {
            if !pace.next().await {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
