//! The plan of a collection. Making a plan changes nothing.
//!
//! The index is read in pages: one long transaction would keep SQLite from checkpointing the WAL.
//! So rows of early pages may have changed when the last page is read. Such changes are harmless,
//! because newer xorbs are too young to be planned, and every step of an execution checks its xorbs
//! again.

use std::collections::HashSet;
use std::time::Duration;

use super::{GcAbort, Policy, STAGED_LIFE};
use crate::format::XorbHash;
use crate::index::{XorbLife, XorbState};
use crate::runtime::clock::Timestamp;
use crate::service::error::StoreError;
use crate::service::{Gap, Store, Tail};

/// Xorbs of one page: some 70 KiB of the index.
pub(super) const LIFE_PAGE_COUNT: u32 = 1000;

/// Runs of terms of one page: some 3 MiB where files are large.
pub(super) const TERM_PAGE_COUNT: u32 = 128;

/// Maximum number of xorbs of one plan: 20 MB of memory and some 10 TB of full xorbs. The next plan
/// has the rest.
const MAX_PLANNED_COUNT: usize = 200_000;

/// The planned action for a xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It was neither referenced nor touched since `idle_since`: condemn it.
    Condemn {
        /// Its last touch, or the loss of its last reference.
        idle_since: Timestamp,
    },
    /// It was condemned at `condemned_since` and not used since: delete it.
    Delete {
        /// When it was condemned.
        condemned_since: Timestamp,
    },
    /// Its deletion began at `deleting_since` and was not completed: complete it.
    Finish {
        /// When it began.
        deleting_since: Timestamp,
    },
    /// An upload began to publish it at `staged_since` and never completed: remove its row and
    /// blob.
    Abandon {
        /// When it began.
        staged_since: Timestamp,
    },
}

/// A xorb with its planned action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedXorb {
    /// The xorb.
    pub hash: XorbHash,
    /// Bytes of its blob; 0 where unknown.
    pub serialized_len: u64,
    /// The action, with its reason.
    pub action: Action,
}

/// A number of xorbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of xorbs.
    pub count: u64,
    /// Bytes of their blobs.
    pub serialized_len: u64,
}

/// Retained xorbs by reason; each counts once, for the first reason that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// A file refers to it.
    pub referenced: Tally,
    /// It was touched, or lost its last reference, during the last grace period.
    pub in_grace: Tally,
    /// A dedup response has leased it for some time to come.
    pub leased: Tally,
    /// It is condemned, and the delay until its deletion is not over.
    pub condemned: Tally,
    /// It is being published.
    pub staged: Tally,
    /// It would have an action, but this plan is full. The next plan has it.
    pub left_off: Tally,
}

/// A planned collection.
#[derive(Clone, Debug)]
pub struct CollectionPlan {
    pub(super) made: Timestamp,
    pub(super) policy: Policy,
    pub(super) xorbs: Vec<PlannedXorb>,
    pub(super) retained: Retained,
}

impl CollectionPlan {
    /// Every xorb with an action, in the order of the hashes' bytes.
    #[must_use]
    pub fn xorbs(&self) -> &[PlannedXorb] {
        &self.xorbs
    }

    /// The retained xorbs.
    #[must_use]
    pub const fn retained(&self) -> &Retained {
        &self.retained
    }

    /// The blobs that executing the plan deletes.
    #[must_use]
    pub fn freed_now(&self) -> Tally {
        self.tally(|action| !matches!(action, Action::Condemn { .. }))
    }

    /// The blobs that a later plan deletes, unless the xorbs are used again: those of xorbs that
    /// are condemned now or by this plan.
    #[must_use]
    pub fn freed_later(&self) -> Tally {
        let Tally { mut count, mut serialized_len } = self.tally(|action| matches!(action, Action::Condemn { .. }));
        count += self.retained.condemned.count;
        serialized_len = serialized_len.saturating_add(self.retained.condemned.serialized_len);
        Tally { count, serialized_len }
    }

    fn tally(&self, is_counted: impl Fn(Action) -> bool) -> Tally {
        let mut tally = Tally::default();
        for xorb in self.xorbs.iter().filter(|xorb| is_counted(xorb.action)) {
            tally.add(xorb.serialized_len);
        }
        tally
    }

    /// Unneeded live xorbs that were last touched then or earlier are condemned.
    pub(super) fn idle_since(&self) -> Timestamp {
        before(self.made, self.policy.grace)
    }

    /// Unneeded xorbs that were condemned then or earlier are deleted.
    pub(super) fn condemned_since(&self) -> Timestamp {
        before(self.made, self.policy.condemned)
    }

    /// Rows that were staged then or earlier are abandoned.
    pub(super) fn staged_since(&self) -> Timestamp {
        before(self.made, STAGED_LIFE)
    }

    /// Adds an action for a xorb, or counts it as retained.
    fn consider(&mut self, life: &XorbLife, tail: &Tail) {
        let decided = match (life.state, life.since) {
            (XorbState::Staged, staged_since) if staged_since <= self.staged_since() => {
                Ok(Action::Abandon { staged_since })
            }
            (XorbState::Staged, _) => Err(&mut self.retained.staged),
            (XorbState::Deleting, deleting_since) => Ok(Action::Finish { deleting_since }),
            // A file refers to the xorb, or will do so when the index has applied a record of the
            // tail.
            (XorbState::Live | XorbState::Condemned, _) if life.is_referenced || tail.needs(&life.hash) => {
                Err(&mut self.retained.referenced)
            }
            (XorbState::Live, since) if since > self.idle_since() => Err(&mut self.retained.in_grace),
            (XorbState::Live | XorbState::Condemned, _) if life.lease_until > self.made => {
                Err(&mut self.retained.leased)
            }
            (XorbState::Live, idle_since) => Ok(Action::Condemn { idle_since }),
            (XorbState::Condemned, since) if since > self.condemned_since() => Err(&mut self.retained.condemned),
            (XorbState::Condemned, condemned_since) => Ok(Action::Delete { condemned_since }),
        };
        match decided {
            Err(retained) => retained.add(life.serialized_len),
            Ok(_) if self.xorbs.len() == MAX_PLANNED_COUNT => self.retained.left_off.add(life.serialized_len),
            Ok(action) => {
                self.xorbs.push(PlannedXorb { hash: life.hash, serialized_len: life.serialized_len, action });
            }
        }
    }

    /// Whether the plan would condemn or delete a xorb with this row. The other two actions do not
    /// count, because no file needs a xorb that readers do not see.
    fn would_delete(&self, life: &XorbLife) -> bool {
        let mut alone = Self { made: self.made, policy: self.policy, xorbs: Vec::new(), retained: Retained::default() };
        // The tail is left out: this is only asked for planned xorbs, which the tail does not need.
        alone.consider(life, &Tail::default());
        alone.visible().next().is_some()
    }

    /// The xorbs of the plan that readers still see.
    fn visible(&self) -> impl Iterator<Item = XorbHash> + '_ {
        let is_visible = |xorb: &&PlannedXorb| matches!(xorb.action, Action::Condemn { .. } | Action::Delete { .. });
        self.xorbs.iter().filter(is_visible).map(|xorb| xorb.hash)
    }
}

impl Tally {
    pub(super) fn add(&mut self, serialized_len: u64) {
        self.count += 1;
        self.serialized_len = self.serialized_len.saturating_add(serialized_len);
    }
}

impl Store {
    /// Plans a collection as of now. Changes nothing. Reads the row of every xorb and, if any would
    /// be deleted, the terms of every file.
    ///
    /// # Errors
    ///
    /// See [`GcAbort`].
    pub async fn plan_collection(&self, policy: Policy) -> Result<CollectionPlan, GcAbort> {
        let made = self.clock.now();
        self.check_gc_clock(made, self.index.last_collection().await.map_err(StoreError::from)?)?;
        // Read the records before the rows. A registration after this moment touches its xorbs, so
        // that they are in their grace period.
        let tail = match self.compare().await {
            Ok(tail) => tail,
            Err(Gap::Store(error)) => return Err(error.into()),
            Err(gap) => return Err(GcAbort::Gap(gap)),
        };
        let mut plan = CollectionPlan { made, policy, xorbs: Vec::new(), retained: Retained::default() };
        let mut after = None;
        loop {
            let lives = self.index.xorb_lives(after, LIFE_PAGE_COUNT).await.map_err(StoreError::from)?;
            // The clock is read for each page. A xorb may be touched after the plan began: its time
            // is later than `made`, although the clock was not set back.
            let now = self.clock.now();
            for life in &lives {
                self.check_gc_clock(now, life.since)?;
                plan.consider(life, &tail);
            }
            let Some(last) = lives.last() else { break };
            after = Some(last.hash);
            tokio::task::yield_now().await;
        }
        self.check_terms(&plan).await?;
        Ok(plan)
    }

    /// Checks that no file has a term with a xorb that would be deleted. The plan relies on the
    /// references, and the terms are the cross-check.
    async fn check_terms(&self, plan: &CollectionPlan) -> Result<(), GcAbort> {
        let visible: HashSet<XorbHash> = plan.visible().collect();
        if visible.is_empty() {
            return Ok(());
        }
        let mut next = Some(0);
        while let Some(after) = next {
            let page = self.index.term_runs(after, TERM_PAGE_COUNT).await.map_err(StoreError::from)?;
            for run in page.runs {
                for xorb in run.xorbs.into_iter().filter(|xorb| visible.contains(xorb)) {
                    // A file with this xorb may have been registered since the row was read, so
                    // read it again.
                    let life = self.index.find_life(xorb).await.map_err(StoreError::from)?;
                    if life.is_some_and(|life| plan.would_delete(&life)) {
                        return Err(GcAbort::Reference { file: run.file, xorb });
                    }
                }
            }
            next = page.next;
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// The time that is `by` earlier than a moment.
pub(super) fn before(moment: Timestamp, by: Duration) -> Timestamp {
    let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_millis(moment.as_millis().saturating_sub(millis))
}
