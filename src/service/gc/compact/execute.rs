//! Executes a plan: first the new xorbs, then the files.

use std::collections::HashMap;

use super::super::{GcAbort, Pace, Policy, Tally};
use super::{CompactionPlan, MinLive, Move};
use crate::format::XorbHash;
use crate::runtime::telemetry::chain;
use crate::service::Store;
use crate::service::error::StoreError;
use crate::service::fsck::Presence;

/// The result of a compaction.
#[derive(Debug, Default)]
pub struct Compacted {
    /// Old xorbs that no file refers to any more; a collection deletes them after their grace
    /// period.
    pub rewritten: Tally,
    /// New xorbs that were made.
    pub made: Tally,
    /// New xorbs that existed already, as after an interrupted run.
    pub found: Tally,
    /// Files that were switched to new xorbs.
    pub file_count: u64,
    /// Files that have changed since their terms were read; the next run switches them.
    pub changed_count: u64,
    /// Old xorbs that were found damaged.
    pub damaged: u64,
    /// Xorbs and files with a failure; the next run tries again.
    pub failed: u64,
    /// The failure that ended the run early.
    pub failure: Option<StoreError>,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
}

/// A compaction that is under way.
pub(super) struct Running<'a> {
    pub(super) store: &'a Store,
    pub(super) presence: Presence,
    pub(super) pace: &'a Pace,
    /// The new positions of the copied chunks, by old xorb.
    pub(super) moves: HashMap<XorbHash, Move>,
    pub(super) done: Compacted,
}

impl Store {
    /// Plans a compaction and executes it, and counts both in the metrics. `presence` says whether
    /// another process may publish xorbs.
    ///
    /// # Errors
    ///
    /// See [`GcAbort`]; then nothing was changed.
    pub async fn compact_garbage(
        &self,
        policy: Policy,
        min_live: MinLive,
        presence: Presence,
        pace: &Pace,
    ) -> Result<Compacted, GcAbort> {
        match self.plan_compaction(policy, min_live).await {
            Ok(plan) => Ok(self.compact(plan, presence, pace).await),
            Err(abort) => {
                self.metrics.collection.aborted.inc();
                Err(abort)
            }
        }
    }

    /// Executes a plan. A failure of the store ends it; completed steps stay, and the next run does
    /// the rest. Only the process that may delete blobs of a store may call this.
    pub async fn compact(&self, plan: CompactionPlan, presence: Presence, pace: &Pace) -> Compacted {
        let (moves, done) = (HashMap::new(), Compacted::default());
        let mut running = Running { store: self, presence, pace, moves, done };
        let result = running.run(&plan).await;
        let Running { mut done, .. } = running;
        if let Err(error) = result {
            tracing::warn!(error = %chain(&error), "compaction stopped early; the next run continues");
            done.failed += 1;
            done.failure = Some(error);
        }
        self.count_compaction(&done);
        done
    }

    fn count_compaction(&self, done: &Compacted) {
        let metrics = &self.metrics.collection;
        metrics.compacted.inc_by(done.rewritten.count);
        metrics.compacted_bytes.inc_by(done.made.serialized_len);
        metrics.switched_files.inc_by(done.file_count);
        metrics.compaction_failed.inc_by(done.failed + done.damaged);
    }
}

impl Running<'_> {
    async fn run(&mut self, plan: &CompactionPlan) -> Result<(), StoreError> {
        for rewrite in &plan.rewrites {
            // If the clock was set back since the plan was made, new xorbs would get a time that is
            // too early. Their grace period would then end too early.
            if self.store.clock.now() < plan.made || !self.pace.next().await {
                self.done.is_stopped = true;
            }
            if self.done.is_stopped {
                break;
            }
            self.copy(rewrite).await?;
        }
        // After a stop no file is switched. The copies are not lost: the next run finds them.
        if self.done.is_stopped {
            return Ok(());
        }
        let switched = self.switch_all(plan).await;
        let counted = self.count_rewritten(plan).await;
        switched.and(counted)
    }

    /// Counts the old xorbs that have no references left.
    async fn count_rewritten(&mut self, plan: &CompactionPlan) -> Result<(), StoreError> {
        for source in plan.rewrites.iter().flat_map(|rewrite| &rewrite.sources) {
            if !self.moves.contains_key(&source.xorb) {
                continue;
            }
            if self.store.index.find_life(source.xorb).await?.is_none_or(|life| !life.is_referenced) {
                self.done.rewritten.add(source.serialized_len);
            }
        }
        Ok(())
    }
}
