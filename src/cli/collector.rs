//! GC in a server: the periodic tasks, and the lock that they share with `zorb gc`. Also the task
//! that deletes expired grants.
//!
//! One process at a time may delete blobs of a store. If two processes finished the same
//! deletion, an upload could publish the same blob after the first of them, and the second one
//! would delete it. So each process locks `gc.lock` in the data directory before it deletes blobs.
//! A server does so at its start and for each GC run, as do `zorb gc`, `zorb fsck --repair` and
//! `zorb index rebuild`. The operating system releases the lock when the process ends. It is
//! separate from `lock`, which a server holds as long as it runs.
//!
//! A stop of the server ends a GC run between two steps. A crash can end it anywhere. In both cases
//! the next run continues. [`gc`](crate::service::gc) describes what a run guarantees.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::config::{CollectionConfig, MIN_GC_DELETE_DELAY, MIN_GC_GRACE};
use crate::runtime::durable::open_lock;
use crate::runtime::telemetry::chain;
use crate::service::fsck::Presence;
use crate::service::gc::compact::{Compacted, MinLive};
use crate::service::gc::{Collected, MIN_CONDEMNED, MIN_GRACE, Pace, Policy};
use crate::service::{AbandonedRecords, Pruning, Server, Store, StoreError};

/// Interval of the deletion of expired grants.
const SWEEP_PERIOD: Duration = Duration::from_secs(60);

/// Interval of the search for Hub repositories that were not swept for a day.
const HUB_SWEEP_PERIOD: Duration = Duration::from_secs(3600);

// The configuration cannot import the service, so it repeats the limits of the service.
const _: () = assert!(MIN_GC_GRACE.as_secs() == MIN_GRACE.as_secs());
const _: () = assert!(MIN_GC_DELETE_DELAY.as_secs() == MIN_CONDEMNED.as_secs());

/// Pause between two steps. It is about as long as a step, so that other writers of the index get
/// half of the time.
const STEP_PAUSE: Duration = Duration::from_millis(20);

/// Records read in one step: a few milliseconds.
const PRUNE_STEP_COUNT: usize = 64;

/// Interval of compactions while they find nothing to do. A compaction is expensive, because it
/// reads all terms of all files. A day is often enough, because xorbs become mostly unused over
/// weeks.
const COMPACTION_PERIOD: Duration = Duration::from_secs(24 * 3600);

/// Maximum delay of the first GC run after a start. It is not 0, because a starting server has
/// enough other work.
const FIRST_WAIT: Duration = Duration::from_secs(60);

/// Interval at which [`follow`] looks for the work that other servers leave.
const FOLLOW_PERIOD: Duration = Duration::from_secs(5);

/// Interval at which [`refresh`], [`clear_up`] and [`purge_repos`] poll the index.
const REFRESH_PERIOD: Duration = Duration::from_secs(1);

/// The right to delete blobs. Dropping it releases `gc.lock`.
#[derive(Debug)]
pub(super) struct DeletionLock {
    _file: File,
}

impl DeletionLock {
    /// Locks `gc.lock` of this data directory; `None` if another process holds the lock.
    pub(super) fn take(data_dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = data_dir.join("gc.lock");
        let file = open_lock(&path).with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }
}

/// The share of used bytes below which a xorb is rewritten; `None` without compaction.
pub(super) fn min_live(config: &CollectionConfig) -> Option<MinLive> {
    config.min_live.and_then(MinLive::new)
}

/// The periods after which GC condemns and deletes unused xorbs.
pub(super) fn policy(config: &CollectionConfig) -> anyhow::Result<Policy> {
    Ok(Policy::new(config.grace, config.condemned)?)
}

/// Runs GC at the configured interval, and compaction after it, until `stop`. Returns at once if no
/// interval is configured. A stop ends a run between two steps, never within one.
/// `presence` says whether other servers upload meanwhile.
pub(super) async fn collect(
    store: Arc<Store>,
    config: CollectionConfig,
    (data_dir, presence): (PathBuf, Presence),
    stop: CancellationToken,
) {
    let (Some(interval), Ok(policy)) = (config.interval, policy(&config)) else { return };
    let pace = Pace { pause: STEP_PAUSE, stop: stop.clone() };
    let (mut wait, mut next_compaction) = (interval.min(FIRST_WAIT), Instant::now());
    while stop.run_until_cancelled(sleep(wait)).await.is_some() {
        wait = interval;
        match DeletionLock::take(&data_dir) {
            Ok(Some(_lock)) => match store.collect_garbage(policy, &pace).await {
                Ok(collected) => {
                    log(&collected);
                    // Records become obsolete mostly by deleted blobs. If a stop interrupts the
                    // pruning, the run after the next deletion does it.
                    if collected.deleted.count > 0
                        && let Some(Err(error)) = stop.run_until_cancelled(prune(&store, STEP_PAUSE)).await
                    {
                        tracing::warn!(error = %chain(&error), "obsolete records could not be removed; the next \
                            GC run tries again");
                    }
                    // While compactions find work, one follows each GC run. After one that found
                    // nothing, the next waits for `COMPACTION_PERIOD`.
                    if let Some(min_live) = min_live(&config)
                        && collected.failure.is_none()
                        && Instant::now() >= next_compaction
                        && !compact(&store, (policy, presence), min_live, &pace).await
                    {
                        next_compaction = Instant::now() + COMPACTION_PERIOD;
                    }
                }
                Err(abort) => tracing::error!(error = %chain(&abort), "GC aborted; nothing was deleted"),
            },
            Ok(None) => tracing::info!("GC skipped: another process is running it"),
            Err(error) => tracing::warn!(error = format!("{error:#}"), "GC failed"),
        }
    }
}

/// Rewrites xorbs of which files need only a small share. Returns whether there may be more to do.
async fn compact(store: &Store, (policy, presence): (Policy, Presence), min_live: MinLive, pace: &Pace) -> bool {
    match Box::pin(store.compact_garbage(policy, min_live, presence, pace)).await {
        Ok(done) => {
            log_compaction(&done);
            done.rewritten.count > 0 || done.failure.is_some()
        }
        Err(abort) => {
            tracing::error!(error = %chain(&abort), "compaction aborted; nothing was rewritten");
            true
        }
    }
}

/// Logs a compaction, unless it has found nothing to do.
fn log_compaction(done: &Compacted) {
    let Compacted { rewritten, made, found, file_count, damaged, failed, is_stopped, .. } = done;
    if rewritten.count + made.count + file_count + damaged + failed > 0 {
        tracing::info!(
            rewritten = rewritten.count,
            rewritten_bytes = rewritten.serialized_len,
            made = made.count,
            made_bytes = made.serialized_len,
            found = found.count,
            files = file_count,
            damaged,
            failed,
            is_stopped,
            "compaction finished"
        );
    }
}

/// Removes records that became obsolete by the deletion of blobs.
pub(super) async fn prune(store: &Store, pause: Duration) -> Result<(), StoreError> {
    let mut pruning = Pruning::default();
    while store.prune_records(&mut pruning, PRUNE_STEP_COUNT).await?.is_none() {
        sleep(pause).await;
    }
    Ok(())
}

/// Logs a GC run, unless it has found nothing to do.
fn log(collected: &Collected) {
    let Collected { condemned, deleted, replaced, spared, failed, is_stopped, .. } = collected;
    if condemned.count + deleted.count + replaced.count + spared + failed > 0 {
        tracing::info!(
            condemned = condemned.count,
            deleted = deleted.count,
            replaced = replaced.count,
            freed_bytes = deleted.serialized_len + replaced.serialized_len,
            spared,
            failed,
            is_stopped,
            "GC finished"
        );
    }
}

/// Forgets the cached layouts whenever another process has hidden xorbs, and closes removed blobs
/// that are still open, until `stop`.
pub(super) async fn refresh(store: Arc<Store>, stop: CancellationToken) {
    let mut seen = None;
    while stop.run_until_cancelled(sleep(REFRESH_PERIOD)).await.is_some() {
        // `debug`, because requests fail for the same reason and log it.
        match store.forget_hidden(seen).await {
            Ok(generation) => seen = Some(generation),
            Err(error) => tracing::debug!(error = %chain(&error), "cannot read the index generation"),
        }
    }
}

/// Deletes the rows of removed files from the index, until `stop`. A separate task, because the
/// rows of a large file in many repositories take minutes.
pub(super) async fn clear_up(store: Arc<Store>, stop: CancellationToken) {
    let pace = Pace { pause: STEP_PAUSE, stop: stop.clone() };
    while stop.run_until_cancelled(sleep(REFRESH_PERIOD)).await.is_some() {
        if let Err(error) = store.sweep_removed_files(&pace).await {
            tracing::warn!(error = %chain(&error), "cannot clean up removed files; retrying later");
        }
    }
}

/// Removes the files of deleted Hub repositories until `stop`. Runs also without the setting `hub`,
/// because an earlier run may have deleted some.
pub(super) async fn purge_repos(server: Arc<Server>, stop: CancellationToken) {
    let pace = Pace { pause: STEP_PAUSE, stop: stop.clone() };
    while stop.run_until_cancelled(sleep(REFRESH_PERIOD)).await.is_some() {
        if let Err(error) = server.purge_deleted_repos(&pace).await {
            tracing::warn!(error = %chain(&error), "cannot find deleted repositories; retrying later");
        }
    }
}

/// Sweeps Hub repositories until `stop`, likewise.
pub(super) async fn sweep_repos(server: Arc<Server>, stop: CancellationToken) {
    let pace = Pace { pause: STEP_PAUSE, stop: stop.clone() };
    let mut wait = FIRST_WAIT;
    while stop.run_until_cancelled(sleep(wait)).await.is_some() {
        wait = HUB_SWEEP_PERIOD;
        if let Err(error) = server.sweep_hub_repos(&pace).await {
            tracing::warn!(error = %chain(&error), "cannot find repositories to sweep; retrying later");
        }
    }
}

/// Notices what other servers leave to this one, until `stop`: wakes the tasks that verify claims
/// of a sha256, and settles what servers that have ended have not finished.
pub(super) async fn follow(server: Arc<Server>, stop: CancellationToken) {
    let mut seen = AbandonedRecords::default();
    while stop.run_until_cancelled(sleep(FOLLOW_PERIOD)).await.is_some() {
        server.verify_claims_of_others();
        if let Err(error) = server.store.settle_ended(&mut seen).await {
            tracing::warn!(error = %chain(&error), "cannot settle what ended servers have left; retrying later");
        }
    }
}

/// Deletes expired grants until `stop`. Runs also if the setting `grants` is off, because an
/// earlier run may have issued some.
pub(super) async fn sweep_grants(server: Arc<Server>, stop: CancellationToken) {
    loop {
        if let Err(error) = server.sweep_grants().await {
            tracing::warn!(error = %chain(&error), "cannot delete expired grants");
        }
        tokio::select! {
            () = sleep(SWEEP_PERIOD) => {}
            () = stop.cancelled() => return,
        }
    }
}
