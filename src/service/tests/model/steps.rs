//! Chooses the next step at random.

use std::time::Duration;

use rand::RngExt;

use super::palette::PALETTE;
use super::record::{Failure, Fault, ensure};
use super::scene::{Crash, Script};
use super::verbs::{ADMIN, Outcome, REPOS, Verb, claims, read_file};
use super::world::{CONDEMNED, DAY, HOUR, World, millis};
use crate::format::ByteRange;
use crate::index::XorbState;
use crate::runtime::clock::{Clock, Timestamp};
use crate::service::gc::{Action, CollectionPlan, MIN_GRACE, PlannedXorb};
use crate::service::tests::faults::Moment;

/// Number of collections at the end of a seed. They condemn and delete all xorbs and complete
/// deletions, so nothing may be left after them.
const LAST_COUNT: usize = 4;

/// Plans that are stored to be executed later.
const PLAN_COUNT: usize = 4;

impl World {
    /// Takes a step; returns the number of steps that it counts for.
    pub(super) async fn step(&mut self) -> Result<usize, Failure> {
        if self.rng.random_ratio(1, 40) {
            self.popular = self.rng.random_range(0..PALETTE.xorbs.len());
        }
        if self.rng.random_ratio(1, 60) {
            self.is_shrinking = !self.is_shrinking;
        }
        let steps = match self.rng.random_range(0..1000) {
            0..130 => {
                let by = self.random_time();
                self.tell(format!("{by:?} pass"));
                self.advance(by);
                1
            }
            130..136 => {
                let back = Duration::from_secs(self.rng.random_range(1..30 * 24 * 3600));
                let now = self.clock.now().as_millis() - millis(back);
                self.tell(format!("the clock goes back by {back:?}"));
                self.clock.set(Timestamp::from_millis(now));
                self.record.urls.iter_mut().for_each(|url| url.is_confused = true);
                self.count("clocks set back", 1);
                1
            }
            136..146 => {
                self.restart_in_order().await?;
                1
            }
            146..150 => self.forget_references().await?,
            150..300 => self.close_scene().await?,
            300..330 => self.play_drama().await?,
            330..345 => self.rot().await?,
            345..355 => self.treat().await?,
            _ => self.scene().await?,
        };
        if self.rng.random_bool(0.5) {
            self.notice_hidden().await?;
        }
        self.check().await?;
        self.read_sample().await?;
        Ok(steps)
    }

    fn random_time(&mut self) -> Duration {
        let longest = match self.rng.random_range(0..20) {
            0..6 => HOUR,
            6..12 => DAY + HOUR,
            12..17 => DAY * 8,
            _ => DAY * 25,
        };
        Duration::from_millis(self.rng.random_range(1..millis(longest)))
    }

    /// Plays one to four random verbs at once, perhaps with a crash, a jump of the clock, or a
    /// fault.
    async fn scene(&mut self) -> Result<usize, Failure> {
        let count = [1, 1, 1, 1, 2, 2, 2, 3, 3, 4][self.rng.random_range(0..10)];
        let focus = self.random_xorb();
        let mut verbs: Vec<Verb> = Vec::new();
        while verbs.len() < count {
            let xorb = if self.rng.random_bool(0.75) { focus } else { self.random_xorb() };
            let verb = self.random_verb(xorb);
            if !verb.deletes() || !verbs.iter().any(Verb::deletes) {
                verbs.push(verb);
            }
        }
        let who = if verbs.iter().any(Verb::deletes) && self.rng.random_bool(0.4) {
            Crash::Command
        } else {
            Crash::AllProcesses
        };
        let script = Script {
            crash: self.rng.random_bool(0.05).then(|| (self.rng.random_range(0..8 * count), who)),
            jump: self.rng.random_bool(0.1).then(|| (self.rng.random_range(0..6 * count), self.random_time())),
            ..Script::default()
        };
        let fault = self.rng.random_bool(0.06).then(|| self.random_fault(count));
        self.play(verbs, script, fault).await
    }

    /// Plays a scene about one xorb that is being deleted, may be deleted, or does not exist,
    /// together with a collection. Jumps of time and faults are likely, so that guards are needed.
    async fn close_scene(&mut self) -> Result<usize, Failure> {
        let xorb = self.endangered_xorb();
        let mut verbs: Vec<Verb> = (0..self.rng.random_range(1..3)).map(|_| self.verb_about(xorb)).collect();
        let hash = PALETTE.xorbs[xorb].hash;
        let names = |plan: &&CollectionPlan| plan.xorbs().iter().any(|planned| planned.hash == hash);
        let plans: Vec<CollectionPlan> = self.plans.iter().filter(names).cloned().collect();
        if !plans.is_empty() && self.rng.random_bool(0.5) {
            verbs.push(Verb::Execute(plans[self.rng.random_range(0..plans.len())].clone()));
        } else {
            verbs.push(Verb::Collect);
        }
        let longest =
            [DAY * 2, DAY * 2, MIN_GRACE + DAY * 4, MIN_GRACE + DAY * 4, DAY * 20][self.rng.random_range(0..5)];
        let time = Duration::from_millis(self.rng.random_range(millis(longest / 2)..millis(longest)));
        let who = if self.rng.random_bool(0.6) { Crash::Command } else { Crash::AllProcesses };
        let script = Script {
            crash: self.rng.random_bool(0.15).then(|| (self.rng.random_range(0..20), who)),
            jump: self.rng.random_bool(0.7).then(|| (self.rng.random_range(0..12), time)),
            ..Script::default()
        };
        let fault = self.rng.random_bool(0.15).then(|| self.random_fault(verbs.len()));
        self.play(verbs, script, fault).await
    }

    pub(super) fn random_fault(&mut self, count: usize) -> (usize, usize, Moment) {
        let moment = if self.rng.random_bool(0.5) { Moment::Before } else { Moment::After };
        (self.rng.random_range(0..count), self.rng.random_range(0..10), moment)
    }

    pub(super) async fn play(
        &mut self,
        verbs: Vec<Verb>,
        script: Script,
        fault: Option<(usize, usize, Moment)>,
    ) -> Result<usize, Failure> {
        let count = verbs.len();
        let act = self.act(verbs, script, fault).await?;
        self.judge(act).await?;
        while self.plans.len() > PLAN_COUNT {
            let one = self.rng.random_range(0..self.plans.len());
            self.plans.remove(one);
        }
        Ok(count)
    }

    /// A xorb that is being deleted, is not needed, or does not exist.
    fn endangered_xorb(&mut self) -> usize {
        let all = 0..PALETTE.xorbs.len();
        let state = |xorb: &usize| self.lives.get(xorb).map(|life| life.state);
        let endangered: Vec<usize> = match self.rng.random_range(0..4) {
            0 => all.filter(|xorb| state(xorb).is_none()).collect(),
            1 => all.filter(|xorb| self.is_visible(*xorb) && !self.record.is_needed(*xorb)).collect(),
            _ => all.filter(|xorb| state(xorb).is_some_and(|state| state != XorbState::Live)).collect(),
        };
        if endangered.is_empty() { self.random_xorb() } else { endangered[self.rng.random_range(0..endangered.len())] }
    }

    /// A verb that uses this xorb.
    pub(super) fn verb_about(&mut self, xorb: usize) -> Verb {
        let (who, form) = (self.rng.random_range(0..=ADMIN), self.rng.random_range(0..2));
        match self.rng.random_range(0..10) {
            0..3 => Verb::Upload { who, xorb, form },
            3 => Verb::Grant { who, xorb, form },
            4 => Verb::Renew { who: ADMIN, xorb },
            5 => self.question(xorb),
            _ => {
                let repo = self.rng.random_range(0..REPOS.len());
                self.random_registration(repo, xorb)
            }
        }
    }

    /// A dedup query for a chunk of this xorb, if it has one that may be queried.
    pub(super) fn question(&mut self, xorb: usize) -> Verb {
        let who = self.rng.random_range(0..=ADMIN);
        let hashes = PALETTE.xorbs[xorb].forms[0].xorb().chunk_hashes();
        let chunks: Vec<usize> = (0..PALETTE.chunks.len()).filter(|at| hashes.contains(&PALETTE.chunks[*at])).collect();
        let chunk = match chunks.len() {
            0 => self.rng.random_range(0..PALETTE.chunks.len()),
            count => chunks[self.rng.random_range(0..count)],
        };
        Verb::Ask { who, chunk }
    }

    /// A random xorb, preferably one whose deletion is planned, or a popular one.
    pub(super) fn random_xorb(&mut self) -> usize {
        let planned = self.plans.iter().flat_map(|plan| plan.xorbs()).filter_map(|xorb| PALETTE.xorb(&xorb.hash));
        let passing = self.lives.iter().filter(|(_, life)| life.state != XorbState::Live).map(|(xorb, _)| *xorb);
        let passing = passing.filter(|xorb| *xorb < PALETTE.xorbs.len());
        let mut leaving: Vec<usize> = planned.chain(passing).collect();
        leaving.sort_unstable();
        match self.rng.random_range(0..10) {
            0..3 if !leaving.is_empty() => leaving[self.rng.random_range(0..leaving.len())],
            0..8 => (self.popular + self.rng.random_range(0..4)) % PALETTE.xorbs.len(),
            _ => self.rng.random_range(0..PALETTE.xorbs.len()),
        }
    }

    pub(super) fn is_visible(&self, xorb: usize) -> bool {
        let state = self.lives.get(&xorb).map(|life| life.state);
        matches!(state, Some(XorbState::Live | XorbState::Condemned))
    }

    fn random_verb(&mut self, xorb: usize) -> Verb {
        let who = self.rng.random_range(0..=ADMIN);
        let repo = self.rng.random_range(0..REPOS.len());
        let form = self.rng.random_range(0..2);
        if self.rng.random_ratio(1, 20) {
            return self.compaction_verb();
        }
        let removals = if self.is_shrinking { 30 } else { 8 };
        match self.rng.random_range(0..90 + removals) {
            0..14 => Verb::Upload { who, xorb: self.wanted_xorb(xorb), form },
            14..18 => Verb::Grant { who, xorb: self.wanted_xorb(xorb), form },
            18..20 => Verb::Check { xorb },
            20..25 => Verb::Renew { who, xorb },
            25..45 => self.random_registration(repo, xorb),
            45..52 => self.random_reading(xorb),
            52..58 if !self.record.urls.is_empty() => {
                let url = self.rng.random_range(0..self.record.urls.len());
                Verb::Fetch(self.record.urls[url].clone())
            }
            52..66 => self.question(xorb),
            66..70 => Verb::Plan,
            70..78 if !self.plans.is_empty() => Verb::Execute(self.random_plan()),
            70..90 => Verb::Collect,
            _ => self.random_removal(xorb),
        }
    }

    /// A random plan, preferably one whose xorbs were condemned again since.
    fn random_plan(&mut self) -> CollectionPlan {
        let is_condemned = |planned: &PlannedXorb| {
            let life = self.xorb(&planned.hash).and_then(|xorb| self.lives.get(&xorb));
            matches!(planned.action, Action::Delete { .. })
                && life.is_some_and(|life| life.state == XorbState::Condemned)
        };
        let fitting: Vec<usize> =
            (0..self.plans.len()).filter(|at| self.plans[*at].xorbs().iter().any(is_condemned)).collect();
        let at = match fitting.len() {
            0 => self.rng.random_range(0..self.plans.len()),
            count => fitting[self.rng.random_range(0..count)],
        };
        self.plans[at].clone()
    }

    /// The xorb to upload, so that a file with `xorb` can be registered later: mostly a missing
    /// xorb of such a file.
    fn wanted_xorb(&mut self, xorb: usize) -> usize {
        let made = PALETTE.made_of(xorb);
        if made.is_empty() || self.rng.random_bool(0.4) {
            return xorb;
        }
        let (file, recipe) = made[self.rng.random_range(0..made.len())];
        let xorbs = &PALETTE.files[file].recipes[recipe].xorbs;
        xorbs.iter().copied().find(|xorb| !self.is_visible(*xorb)).unwrap_or(xorb)
    }

    pub(super) fn random_registration(&mut self, who: usize, xorb: usize) -> Verb {
        let mut made = PALETTE.made_of(xorb);
        let is_there =
            |way: &(usize, usize)| PALETTE.files[way.0].recipes[way.1].xorbs.iter().all(|xorb| self.is_visible(*xorb));
        let there: Vec<(usize, usize)> = made.iter().copied().filter(is_there).collect();
        if !there.is_empty() && self.rng.random_bool(0.9) {
            made = there;
        }
        if made.is_empty() {
            return Verb::Renew { who, xorb };
        }
        let (file, recipe) = made[self.rng.random_range(0..made.len())];
        let mut listed = Vec::new();
        while self.rng.random_bool(0.3) {
            listed.push(self.random_xorb());
        }
        Verb::Register { who, file, recipe, listed }
    }

    /// A random claim, preferably to a file that is made of this xorb.
    fn random_claim(&mut self, xorb: usize) -> Option<(usize, usize)> {
        let mut claims = self.record.all_claims();
        let made: Vec<_> =
            claims.iter().copied().filter(|(file, _)| self.record.made_of[file].contains(&xorb)).collect();
        if !made.is_empty() && self.rng.random_bool(0.6) {
            claims = made;
        }
        if claims.is_empty() { None } else { Some(claims[self.rng.random_range(0..claims.len())]) }
    }

    pub(super) fn random_reading(&mut self, xorb: usize) -> Verb {
        let Some((file, repo)) = self.random_claim(xorb) else { return Verb::Renew { who: ADMIN, xorb } };
        let who = [repo, repo, ADMIN, self.rng.random_range(0..REPOS.len())][self.rng.random_range(0..4)];
        let len = PALETTE.files[file].bytes.len() as u64;
        let start = self.rng.random_range(0..len);
        let range = ByteRange::new(start, self.rng.random_range(start + 1..=len + 5));
        Verb::Read { who, file, range: range.filter(|_| self.rng.random_bool(0.5)) }
    }

    pub(super) fn random_removal(&mut self, xorb: usize) -> Verb {
        match self.random_claim(xorb) {
            Some((file, repo)) => Verb::Remove { who: if self.rng.random_bool(0.3) { ADMIN } else { repo }, file },
            None => Verb::Remove { who: ADMIN, file: self.rng.random_range(0..PALETTE.files.len()) },
        }
    }

    /// Reads a registered file, and checks that a file without a claim is not visible.
    async fn read_sample(&mut self) -> Result<(), Failure> {
        let claimed = self.record.all_claims();
        if !claimed.is_empty() {
            let (file, repo) = claimed[self.rng.random_range(0..claimed.len())];
            self.read_equal(file, repo).await?;
        }
        let (file, repo) = (self.rng.random_range(0..PALETTE.files.len()), self.rng.random_range(0..REPOS.len()));
        if !self.record.has(file, repo) {
            let sees = self.server.file_len(&claims(repo), PALETTE.files[file].hash).await;
            ensure(matches!(sees, Ok(None)), Fault::Seen, || format!("{repo} and file {file}: {sees:?}"))?;
        }
        Ok(())
    }

    /// Checks that a registered file has its bytes, or is refused because of known damage.
    async fn read_equal(&mut self, file: usize, repo: usize) -> Result<(), Failure> {
        let made = &PALETTE.files[file];
        let read = read_file(&self.server, &claims(repo), made.hash, None).await;
        let is_same = matches!(&read, Outcome::Bytes(Some(bytes), _) if *bytes == made.bytes);
        self.count("samples read", 1);
        let of = &self.record.made_of[&file];
        if of.iter().any(|xorb| self.marked.contains(xorb)) {
            let is_refused = matches!(read, Outcome::Failed(_));
            return ensure(is_refused, Fault::Damage, || format!("file {file} for {repo}: {read:?}"));
        }
        if of.iter().any(|xorb| self.hurt.contains(xorb)) {
            // The damage is not known yet, but readers must not get wrong bytes.
            let is_fair = is_same || matches!(read, Outcome::Failed(_));
            return ensure(is_fair, Fault::Damage, || format!("file {file} for {repo}: {read:?}"));
        }
        ensure(is_same, Fault::Lost, || format!("file {file} for {repo}: {read:?}"))
    }

    pub(super) async fn read_all(&mut self) -> Result<(), Failure> {
        for (file, repo) in self.record.all_claims() {
            self.read_equal(file, repo).await?;
        }
        Ok(())
    }

    /// Deletes the references of a file, as a bug might. Collections must not delete its xorbs.
    /// Then the references are restored.
    async fn forget_references(&mut self) -> Result<usize, Failure> {
        // The statement must use both parameters of `corrupt_row`, hence `0 * ?2`.
        const FORGET: &str = "DELETE FROM xorb_files WHERE file_id = (SELECT id + 0 * ?2 FROM files WHERE hash = ?1)";
        const RESTORE: &str = "INSERT OR IGNORE INTO xorb_files (xorb_id, file_id) \
             SELECT xorbs.id, files.id FROM xorbs, files WHERE xorbs.hash = ?1 AND files.hash = ?2";
        let files: Vec<usize> = self.record.claims.keys().copied().collect();
        if files.is_empty() {
            return Ok(0);
        }
        let file = files[self.rng.random_range(0..files.len())];
        let hash = PALETTE.files[file].hash;
        self.tell(format!("file {file} loses its references"));
        self.index.corrupt_row(FORGET, hash.as_bytes(), 0).await.unwrap();
        for wait in [MIN_GRACE, CONDEMNED] {
            self.advance(wait);
            let act = self.act(vec![Verb::Collect], Script::default(), None).await?;
            for deed in act.deeds {
                let Some((_, outcome)) = deed.done else { continue };
                let is_abort = matches!(&outcome, Outcome::Failed(abort) if abort.contains("Reference"));
                self.count("gc_aborts", u64::from(is_abort));
                let is_fair = is_abort || matches!(outcome, Outcome::Collected(_) | Outcome::Behind);
                ensure(is_fair, Fault::Response, || format!("{outcome:?}"))?;
            }
            self.check().await?;
        }
        for xorb in self.record.made_of[&file].clone() {
            let xorb = self.hash_of(xorb);
            self.index.corrupt_pair(RESTORE, xorb.as_bytes(), hash.as_bytes()).await.unwrap();
        }
        Ok(3)
    }

    /// Ends a seed: removes all claims, and checks that collections then delete everything.
    pub(super) async fn end(&mut self) -> Result<(), Failure> {
        self.repair_all().await?;
        self.read_all().await?;
        let files: Vec<usize> = self.record.claims.keys().copied().collect();
        for file in files {
            let act = self.act(vec![Verb::Remove { who: ADMIN, file }], Script::default(), None).await?;
            self.judge(act).await?;
        }
        self.check().await?;
        self.clock.set(Timestamp::from_millis(self.latest));
        for _ in 0..LAST_COUNT {
            // Twice the grace, for promises that were made while the clock was ahead.
            self.advance(MIN_GRACE * 2);
            let act = self.act(vec![Verb::Collect], Script::default(), None).await?;
            self.judge(act).await?;
        }
        self.check_empty().await
    }
}
