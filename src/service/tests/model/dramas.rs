//! Dramas: sequences of scenes that random steps rarely produce, with slow or late operations and
//! executions of old plans.

use std::time::Duration;

use rand::RngExt;

use super::palette::PALETTE;
use super::record::{Failure, Url};
use super::scene::Script;
use super::verbs::{ADMIN, Verb};
use super::world::{CONDEMNED, DAY, HOUR, World, millis};
use crate::index::XorbState;
use crate::service::gc::{CollectionPlan, MIN_GRACE};
use crate::service::tests::faults::Moment;

/// The approximate number of operations of a collection up to the one that begins to delete.
const BEFORE_DELETION: usize = 8;

impl World {
    /// Plays a random drama. Returns the number of steps that it counts for.
    pub(super) async fn play_drama(&mut self) -> Result<usize, Failure> {
        self.count("dramas", 1);
        match self.rng.random_range(0..11) {
            0 => self.interrupted_plan().await,
            1 => self.late_registration().await,
            2 => self.late_upload().await,
            3 => self.upload_into_deletion().await,
            4 => self.old_plan().await,
            5 => self.damaged_file().await,
            6 => Box::pin(self.compaction()).await,
            7 => Box::pin(self.late_switch()).await,
            8 => Box::pin(self.half_switch()).await,
            9 => self.replaced_file().await,
            _ => self.unfinished_deletion().await,
        }
    }

    /// Plays one scene of a drama, and checks the invariants. The clock jumps after the lead.
    pub(super) async fn beat(
        &mut self,
        verbs: Vec<Verb>,
        lead: Vec<usize>,
        jump: Option<Duration>,
    ) -> Result<usize, Failure> {
        let jump = jump.map(|by| (lead.len(), by));
        let count = self.play(verbs, Script { lead, jump, ..Script::default() }, None).await?;
        self.check().await?;
        Ok(count)
    }

    /// A file is read, its xorb is uploaded in a shorter form, and the URLs of the old blob are
    /// used.
    async fn replaced_file(&mut self) -> Result<usize, Failure> {
        let claims = self.record.all_claims();
        if claims.is_empty() {
            return Ok(0);
        }
        let (file, who) = claims[self.rng.random_range(0..claims.len())];
        let mut count = self.beat(vec![Verb::Read { who, file, range: None }], Vec::new(), None).await?;
        let made_of = self.record.made_of.get(&file).cloned().unwrap_or_default();
        // No client could upload a new xorb of a compaction.
        for xorb in made_of.into_iter().filter(|xorb| *xorb < PALETTE.xorbs.len()) {
            let mut verbs = vec![Verb::Upload { who, xorb, form: 1 }];
            if self.rng.random_bool(0.5) {
                verbs.push(Verb::Collect);
            }
            count += self.beat(verbs, Vec::new(), None).await?;
            let wait = self.time_between(Duration::ZERO, HOUR / 2);
            self.advance(wait);
            count += self.beat(vec![Verb::Collect], Vec::new(), None).await?;
            let urls: Vec<Url> = self.record.urls.iter().filter(|url| url.xorb == xorb).cloned().collect();
            for url in urls {
                count += self.beat(vec![Verb::Fetch(url)], Vec::new(), None).await?;
            }
        }
        Ok(count)
    }

    fn time_between(&mut self, least: Duration, most: Duration) -> Duration {
        Duration::from_millis(self.rng.random_range(millis(least)..millis(most)))
    }

    /// Lets time pass until the grace period of all unneeded xorbs is over. Returns one of them.
    fn idle_xorb(&mut self) -> usize {
        let idle = |xorb: &usize| {
            self.lives.get(xorb).is_some_and(|life| life.state == XorbState::Live) && !self.record.is_needed(*xorb)
        };
        let idle: Vec<usize> = (0..PALETTE.xorbs.len()).filter(idle).collect();
        let by = self.time_between(MIN_GRACE, MIN_GRACE + DAY * 3);
        self.advance(by);
        if idle.is_empty() { self.random_xorb() } else { idle[self.rng.random_range(0..idle.len())] }
    }

    /// Returns a xorb that was condemned and may be deleted now, if there is an unneeded one.
    async fn due_xorb(&mut self) -> Result<usize, Failure> {
        let other = self.idle_xorb();
        self.beat(vec![Verb::Collect], Vec::new(), None).await?;
        let by = self.time_between(CONDEMNED, CONDEMNED + HOUR * 5);
        self.advance(by);
        let is_condemned = |xorb: &usize| self.lives.get(xorb).is_some_and(|life| life.state == XorbState::Condemned);
        let condemned: Vec<usize> = (0..PALETTE.xorbs.len()).filter(is_condemned).collect();
        Ok(if condemned.is_empty() { other } else { condemned[self.rng.random_range(0..condemned.len())] })
    }

    async fn idle_or_due_xorb(&mut self) -> Result<usize, Failure> {
        if self.rng.random_bool(0.5) { self.due_xorb().await } else { Ok(self.idle_xorb()) }
    }

    async fn new_plan(&mut self) -> Result<Option<CollectionPlan>, Failure> {
        let count = self.plans.len();
        let act = self.act(vec![Verb::Plan], Script::default(), None).await?;
        self.judge(act).await?;
        Ok(self.plans.get(count).cloned())
    }

    /// An actor uses a xorb between a plan and its execution.
    async fn interrupted_plan(&mut self) -> Result<usize, Failure> {
        let xorb = self.idle_or_due_xorb().await?;
        let Some(plan) = self.new_plan().await? else { return Ok(2) };
        let verbs = if self.rng.random_bool(0.5) {
            // The scene cannot choose the xorb of a dedup response, so all chunks are queried.
            (0..PALETTE.chunks.len()).map(|chunk| Verb::Ask { who: ADMIN, chunk }).collect()
        } else {
            vec![self.verb_about(xorb)]
        };
        self.beat(verbs, Vec::new(), None).await?;
        self.beat(vec![Verb::Execute(plan)], Vec::new(), None).await?;
        Ok(5)
    }

    /// A registration takes so long that the deletion of its xorbs is planned meanwhile.
    async fn late_registration(&mut self) -> Result<usize, Failure> {
        let xorb = self.idle_or_due_xorb().await?;
        let who = self.rng.random_range(0..ADMIN);
        let verbs = vec![self.random_registration(who, xorb), Verb::Collect];
        let mut lead = vec![0; self.rng.random_range(1..4)];
        let jump = match self.rng.random_range(0..3) {
            0 => self.time_between(CONDEMNED, CONDEMNED * 2),
            _ => self.time_between(MIN_GRACE, MIN_GRACE + DAY),
        };
        let script = Script { jump: Some((lead.len(), jump)), ..Script::default() };
        lead.extend(vec![1; self.rng.random_range(0..BEFORE_DELETION)]);
        let count = self.play(verbs, Script { lead, ..script }, None).await?;
        self.check().await?;
        Ok(count + 2)
    }

    /// An upload takes so long to publish its xorb that its row is abandoned.
    async fn late_upload(&mut self) -> Result<usize, Failure> {
        let missing: Vec<usize> = (0..PALETTE.xorbs.len()).filter(|xorb| !self.lives.contains_key(xorb)).collect();
        if missing.is_empty() {
            return Ok(0);
        }
        let xorb = missing[self.rng.random_range(0..missing.len())];
        let (who, form) = (self.rng.random_range(0..=ADMIN), self.rng.random_range(0..2));
        let mut lead = vec![0; self.rng.random_range(2..5)];
        let jump = Some((lead.len(), self.time_between(DAY, DAY * 2)));
        lead.extend(vec![1; self.rng.random_range(0..=BEFORE_DELETION)]);
        let verbs = vec![Verb::Upload { who, xorb, form }, Verb::Collect];
        let count = self.play(verbs, Script { lead, jump, ..Script::default() }, None).await?;
        self.check().await?;
        Ok(count)
    }

    /// A xorb is uploaded again while it is being deleted.
    async fn upload_into_deletion(&mut self) -> Result<usize, Failure> {
        let xorb = self.due_xorb().await?;
        let (who, form) = (self.rng.random_range(0..=ADMIN), self.rng.random_range(0..2));
        let mut lead = vec![0; self.rng.random_range(BEFORE_DELETION - 1..BEFORE_DELETION + 3)];
        lead.extend(vec![1; self.rng.random_range(0..6)]);
        // How many operations come before the deletion varies, so in half of the dramas the
        // collection waits where the row is marked and the blob is still there.
        let is_held = self.rng.random_bool(0.5);
        if is_held {
            lead = vec![0; 4 * BEFORE_DELETION];
        }
        let held = is_held.then_some((0, "incarnation_to_delete"));
        let verbs = vec![Verb::Collect, Verb::Upload { who, xorb, form }];
        self.play(verbs, Script { lead, held, ..Script::default() }, None).await?;
        self.check().await?;
        Ok(4)
    }

    /// A plan is executed after its xorbs were used and condemned again.
    async fn old_plan(&mut self) -> Result<usize, Failure> {
        let xorb = self.due_xorb().await?;
        let Some(plan) = self.new_plan().await? else { return Ok(3) };
        self.beat(vec![Verb::Renew { who: ADMIN, xorb }], Vec::new(), None).await?;
        let by = self.time_between(MIN_GRACE, MIN_GRACE + HOUR);
        self.advance(by);
        self.beat(vec![Verb::Collect], Vec::new(), None).await?;
        self.beat(vec![Verb::Execute(plan)], Vec::new(), None).await?;
        Ok(7)
    }

    /// A deletion fails midway, and the next collection finds it.
    async fn unfinished_deletion(&mut self) -> Result<usize, Failure> {
        self.due_xorb().await?;
        let n = self.rng.random_range(BEFORE_DELETION - 2..BEFORE_DELETION + 2);
        let moment = if self.rng.random_bool(0.5) { Moment::Before } else { Moment::After };
        self.play(vec![Verb::Collect], Script::default(), Some((0, n, moment))).await?;
        self.check().await?;
        self.beat(vec![Verb::Collect], Vec::new(), None).await?;
        Ok(4)
    }
}
