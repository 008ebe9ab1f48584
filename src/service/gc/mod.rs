//! Garbage collection: deletes xorbs that no file needs, and no others.
//!
//! [`Store::plan_collection`] lists what would be deleted, and why; [`Store::collect`] executes
//! such a plan. A xorb is deleted in two steps with a delay between them, by default a day. During
//! the delay a mistake of a clock or of an operator can be noticed. After its grace period the xorb
//! is *condemned*. It stays readable, and any upload, dedup query or registration makes it live
//! again. After the delay its row is marked as being deleted, then its blob is deleted, then the
//! row.
//!
//! A xorb is retained by a reference of a file, by a touch within the grace period, or by a lease
//! that has not expired. A plan is only a proposal: each step of its execution checks these reasons
//! again in its own statement. So plans may be old, made while the store is in use, or executed
//! twice.
//!
//! **When anything is inconsistent, nothing is deleted.** Planning ends with a [`GcAbort`] instead
//! of a plan on any error or unparsable row. Planning also ends with a `GcAbort` if a term names a
//! xorb without a reference, or if the clock was set back. Errors while deleting are counted and
//! logged, and the next run continues. A row in `Deleting` means that its blob must be deleted, and
//! deleting a missing blob succeeds. So a crash leaves at most such rows.
//!
//! Any number of processes may plan at once, but **one process at a time deletes blobs of a
//! store**. Two processes might otherwise complete the deletion of the same row. If an upload of
//! the xorb came in between, the slower process would delete the blob of that upload. Callers of
//! [`Store::collect`] or [`Store::recover`] must ensure that only one process does. They must not
//! drop these futures midway, because a blob operation that has begun continues in the background.
//! To stop, use [`Pace::stop`].

pub mod compact;
mod execute;
mod plan;

use std::time::Duration;

use thiserror::Error;
use tokio_util::sync::CancellationToken;

pub use self::execute::Collected;
use self::plan::before;
pub use self::plan::{Action, CollectionPlan, PlannedXorb, Retained, Tally};
use super::error::StoreError;
use super::{Gap, Store};
use crate::format::{FileHash, XorbHash};
use crate::index::MAX_CLOCK_LEAD;
use crate::runtime::clock::Timestamp;

/// The minimum grace period. Stock clients remember xorbs that they have uploaded or found by dedup
/// for three weeks, and do not send them again (spec 7.5).
pub const MIN_GRACE: Duration = Duration::from_secs(21 * 24 * 3600);

/// The minimum time between the two steps. A data URL must not outlive its xorb, and the index does
/// not know which data URLs exist. A URL is made for a file that refers to the xorb, and the loss
/// of the last reference touches the xorb. So a URL expires before its xorb is deleted if this time
/// is longer than a URL is valid, which `http` asserts.
pub const MIN_CONDEMNED: Duration = Duration::from_secs(2 * 3600);

/// Age at which a collection treats a staged row as abandoned. A start removes staged rows whatever
/// their age. Without a start, the row of a failed upload stays until the same xorb is uploaded
/// again, or until this age.
const STAGED_LIFE: Duration = Duration::from_secs(24 * 3600);

/// How long a dead object (a blob that its row no longer names) is retained. Plans and URLs that
/// were made with its blob are served until then: `http` asserts that its URLs expire earlier. The
/// retention is also longer than the publication of a blob takes, so a pending object of this age
/// belongs to no running publication.
pub const OBJECT_RETENTION: Duration = Duration::from_secs(3 * 3600);

/// Maximum number of xorbs of one step: its transaction must not hold the lock of the database for
/// long.
const STEP_COUNT: usize = 64;

/// How long a xorb is retained that no file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    grace: Duration,
    condemned: Duration,
}

/// A time of a policy is below its minimum, on which clients rely.
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

/// The pace of a collection or compaction, and how to stop it.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Pause between two steps, so that other writers run.
    pub pause: Duration,
    /// When cancelled, the work ends after the current step or blob.
    pub stop: CancellationToken,
}

impl Pace {
    /// Pauses until the next step. Returns false if the work is to stop.
    pub(super) async fn next(&self) -> bool {
        self.stop.run_until_cancelled(tokio::time::sleep(self.pause)).await.is_some()
    }
}

/// Why a plan was not made. Nothing was changed.
#[derive(Debug, Error)]
pub enum GcAbort {
    /// The clock shows an earlier time than before: ages measured with it mean nothing.
    #[error("the clock is at {now} ms since 1970, but the store has a later time of {seen}")]
    Clock {
        /// The time that the clock shows.
        now: u64,
        /// The latest time in the index, perhaps of another machine's clock.
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
    /// The index and the records of the store contradict each other.
    #[error(transparent)]
    Gap(Gap),
    /// The store failed, or has an invalid row.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
}

impl Store {
    /// An error if the clock shows an earlier time than one that the index has. With several
    /// servers the time may be of another clock, and some seconds later.
    fn check_gc_clock(&self, now: Timestamp, seen: Timestamp) -> Result<(), GcAbort> {
        let tolerated = if self.index.has_other_clocks() { MAX_CLOCK_LEAD } else { Duration::ZERO };
        if now < before(seen, tolerated) {
            return Err(GcAbort::Clock { now: now.as_millis(), seen: seen.as_millis() });
        }
        Ok(())
    }

    /// Plans a collection and executes it, and counts both in the metrics.
    ///
    /// # Errors
    ///
    /// See [`GcAbort`]; then nothing was changed.
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

    /// Deletes the rows of removed files. Returns false if `pace` stopped it before all were
    /// deleted.
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
