//! What would go, and why: a value that can be printed, and that changes nothing.
//!
//! The index is read in pages, never in one long transaction, which would keep SQLite from folding its log for as long.
//! So what is read first may have changed when the last page is read. That is harmless: what has come since is too young
//! to be planned, and every step of an execution looks again.

use std::collections::HashSet;
use std::time::Duration;

use super::{Doubt, Policy, STAGED_LIFE};
use crate::format::XorbHash;
use crate::index::{XorbLife, XorbState};
use crate::runtime::clock::Timestamp;
use crate::service::error::StoreError;
use crate::service::{Cas, Gap, Tail};

/// Xorbs of one page: some 70 KiB of the index.
pub(super) const LIFE_PAGE_COUNT: u32 = 1000;

/// Runs of terms of one page: some 3 MiB where files are large.
pub(super) const TERM_PAGE_COUNT: u32 = 128;

/// Xorbs of one plan, at most: 20 MB of memory and some 10 TB of full xorbs. The next plan has the rest.
const MAX_PLANNED_COUNT: usize = 200_000;

/// What is to become of a xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nobody has needed or touched it since then: condemn it.
    Condemn {
        /// Its last touch, or the loss of its last reference.
        idle_since: Timestamp,
    },
    /// It was condemned then, and nobody has come: delete it.
    Delete {
        /// When it was condemned.
        condemned_since: Timestamp,
    },
    /// Its deletion began then and was not finished.
    Finish {
        /// When it began.
        deleting_since: Timestamp,
    },
    /// An upload began to publish it then, and never did: clear it up.
    Abandon {
        /// When it began.
        staged_since: Timestamp,
    },
}

/// What is to become of one xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedXorb {
    /// Which one.
    pub hash: XorbHash,
    /// Bytes of its blob; 0 where that is not known.
    pub serialized_len: u64,
    /// What, and why.
    pub action: Action,
}

/// A number of xorbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Bytes of their blobs.
    pub serialized_len: u64,
}

/// What stays, and for which reason; each xorb counts once, for the first that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// A file refers to it.
    pub referenced: Tally,
    /// It was touched, or lost its last reference, less than the grace ago.
    pub in_grace: Tally,
    /// It is promised to a client for some time to come.
    pub leased: Tally,
    /// It is condemned, and its time is not over.
    pub condemned: Tally,
    /// It is being published.
    pub staged: Tally,
    /// It would go, but the plan is full: the next one has it.
    pub left_off: Tally,
}

/// What a collection would do.
#[derive(Clone, Debug)]
pub struct CollectionPlan {
    pub(super) made: Timestamp,
    pub(super) policy: Policy,
    pub(super) xorbs: Vec<PlannedXorb>,
    pub(super) kept: Kept,
}

impl CollectionPlan {
    /// Every xorb that something is to become of, in the order of the hashes' bytes.
    #[must_use]
    pub fn xorbs(&self) -> &[PlannedXorb] {
        &self.xorbs
    }

    /// What stays.
    #[must_use]
    pub const fn kept(&self) -> &Kept {
        &self.kept
    }

    /// What comes back when the plan is executed.
    #[must_use]
    pub fn freed_now(&self) -> Tally {
        self.tally(|action| !matches!(action, Action::Condemn { .. }))
    }

    /// What comes back later, unless somebody comes for it: the xorbs that would be condemned, and those that are.
    #[must_use]
    pub fn freed_later(&self) -> Tally {
        let Tally { mut count, mut serialized_len } = self.tally(|action| matches!(action, Action::Condemn { .. }));
        count += self.kept.condemned.count;
        serialized_len = serialized_len.saturating_add(self.kept.condemned.serialized_len);
        Tally { count, serialized_len }
    }

    fn tally(&self, is_counted: impl Fn(Action) -> bool) -> Tally {
        let mut tally = Tally::default();
        for xorb in self.xorbs.iter().filter(|xorb| is_counted(xorb.action)) {
            tally.add(xorb.serialized_len);
        }
        tally
    }

    pub(super) fn idle_since(&self) -> Timestamp {
        before(self.made, self.policy.grace)
    }

    pub(super) fn condemned_since(&self) -> Timestamp {
        before(self.made, self.policy.condemned)
    }

    pub(super) fn staged_since(&self) -> Timestamp {
        before(self.made, STAGED_LIFE)
    }

    /// Decides what becomes of a xorb.
    fn consider(&mut self, life: &XorbLife, tail: &Tail) {
        let decided = match (life.state, life.since) {
            (XorbState::Staged, staged_since) if staged_since <= self.staged_since() => {
                Ok(Action::Abandon { staged_since })
            }
            (XorbState::Staged, _) => Err(&mut self.kept.staged),
            (XorbState::Deleting, deleting_since) => Ok(Action::Finish { deleting_since }),
            // A file refers to it, or will when the index has taken its record.
            (XorbState::Live | XorbState::Condemned, _) if life.is_referenced || tail.needs(&life.hash) => {
                Err(&mut self.kept.referenced)
            }
            (XorbState::Live, since) if since > self.idle_since() => Err(&mut self.kept.in_grace),
            (XorbState::Live | XorbState::Condemned, _) if life.lease_until > self.made => Err(&mut self.kept.leased),
            (XorbState::Live, idle_since) => Ok(Action::Condemn { idle_since }),
            (XorbState::Condemned, since) if since > self.condemned_since() => Err(&mut self.kept.condemned),
            (XorbState::Condemned, condemned_since) => Ok(Action::Delete { condemned_since }),
        };
        match decided {
            Err(kept) => kept.add(life.serialized_len),
            Ok(_) if self.xorbs.len() == MAX_PLANNED_COUNT => self.kept.left_off.add(life.serialized_len),
            Ok(action) => {
                self.xorbs.push(PlannedXorb { hash: life.hash, serialized_len: life.serialized_len, action });
            }
        }
    }

    /// Whether this xorb would go although somebody may need it: what is not visible is needed by nobody.
    fn would_take(&self, life: &XorbLife) -> bool {
        let mut alone = Self { made: self.made, policy: self.policy, xorbs: Vec::new(), kept: Kept::default() };
        alone.consider(life, &Tail::default());
        alone.visible().next().is_some()
    }

    /// The xorbs that readers see until the plan is executed.
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

impl Cas {
    /// Says what a collection would do at this moment. Changes nothing; reads what there is to know of every xorb and,
    /// if any is to go, the terms of every file.
    ///
    /// # Errors
    ///
    /// See [`Doubt`].
    pub async fn plan_collection(&self, policy: Policy) -> Result<CollectionPlan, Doubt> {
        let made = self.clock.now();
        Doubt::of_clock(made, self.index.last_collection().await.map_err(StoreError::from)?)?;
        // Read before the rows: what is registered from now on touches its xorbs.
        let tail = match self.compare().await {
            Ok(tail) => tail,
            Err(Gap::Store(error)) => return Err(error.into()),
            Err(gap) => return Err(Doubt::Gap(gap)),
        };
        let mut plan = CollectionPlan { made, policy, xorbs: Vec::new(), kept: Kept::default() };
        let mut after = None;
        loop {
            let lives = self.index.xorb_lives(after, LIFE_PAGE_COUNT).await.map_err(StoreError::from)?;
            // Looked at again: what was touched since the plan began is younger than it.
            let now = self.clock.now();
            for life in &lives {
                Doubt::of_clock(now, life.since)?;
                plan.consider(life, &tail);
            }
            let Some(last) = lives.last() else { break };
            after = Some(last.hash);
            tokio::task::yield_now().await;
        }
        self.check_terms(&plan).await?;
        Ok(plan)
    }

    /// Looks for files that are made of what would go: references decide, and this is what they were made from.
    async fn check_terms(&self, plan: &CollectionPlan) -> Result<(), Doubt> {
        let visible: HashSet<XorbHash> = plan.visible().collect();
        if visible.is_empty() {
            return Ok(());
        }
        let mut next = Some(0);
        while let Some(after) = next {
            let page = self.index.term_runs(after, TERM_PAGE_COUNT).await.map_err(StoreError::from)?;
            for run in page.runs {
                for xorb in run.xorbs.into_iter().filter(|xorb| visible.contains(xorb)) {
                    // It may have been registered since its references were looked for.
                    let life = self.index.find_life(xorb).await.map_err(StoreError::from)?;
                    if life.is_some_and(|life| plan.would_take(&life)) {
                        return Err(Doubt::Reference { file: run.file, xorb });
                    }
                }
            }
            next = page.next;
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

pub(super) fn before(moment: Timestamp, by: Duration) -> Timestamp {
    let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_millis(moment.as_millis().saturating_sub(millis))
}
