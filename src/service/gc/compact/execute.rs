//! Does what a plan says: first the new xorbs, then the files.

use std::collections::HashMap;

use super::super::{Doubt, Pace, Policy, Tally};
use super::{CompactionPlan, MinLive, Move};
use crate::format::XorbHash;
use crate::runtime::telemetry::chain;
use crate::service::Cas;
use crate::service::error::StoreError;
use crate::service::fsck::Presence;

/// What a compaction has done.
#[derive(Debug, Default)]
pub struct Compacted {
    /// Xorbs that no file refers to any more, and that a collection takes after their grace.
    pub rewritten: Tally,
    /// New xorbs.
    pub made: Tally,
    /// New xorbs that were there already, as after a run that was cut short.
    pub found: Tally,
    /// Files that are made of new xorbs.
    pub file_count: u64,
    /// Files that have changed since their terms were read; the next run has them.
    pub changed_count: u64,
    /// Old xorbs that have turned out to be damaged.
    pub damaged: u64,
    /// Xorbs and files that something failed for; the next run tries again.
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
    /// Where what is needed of old xorbs is now.
    pub(super) moves: HashMap<XorbHash, Move>,
    pub(super) done: Compacted,
}

impl Cas {
    /// Plans and compacts, and counts both. `presence` says whether another process may publish xorbs.
    ///
    /// # Errors
    ///
    /// See [`Doubt`]; nothing was done then.
    pub async fn compact_garbage(
        &self,
        policy: Policy,
        min_live: MinLive,
        presence: Presence,
        pace: &Pace,
    ) -> Result<Compacted, Doubt> {
        match self.plan_compaction(policy, min_live).await {
            Ok(plan) => Ok(self.compact(plan, presence, pace).await),
            Err(doubt) => {
                self.metrics.collection.aborted.inc();
                Err(doubt)
            }
        }
    }

    /// Executes a plan. A failure of the store ends it; what was done until then counts, and the next run does the rest.
    /// Only one process at a time may do this to a store, the one that may delete blobs.
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
            // A clock that has gone back since the plan was made would make old what is new.
            if self.cas.clock.now() < plan.made || !self.pace.next().await {
                self.done.is_stopped = true;
            }
            if self.done.is_stopped {
                break;
            }
            self.copy(rewrite).await?;
        }
        // What was copied before a stop is not switched then: it is found again by the next run.
        if self.done.is_stopped {
            return Ok(());
        }
        let switched = self.switch_all(plan).await;
        let counted = self.count_rewritten(plan).await;
        switched.and(counted)
    }

    /// Counts the old xorbs that nothing refers to any more.
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
