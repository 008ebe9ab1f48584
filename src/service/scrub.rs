//! The scrub: every blob is read again now and then, before somebody needs it.
//!
//! One blob at a time, the one that has waited for longest first, not faster than it was told. A blob that is not the
//! xorb that it should be is read once more, and then its row says that it is damaged: the xorb is not served, not
//! mentioned and not referred to any more, and uploads of it are taken (see [`heal`](super::heal)). What a read finds
//! out is checked at once. Damaged xorbs are looked at again once a day: somebody may have put the blob back.
//!
//! Nothing is deleted here. What fails for other reasons than the blob is tried again, later and later, and the others
//! go on; and where one blob after the other is missing, it is the file system that is, and nothing is marked.
//!
//! A crash costs the blob that was being read.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::Cas;
use super::error::{ReadError, StoreError};
use super::examine::{Damage, Examiner, Pace, Verdict, is_of_blob};
use crate::blob::BlobKey;
use crate::format::XorbHash;
use crate::index::{FilesHit, HealthSums, IndexErrorKind, XorbHealth};
use crate::runtime::clock::Timestamp;
use crate::runtime::telemetry::chain;

/// Xorbs that are listed at once.
const PAGE_COUNT: u32 = 32;

/// Xorbs that reads have found fault with and that wait for a check. What is too many is found again by the next read.
const MAX_SUSPECT_COUNT: usize = 256;

/// Pause between two looks for what is due, when nothing is.
const IDLE: Duration = Duration::from_secs(60);

/// Pause between two looks at what is known to be damaged.
const RECHECK: Duration = Duration::from_secs(24 * 3600);

/// Pause after a failure that is not a blob's.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// How long a xorb is left alone that could not be checked.
const RETRY_AFTER: Duration = Duration::from_secs(600);

/// Xorbs that could not be checked, at most; with more than that the store is broken, and not they.
const MAX_FAILED_COUNT: usize = 1024;

/// Blobs that may be missing one after the other. It takes several accidents to lose so many files in a row that were
/// verified in no order, and one unmounted file system to lose all.
const MAX_MISSING_COUNT: u32 = 16;

/// How often a xorb that changes while it is checked is looked at again.
const MAX_TRY_COUNT: usize = 3;

/// Files that the log names of those that need a damaged xorb.
const NAMED_FILE_COUNT: u32 = 10;

/// How much of the machine a scrub may use.
#[derive(Clone, Copy, Debug)]
pub struct ScrubBudget {
    /// Bytes read per second.
    pub bytes_per_sec: u64,
    /// How old a verification may be.
    pub interval: Duration,
}

/// Xorbs that are to be checked before all others.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    queue: Mutex<VecDeque<XorbHash>>,
    bell: Notify,
}

impl Suspects {
    /// A read of this xorb has failed; if its blob may be why, it is checked next.
    pub(super) fn report(&self, hash: XorbHash, error: &ReadError) {
        let is_suspect = match error {
            ReadError::Missing { .. } | ReadError::Damaged { .. } | ReadError::Altered { .. } => true,
            ReadError::Store(StoreError::Blob(error)) => is_of_blob(error),
            ReadError::Store(StoreError::Index(_) | StoreError::LowSpace { .. } | StoreError::Busy(_))
            | ReadError::Deleted { .. }
            | ReadError::Quarantined { .. }
            | ReadError::Replaced { .. }
            | ReadError::Removed { .. }
            | ReadError::Inconsistent { .. } => false,
        };
        if !is_suspect {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() < MAX_SUSPECT_COUNT && !queue.contains(&hash) {
            queue.push_back(hash);
        }
        drop(queue);
        self.bell.notify_one();
    }

    fn pop(&self) -> Option<XorbHash> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What came of a check.
#[derive(Debug)]
pub(super) enum Checked {
    /// The blob is the xorb.
    Sound,
    /// It is not, and the row says so.
    Damaged(Damage),
    /// There is no such xorb any more, or it was replaced again and again.
    Passed,
}

/// A scrub that is under way.
pub(super) struct Scrub {
    cas: Cas,
    budget: ScrubBudget,
    pace: Pace,
    /// Xorbs that could not be checked, and until when they are left alone.
    failed: HashMap<XorbHash, Instant>,
    missing_in_a_row: u32,
    next_recheck: Instant,
    /// How long to wait after a failure that is not a blob's.
    failure_pause: Duration,
}

impl Cas {
    /// Scrubs for ever. To be dropped when the store is to stop; nothing is lost by that.
    pub async fn scrub(self, budget: ScrubBudget) {
        Scrub::new(self, budget, FAILURE_PAUSE).run().await;
    }

    /// Sums over the health of everything that is stored.
    ///
    /// # Errors
    ///
    /// The index does not answer.
    pub async fn health(&self) -> Result<HealthSums, StoreError> {
        Ok(self.index.health_sums().await?)
    }

    /// Reads a xorb's blob and says in the index what it is.
    pub(super) async fn check_xorb(&self, hash: XorbHash, pace: &mut Pace) -> Result<Checked, StoreError> {
        let examiner = Examiner { blobs: self.blobs.clone(), pool: self.verify_pool.clone() };
        for _ in 0..MAX_TRY_COUNT {
            let Some(seen) = self.index.find_health(hash).await? else { break };
            let before = pace.read_len();
            let verdict = examiner.examine(hash, Some(seen.serialized_len), pace).await;
            self.metrics.scrub_bytes.inc_by(pace.read_len() - before);
            match verdict? {
                Verdict::Sound(proven) => {
                    // Nobody else replaces the blob or the row now: what was seen is still so, or the ticket says no.
                    let _publishing = self.publish_locks.lock(hash).await;
                    if proven.is_described(&*self.index, &seen).await? {
                        if self.index.mark_sound(seen, self.clock.now()).await? {
                            self.note_sound(seen);
                            return Ok(Checked::Sound);
                        }
                    } else {
                        match self.describe_blob(proven.into_row(), seen.ticket).await {
                            Err(StoreError::Index(error)) if error.kind == IndexErrorKind::Lost => {}
                            described => {
                                described?;
                                tracing::warn!(xorb = %hash, "updated the row of a xorb: its blob has another \
                                    serialization");
                                return Ok(Checked::Sound);
                            }
                        }
                    }
                }
                Verdict::Damaged(damage) => {
                    let is_new = self.index.mark_damaged(seen, self.clock.now()).await?;
                    self.forget_layout(hash);
                    if is_new {
                        self.metrics.scrub_damaged.inc();
                        self.log_damage(hash, &damage).await;
                    }
                    if is_new || seen.damaged_at.is_some() {
                        return Ok(Checked::Damaged(damage));
                    }
                }
            }
        }
        Ok(Checked::Passed)
    }

    /// Reads a xorb's blob and says in the index if it is damaged, and nothing else: for a process beside the one that may
    /// replace blobs. Returns whether it is.
    pub(super) async fn mark_if_damaged(&self, hash: XorbHash) -> Result<bool, StoreError> {
        let Some(seen) = self.index.find_health(hash).await? else { return Ok(false) };
        let examiner = Examiner { blobs: self.blobs.clone(), pool: self.verify_pool.clone() };
        let verdict = examiner.examine(hash, Some(seen.serialized_len), &mut Pace::new(None)).await?;
        let Verdict::Damaged(damage) = verdict else { return Ok(false) };
        let is_new = self.index.mark_damaged(seen, self.clock.now()).await?;
        self.forget_layout(hash);
        if is_new {
            self.metrics.scrub_damaged.inc();
            self.log_damage(hash, &damage).await;
        }
        Ok(is_new || seen.damaged_at.is_some())
    }

    fn note_sound(&self, seen: XorbHealth) {
        self.metrics.scrub_verified.inc();
        if seen.damaged_at.is_some() {
            self.forget_layout(seen.hash);
            self.metrics.repaired.inc();
            tracing::info!(xorb = %seen.hash, "a damaged xorb is valid again");
        }
    }

    async fn log_damage(&self, hash: XorbHash, damage: &Damage) {
        // The mark counts, not whom it is told.
        let FilesHit { files, count } = self.index.files_hit(hash, NAMED_FILE_COUNT).await.unwrap_or_default();
        let files: Vec<String> = files.iter().map(ToString::to_string).collect();
        let (file_count, files, error) = (count, files.join(" "), chain(damage));
        tracing::error!(
            xorb = %hash,
            %error,
            file_count,
            files,
            "stored xorb damaged and quarantined; upload it again, or restore it from a backup with zorb fsck"
        );
    }
}

impl Scrub {
    pub(super) fn new(cas: Cas, budget: ScrubBudget, failure_pause: Duration) -> Self {
        Self {
            cas,
            budget,
            pace: Pace::new(Some(budget.bytes_per_sec)),
            failed: HashMap::new(),
            missing_in_a_row: 0,
            next_recheck: Instant::now(),
            failure_pause,
        }
    }

    async fn run(mut self) {
        loop {
            if let Err(error) = self.round().await {
                tracing::warn!(error = %chain(&error), "scrub paused: the index does not respond");
                sleep(self.failure_pause).await;
            }
        }
    }

    /// What is due now; waits where nothing is.
    pub(super) async fn round(&mut self) -> Result<(), StoreError> {
        self.check_suspects().await;
        if Instant::now() >= self.next_recheck {
            self.recheck().await?;
            self.next_recheck = Instant::now() + RECHECK;
        }
        let now = Instant::now();
        self.failed.retain(|_, until| *until > now);
        let limit = PAGE_COUNT.saturating_add(u32::try_from(self.failed.len()).unwrap_or(u32::MAX));
        let due = self.cas.index.due_xorbs(self.due_before(), limit).await?;
        let mut is_idle = true;
        for xorb in due {
            if self.failed.contains_key(&xorb.hash) {
                continue;
            }
            is_idle = false;
            self.check_suspects().await;
            let mut pace = self.pace;
            self.check(xorb.hash, &mut pace).await;
            self.pace = pace;
        }
        if is_idle {
            // Over means that nobody has rung.
            let _ = timeout(IDLE.min(self.budget.interval), self.cas.suspects.bell.notified()).await;
        }
        Ok(())
    }

    fn due_before(&self) -> Timestamp {
        let interval = u64::try_from(self.budget.interval.as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(self.cas.clock.now().as_millis().saturating_sub(interval))
    }

    /// Not held back: somebody has just been refused.
    async fn check_suspects(&mut self) {
        while let Some(hash) = self.cas.suspects.pop() {
            self.check(hash, &mut Pace::new(None)).await;
        }
    }

    /// Looks again at everything that is known to be damaged.
    async fn recheck(&mut self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = self.cas.index.damaged_after(after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.hash);
            for xorb in page {
                // Those that are missing are known to be, and do not count as missing in a row.
                if let Err(error) = self.cas.check_xorb(xorb.hash, &mut self.pace).await {
                    self.fail(xorb.hash, &error).await;
                }
            }
        }
    }

    async fn check(&mut self, hash: XorbHash, pace: &mut Pace) {
        if self.missing_in_a_row >= MAX_MISSING_COUNT && !self.is_there(hash).await {
            tracing::error!(xorb = %hash, "many blobs in a row are missing, so no xorb is marked as damaged; is \
                the disk mounted?");
            self.leave(hash).await;
            return;
        }
        match self.cas.check_xorb(hash, pace).await {
            Ok(Checked::Damaged(Damage::Missing)) => self.missing_in_a_row += 1,
            Ok(Checked::Passed) => {}
            Ok(Checked::Sound | Checked::Damaged(_)) => self.missing_in_a_row = 0,
            Err(error) => self.fail(hash, &error).await,
        }
    }

    async fn is_there(&mut self, hash: XorbHash) -> bool {
        let is_there = matches!(self.cas.blobs.head(BlobKey::xorb(hash)).await, Ok(Some(_)));
        if is_there {
            self.missing_in_a_row = 0;
        }
        is_there
    }

    async fn fail(&mut self, hash: XorbHash, error: &StoreError) {
        tracing::warn!(xorb = %hash, error = %chain(error), "cannot verify a xorb; retrying later");
        self.leave(hash).await;
    }

    /// Leaves a xorb alone for a while.
    async fn leave(&mut self, hash: XorbHash) {
        self.cas.metrics.scrub_failures.inc();
        if self.failed.len() < MAX_FAILED_COUNT {
            self.failed.insert(hash, Instant::now() + RETRY_AFTER);
        }
        sleep(self.failure_pause).await;
    }
}
