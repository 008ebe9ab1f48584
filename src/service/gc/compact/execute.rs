//! Executes a plan: first the new xorbs, then the files.

use std::collections::HashMap;

use super::super::{GcAbort, Pace, Policy, Tally};
use super::{CompactionPlan, MinLive, Move};
use crate::format::XorbHash;
use crate::runtime::telemetry::chain;
use crate::service::Cas;
use crate::service::error::StoreError;
use crate::service::fsck::Presence;

/// The result of a compaction.
#[derive(Debug, Default)]
pub struct Compacted {
    /// Xorbs that no file refers to any more; a collection deletes them after their grace period.
    pub rewritten: Tally,
    /// New xorbs.
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
    /// The failure that has ended it.
    pub failure: Option<StoreError>,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
}

/// A compaction that is under way.
pub(super) struct Running<'a> {
    pub(super) cas: &'a Cas,
    pub(super) presence: Presence,
    pub(super) pace: &'a Pace,
    /// The new places of needed chunks of old xorbs.
    pub(super) moves: HashMap<XorbHash, Move>,
    pub(super) done: Compacted,
}

impl Cas {
    /// Plans and compacts, and counts both. `presence` says whether another process may publish
    /// xorbs.
    ///
    /// # Errors
    ///
    /// See [`GcAbort`]; nothing was done then.
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

    /// Executes a plan. A failure of the store ends it; what was done until then counts, and the
    /// next run does the rest. Only one process at a time may do this to a store, the one that may
    /// delete blobs.
    pub async fn compact(&self, plan: CompactionPlan, presence: Presence, pace: &Pace) -> Compacted {
        let (moves, done) = (HashMap::new(), Compacted::default());
        let mut running = Running { cas: self, presence, pace, moves, done };
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
            // If the clock was set back since the plan was made, new xorbs would look old.
            if self.cas.clock.now() < plan.made || !self.pace.next().await {
                self.done.is_stopped = true;
            }
            if self.done.is_stopped {
                break;
            }
            self.copy(rewrite).await?;
        }
        // After a stop nothing is switched: the next run finds the copies again.
        if self.done.is_stopped {
            return Ok(());
        }
        let switched = self.switch_all(plan).await;
        let counted = self.count_rewritten(plan).await;
        switched.and(counted)
    }

    /// Counts the old xorbs without any reference left.
    async fn count_rewritten(&mut self, plan: &CompactionPlan) -> Result<(), StoreError> {
        for source in plan.rewrites.iter().flat_map(|rewrite| &rewrite.sources) {
            if !self.moves.contains_key(&source.xorb) {
                continue;
            }
            if self.cas.index.find_life(source.xorb).await?.is_none_or(|life| !life.is_referenced) {
                self.done.rewritten.add(source.serialized_len);
            }
        }
        Ok(())
    }
}
