//! The scrub: reads every blob again from time to time, so that damage is found before a client
//! needs the blob.
//!
//! It reads one blob at a time, the one verified longest ago first, within a rate limit. A blob
//! that fails is read once more, and then its row is marked as damaged. A damaged xorb is not
//! served, dedup does not list it, and no new file may name it. An upload of it replaces the blob
//! (see [`heal`](super::heal)). Xorbs that failed a read are checked at once. Damaged xorbs are
//! re-checked once a day, because the operator may have restored the blob.
//!
//! The scrub deletes nothing. After a failure that says nothing about the blob, that xorb is tried
//! again later, and the others continue. If many blobs in a row are missing, the file system is
//! probably not mounted, so no further xorb is marked.
//!
//! A crash loses nothing but the check of one blob.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::Store;
use super::error::{ReadError, StoreError};
use super::verify::{BlobVerifier, Damage, Pace, Verdict, is_of_blob, key};
use crate::blob::BlobKey;
use crate::format::XorbHash;
use crate::index::{AffectedFiles, HealthSums, IndexErrorKind, XorbHealth};
use crate::runtime::clock::Timestamp;
use crate::runtime::telemetry::chain;

/// Xorbs that one query lists.
const PAGE_COUNT: u32 = 32;

/// Maximum length of the queue of [`Suspects`]. If the queue is full, a xorb is not queued; its
/// next failed read reports it again.
const MAX_SUSPECT_COUNT: usize = 256;

/// Pause between two polls for due xorbs, when none is due.
const IDLE: Duration = Duration::from_secs(60);

/// Interval in which damaged xorbs are re-checked.
const RECHECK: Duration = Duration::from_secs(24 * 3600);

/// Pause after a failure that says nothing about a blob.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// How long a xorb that could not be checked is skipped.
const RETRY_AFTER: Duration = Duration::from_secs(600);

/// Maximum number of xorbs in `Scrub::failed`. If more xorbs fail, the store is broken rather than
/// the xorbs, and the further ones are not skipped.
const MAX_FAILED_COUNT: usize = 1024;

/// Missing blobs in a row after which no further xorb is marked. Blobs are verified in the order of
/// their last verification, so independent losses seldom follow each other. But if the file system
/// is not mounted, all blobs are missing.
const MAX_MISSING_COUNT: u32 = 16;

/// Attempts to check a xorb that is replaced during the check.
const MAX_TRY_COUNT: usize = 3;

/// Maximum number of files that the log names per damaged xorb.
const NAMED_FILE_COUNT: u32 = 10;

/// The limits of a scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubBudget {
    /// Bytes read per second.
    pub bytes_per_sec: u64,
    /// Age of a verification at which the blob is verified again.
    pub interval: Duration,
}

/// Xorbs to be checked before all others.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    queue: Mutex<VecDeque<XorbHash>>,
    notify: Notify,
}

impl Suspects {
    /// Reports a failed read of this xorb. If its blob may be the cause, it is checked next.
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
        self.notify.notify_one();
    }

    fn pop(&self) -> Option<XorbHash> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The result of a check.
#[derive(Debug)]
pub(super) enum Checked {
    /// The blob contains the xorb.
    Sound,
    /// The blob is missing or does not contain the xorb, and the row is marked.
    Damaged(Damage),
    /// Not checked: the xorb no longer exists, or it changed during every attempt.
    Skipped,
}

/// A scrub that is under way.
pub(super) struct Scrub {
    store: Arc<Store>,
    budget: ScrubBudget,
    pace: Pace,
    /// Xorbs that could not be checked, and until when they are skipped.
    failed: HashMap<XorbHash, Instant>,
    missing_in_a_row: u32,
    next_recheck: Instant,
    /// How long to wait after a failure that says nothing about a blob.
    failure_pause: Duration,
}

impl Store {
    /// Scrubs until the future is dropped, which loses nothing but the check of one blob.
    pub async fn scrub(self: Arc<Self>, budget: ScrubBudget) {
        Scrub::new(self, budget, FAILURE_PAUSE).run().await;
    }

    /// Checks only xorbs whose read has failed, until the future is dropped. For a server that does
    /// not scrub, because another one does.
    pub async fn check_suspects(self: Arc<Self>) {
        let (suspects, budget) =
            (Arc::clone(&self.suspects), ScrubBudget { bytes_per_sec: u64::MAX, interval: Duration::MAX });
        let mut scrub = Scrub::new(self, budget, FAILURE_PAUSE);
        loop {
            scrub.check_suspects().await;
            suspects.notify.notified().await;
        }
    }

    /// The number of damaged xorbs, and the time of the oldest verification.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn health(&self) -> Result<HealthSums, StoreError> {
        Ok(self.index.health_sums().await?)
    }

    /// Reads a xorb's blob and records the verdict in the index. If the blob contains the xorb in
    /// another serialization than the row describes, updates the row. Tries again if the row
    /// changes meanwhile.
    pub(super) async fn check_xorb(&self, hash: XorbHash, pace: &mut Pace) -> Result<Checked, StoreError> {
        let verifier = BlobVerifier { blobs: self.blobs.clone(), pool: self.pool.clone() };
        for _ in 0..MAX_TRY_COUNT {
            let Some(seen) = self.index.find_health(hash).await? else { break };
            let before = pace.read_len();
            let verdict = verifier.verify(key(&seen), Some(seen.serialized_len), pace).await;
            self.metrics.scrub_bytes.inc_by(pace.read_len() - before);
            match verdict? {
                Verdict::Sound(proven) => {
                    // While the lock is held, no upload replaces blob and row. If the row has
                    // changed since it was read, its ticket differs and the update is refused.
                    let _publishing = self.publish_locks.lock(hash).await;
                    if proven.is_described(&*self.index, &seen).await? {
                        if self.index.mark_sound(seen, self.clock.now()).await? {
                            self.count_sound(seen);
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
        Ok(Checked::Skipped)
    }

    /// Reads a xorb's blob and, if it is damaged, marks the row. Never updates the row otherwise:
    /// another process may be replacing the blob. Returns whether the blob is damaged.
    pub(super) async fn mark_if_damaged(&self, hash: XorbHash) -> Result<bool, StoreError> {
        let Some(seen) = self.index.find_health(hash).await? else { return Ok(false) };
        let verifier = BlobVerifier { blobs: self.blobs.clone(), pool: self.pool.clone() };
        let verdict = verifier.verify(key(&seen), Some(seen.serialized_len), &mut Pace::new(None)).await?;
        let Verdict::Damaged(damage) = verdict else { return Ok(false) };
        let is_new = self.index.mark_damaged(seen, self.clock.now()).await?;
        self.forget_layout(hash);
        if is_new {
            self.metrics.scrub_damaged.inc();
            self.log_damage(hash, &damage).await;
        }
        Ok(is_new || seen.damaged_at.is_some())
    }

    /// Counts a sound blob. If its row was marked as damaged, the xorb is repaired now.
    fn count_sound(&self, seen: XorbHealth) {
        self.metrics.scrub_verified.inc();
        if seen.damaged_at.is_some() {
            self.forget_layout(seen.hash);
            self.metrics.repaired.inc();
            tracing::info!(xorb = %seen.hash, "a damaged xorb is valid again");
        }
    }

    async fn log_damage(&self, hash: XorbHash, damage: &Damage) {
        // If this query fails, the mark stays, and the log names no files.
        let AffectedFiles { files, count } =
            self.index.affected_files(hash, NAMED_FILE_COUNT).await.unwrap_or_default();
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
    pub(super) fn new(store: Arc<Store>, budget: ScrubBudget, failure_pause: Duration) -> Self {
        Self {
            store,
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

    /// Checks the due xorbs; waits where none is due.
    pub(super) async fn round(&mut self) -> Result<(), StoreError> {
        self.check_suspects().await;
        if Instant::now() >= self.next_recheck {
            self.recheck().await?;
            self.next_recheck = Instant::now() + RECHECK;
        }
        let now = Instant::now();
        self.failed.retain(|_, until| *until > now);
        // Skipped xorbs are due, too: list so many more that others are found.
        let limit = PAGE_COUNT.saturating_add(u32::try_from(self.failed.len()).unwrap_or(u32::MAX));
        let due = self.store.index.due_xorbs(self.due_before(), limit).await?;
        let mut is_idle = true;
        for xorb in due {
            if self.failed.contains_key(&xorb.hash) {
                continue;
            }
            is_idle = false;
            self.check_suspects().await;
            // A copy, because `check` borrows all of `self`.
            let mut pace = self.pace;
            self.check(xorb.hash, &mut pace).await;
            self.pace = pace;
        }
        if is_idle {
            // A timeout means that no suspect was reported.
            let _ = timeout(IDLE.min(self.budget.interval), self.store.suspects.notify.notified()).await;
        }
        Ok(())
    }

    fn due_before(&self) -> Timestamp {
        let interval = u64::try_from(self.budget.interval.as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(self.store.clock.now().as_millis().saturating_sub(interval))
    }

    /// Checks the reported xorbs, without the rate limit, because a client's read of each has just
    /// failed.
    async fn check_suspects(&mut self) {
        while let Some(hash) = self.store.suspects.pop() {
            self.check(hash, &mut Pace::new(None)).await;
        }
    }

    /// Checks all damaged xorbs again.
    async fn recheck(&mut self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = self.store.index.damaged_after(after, PAGE_COUNT).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.hash);
            for xorb in page {
                // A damaged xorb may well have no blob. Its absence is no sign of an unmounted
                // disk, so it does not count in `missing_in_a_row`.
                if let Err(error) = self.store.check_xorb(xorb.hash, &mut self.pace).await {
                    self.fail(xorb.hash, &error).await;
                }
            }
        }
    }

    /// Checks one xorb, unless its blob is missing after many other missing blobs.
    async fn check(&mut self, hash: XorbHash, pace: &mut Pace) {
        if self.missing_in_a_row >= MAX_MISSING_COUNT && !self.is_there(hash).await {
            tracing::error!(xorb = %hash, "many blobs in a row are missing, so no xorb is marked as damaged; is \
                the disk mounted?");
            self.skip_for_now(hash).await;
            return;
        }
        match self.store.check_xorb(hash, pace).await {
            Ok(Checked::Damaged(Damage::Missing)) => self.missing_in_a_row += 1,
            Ok(Checked::Skipped) => {}
            Ok(Checked::Sound | Checked::Damaged(_)) => self.missing_in_a_row = 0,
            Err(error) => self.fail(hash, &error).await,
        }
    }

    /// Whether the blob of a xorb exists. If it does, the disk is mounted, and counting begins
    /// anew.
    async fn is_there(&mut self, hash: XorbHash) -> bool {
        let is_there = match self.store.index.incarnation_of(hash).await {
            Ok(Some(incarnation)) => {
                matches!(self.store.blobs.head(BlobKey::new(hash, incarnation)).await, Ok(Some(_)))
            }
            Ok(None) | Err(_) => false,
        };
        if is_there {
            self.missing_in_a_row = 0;
        }
        is_there
    }

    async fn fail(&mut self, hash: XorbHash, error: &StoreError) {
        tracing::warn!(xorb = %hash, error = %chain(error), "cannot verify a xorb; retrying later");
        self.skip_for_now(hash).await;
    }

    /// Skips a xorb for a while, and pauses the scrub.
    async fn skip_for_now(&mut self, hash: XorbHash) {
        self.store.metrics.scrub_failures.inc();
        if self.failed.len() < MAX_FAILED_COUNT {
            self.failed.insert(hash, Instant::now() + RETRY_AFTER);
        }
        sleep(self.failure_pause).await;
    }
}
