//! Executes a plan in small steps. Each step checks again that no file needs its xorbs.

use super::plan::{Action, CollectionPlan, PlannedXorb, Tally, before};
use super::{OBJECT_RETENTION, Pace, STEP_COUNT};
use crate::blob::BlobKey;
use crate::format::XorbHash;
use crate::index::{IndexError, XorbState};
use crate::runtime::clock::Timestamp;
use crate::runtime::telemetry::chain;
use crate::service::Store;
use crate::service::error::StoreError;

/// Dead objects that are listed at once.
const OBJECT_PAGE_COUNT: u32 = 64;

/// The result of a collection.
#[derive(Debug, Default)]
pub struct Collected {
    /// Xorbs condemned.
    pub condemned: Tally,
    /// Xorbs whose blobs and rows were deleted.
    pub deleted: Tally,
    /// Planned xorbs that were not changed, because their state was no longer that of the plan.
    pub spared: u64,
    /// Failures: one per xorb and dead object whose action failed, and one per other step of the
    /// run that failed. The next run tries again.
    pub failed: u64,
    /// The first failure.
    pub failure: Option<StoreError>,
    /// Dead objects whose blobs were deleted: replaced blobs, and blobs of failed uploads.
    pub replaced: Tally,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
}

impl Collected {
    /// Records a failed step, and the number of xorbs or dead objects to which it applied.
    fn fail(&mut self, count: usize, what: &str, error: StoreError) {
        tracing::warn!(count, error = %chain(&error), "{what}; the next GC run tries again");
        self.failed += count.max(1) as u64;
        self.failure.get_or_insert(error);
    }

    /// Whether the clock was set back since the plan was made. Then the run stops, because its
    /// steps would write times that are too early.
    fn stops_at(&mut self, now: Timestamp, plan: &CollectionPlan) -> bool {
        if now < plan.made && !self.is_stopped {
            tracing::warn!("GC stopped: the clock was set back during the run; the next run continues");
            self.is_stopped = true;
        }
        self.is_stopped
    }
}

impl Store {
    /// Executes a plan. Failures are counted and logged; their xorbs are left to the next run. Only
    /// one process at a time may do this to a store, and the caller must not drop the future
    /// midway.
    pub async fn collect(&self, plan: CollectionPlan, pace: &Pace) -> Collected {
        let mut collected = Collected::default();
        self.collect_into(&mut collected, &plan, pace).await;
        self.count(&collected);
        collected
    }

    /// Executes a plan, and adds the results to `collected`.
    async fn collect_into(&self, collected: &mut Collected, plan: &CollectionPlan, pace: &Pace) {
        if let Err(error) = self.index.record_collection(plan.made).await {
            collected.fail(plan.xorbs.len(), "cannot record the GC run", error.into());
            return;
        }
        match self.sweep_removed_files(pace).await {
            Ok(true) => {}
            Ok(false) => collected.is_stopped = true,
            Err(error) => collected.fail(0, "cannot clean up removed files", error),
        }
        self.delete_dead_objects(collected, plan, pace).await;
        // Condemnations come last, so that space is freed as early as possible.
        type Kind = fn(Action) -> bool;
        let kinds: [Kind; 4] = [
            |action| matches!(action, Action::Finish { .. }),
            |action| matches!(action, Action::Abandon { .. }),
            |action| matches!(action, Action::Delete { .. }),
            |action| matches!(action, Action::Condemn { .. }),
        ];
        for kind in kinds {
            let planned: Vec<PlannedXorb> = plan.xorbs.iter().filter(|xorb| kind(xorb.action)).copied().collect();
            for step in planned.chunks(STEP_COUNT) {
                if collected.stops_at(self.clock.now(), plan) || !pace.next().await {
                    collected.is_stopped = true;
                    return;
                }
                self.step(collected, plan, step, pace).await;
            }
        }
    }

    /// Performs the planned action of the xorbs of one step, which all have the same action.
    async fn step(&self, collected: &mut Collected, plan: &CollectionPlan, step: &[PlannedXorb], pace: &Pace) {
        let Some(first) = step.first() else { return };
        let hashes: Vec<XorbHash> = step.iter().map(|xorb| xorb.hash).collect();
        let now = self.clock.now();
        let (changed, what): (Result<Vec<XorbHash>, IndexError>, _) = match first.action {
            Action::Condemn { .. } => {
                (self.index.condemn_xorbs(hashes, plan.idle_since(), now).await, "cannot condemn xorbs")
            }
            Action::Delete { .. } => {
                let begun = self.index.begin_deletions(hashes, plan.condemned_since(), now).await;
                (begun, "cannot mark xorbs as being deleted")
            }
            Action::Abandon { .. } => {
                let abandoned = self.index.abandon_xorbs(hashes, plan.staged_since(), now).await;
                (abandoned, "cannot abandon staged xorbs")
            }
            Action::Finish { .. } => (self.still_deleting(hashes).await, "cannot list unfinished deletions"),
        };
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => return collected.fail(step.len(), what, error.into()),
        };
        collected.spared += (step.len() - changed.len()) as u64;
        // Readers may still have the layouts of these xorbs. No reader has one of an abandoned
        // xorb.
        if matches!(first.action, Action::Delete { .. } | Action::Finish { .. }) {
            self.forget_deleted(&changed);
        }
        let changed = step.iter().filter(|xorb| changed.contains(&xorb.hash));
        if matches!(first.action, Action::Condemn { .. }) {
            changed.for_each(|xorb| collected.condemned.add(xorb.serialized_len));
            return;
        }
        for xorb in changed {
            if pace.stop.is_cancelled() {
                collected.is_stopped = true;
                return;
            }
            self.finish_deletion(collected, xorb).await;
        }
    }

    /// Returns the xorbs among these that are still being deleted. If another process has completed
    /// a deletion since the plan was made, the blob may be that of a later upload.
    async fn still_deleting(&self, hashes: Vec<XorbHash>) -> Result<Vec<XorbHash>, IndexError> {
        let mut deleting = Vec::with_capacity(hashes.len());
        for hash in hashes {
            let life = self.index.find_life(hash).await?;
            deleting.extend(life.filter(|life| life.state == XorbState::Deleting).map(|life| life.hash));
        }
        Ok(deleting)
    }

    /// Deletes the blob of a row in `Deleting`, and then the row.
    async fn finish_deletion(&self, collected: &mut Collected, xorb: &PlannedXorb) {
        let deleted = async {
            let Some(incarnation) = self.index.incarnation_to_delete(xorb.hash).await? else { return Ok(()) };
            self.blobs.delete(BlobKey::new(xorb.hash, incarnation)).await?;
            Ok::<_, StoreError>(())
        };
        if let Err(error) = deleted.await {
            return collected.fail(1, "cannot delete a blob", error);
        }
        match self.index.forget_xorb(xorb.hash).await {
            Ok(_) => collected.deleted.add(xorb.serialized_len),
            Err(error) => collected.fail(1, "cannot delete the row of a deleted xorb", error.into()),
        }
    }

    /// Deletes the blobs of dead objects whose retention is over. Pending objects of the same age
    /// are declared dead, and a later run deletes them.
    async fn delete_dead_objects(&self, collected: &mut Collected, plan: &CollectionPlan, pace: &Pace) {
        let now = self.clock.now();
        if collected.stops_at(now, plan) {
            return;
        }
        let before = before(now, OBJECT_RETENTION);
        let prepared = async {
            // After the clock was set back, objects with later times would be retained for too
            // long.
            self.index.set_objects_back(now).await?;
            self.index.abandon_objects(before, now).await
        };
        if let Err(error) = prepared.await {
            return collected.fail(0, "cannot abandon pending objects", error.into());
        }
        let mut after = None;
        loop {
            let page = match self.index.dead_objects(before, after, OBJECT_PAGE_COUNT).await {
                Ok(page) => page,
                Err(error) => return collected.fail(0, "cannot list dead objects", error.into()),
            };
            let Some(last) = page.last() else { return };
            after = Some((last.hash, last.incarnation));
            if collected.is_stopped || !pace.next().await {
                collected.is_stopped = true;
                return;
            }
            for object in page {
                let deleted = async {
                    self.blobs.delete(BlobKey::new(object.hash, object.incarnation)).await?;
                    self.index.forget_object(object.hash, object.incarnation).await?;
                    Ok::<_, StoreError>(())
                };
                match deleted.await {
                    Ok(()) => collected.replaced.add(object.len),
                    Err(error) => collected.fail(1, "cannot delete the blob of a dead object", error),
                }
            }
        }
    }

    /// Counts the results in the metrics.
    fn count(&self, collected: &Collected) {
        let metrics = &self.metrics.collection;
        metrics.condemned.inc_by(collected.condemned.count);
        metrics.deleted.inc_by(collected.deleted.count);
        metrics.freed_bytes.inc_by(collected.deleted.serialized_len + collected.replaced.serialized_len);
        metrics.failed.inc_by(collected.failed);
        if collected.failure.is_none() && !collected.is_stopped {
            metrics.last_success.set(i64::try_from(self.clock.now().as_secs()).unwrap_or(i64::MAX));
        }
    }
}
