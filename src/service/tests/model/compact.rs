//! Compaction: xorbs without an uploader, and files with other xorbs than before.
//!
//! After each compaction the model reads the xorbs of files from the index, and checks files by
//! their bytes. New xorbs may appear. Each owner of a new xorb must have owned all of its sources,
//! and a new xorb is deleted when no file needs it. A xorb that lost its last file by a compaction
//! stays for the grace period, for readers with an older plan.
//!
//! The server compacts only where no other actor takes a lock; the command compacts at any time.
//! This is because a scene must know which actor waits for which lock, and the locks of a
//! compaction are not known in advance.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rand::RngExt;

use super::palette::PALETTE;
use super::record::{Failure, Fault, ensure};
use super::scene::{Crash, Script};
use super::verbs::{ADMIN, REPOS, Verb};
use super::world::{Act, CONDEMNED, DAY, HOUR, World, millis};
use crate::format::shard::Term;
use crate::format::{ByteRange, XorbHash};
use crate::index::{Collect, Compact, FileIndex, Reader, XorbIndex};
use crate::service::gc::MIN_GRACE;
use crate::service::gc::compact::{Compacted, CompactionPlan, MinLive};

/// Plans that are stored to be executed later.
const COMPACTION_COUNT: usize = 3;

/// Maximum number of operations of a compaction before it switches files.
const BEFORE_SWITCH: usize = 100;

/// Limit of a query: more than all files.
const ALL: u32 = 1000;

/// The results of compactions, and the uploaders of xorbs.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// Xorbs that are not of the palette, in the order in which they were first seen, and their raw
    /// bytes.
    xorbs: Vec<(XorbHash, Option<u64>)>,
    /// All owners that each xorb has ever had.
    owners: HashMap<XorbHash, BTreeSet<String>>,
    /// Plans that were made and are still to be executed.
    pub(super) plans: Vec<CompactionPlan>,
}

impl Act {
    /// Whether an actor of the scene compacts.
    pub(super) fn is_compacting(&self) -> bool {
        self.deeds.iter().any(|deed| matches!(deed.verb, Verb::Compact(_)))
    }
}

impl World {
    /// The number of a xorb: its index in the palette, or a number after these.
    pub(super) fn xorb(&self, hash: &XorbHash) -> Option<usize> {
        let made = || self.made.xorbs.iter().position(|(made, _)| made == hash);
        PALETTE.xorb(hash).or_else(|| Some(PALETTE.xorbs.len() + made()?))
    }

    pub(super) fn hash_of(&self, xorb: usize) -> XorbHash {
        PALETTE.xorbs.get(xorb).map_or_else(|| self.made.xorbs[xorb - PALETTE.xorbs.len()].0, |xorb| xorb.hash)
    }

    /// The number of xorbs in the palette, and of those that compactions have made.
    pub(super) fn xorb_count(&self) -> usize {
        PALETTE.xorbs.len() + self.made.xorbs.len()
    }

    /// The raw length of a visible xorb.
    pub(super) async fn raw_len(&mut self, xorb: usize) -> u64 {
        if let Some(xorb) = PALETTE.xorbs.get(xorb) {
            return xorb.raw_len();
        }
        let (hash, known) = self.made.xorbs[xorb - PALETTE.xorbs.len()];
        if let Some(known) = known {
            return known;
        }
        let row = self.index.find_xorb(hash).await.unwrap().expect("readers see it");
        self.made.xorbs[xorb - PALETTE.xorbs.len()].1 = Some(row.layout.raw_len());
        row.layout.raw_len()
    }

    /// Assigns numbers to xorbs that a compaction has made.
    pub(super) async fn adopt(&mut self) {
        for life in self.index.xorb_lives(None, u32::MAX).await.unwrap() {
            if self.xorb(&life.hash).is_none() {
                self.made.xorbs.push((life.hash, None));
                self.count("xorbs that compactions made", 1);
            }
        }
    }

    /// Records the owners of xorbs; returns the new ones.
    pub(super) async fn learn_owners(&mut self) -> Vec<(XorbHash, String)> {
        let all = (0..self.xorb_count()).map(|xorb| self.hash_of(xorb)).collect();
        let mut owners = self.index.owners_of(all).await.unwrap();
        owners.retain(|(xorb, owner)| self.made.owners.entry(*xorb).or_default().insert(owner.clone()));
        owners
    }

    /// Judges the result of a compaction, and the owners of its xorbs.
    pub(super) fn judge_compaction(&mut self, act: &Act, was_hit: bool, done: &Compacted) -> Result<(), Failure> {
        let what = || format!("{done:?}");
        ensure(done.failure.is_none() || was_hit, Fault::Response, what)?;
        let is_ill = !act.hurt.is_empty() || !act.marked.is_empty();
        ensure(done.damaged == 0 || is_ill, Fault::Damage, what)?;
        self.count("compactions", 1);
        self.count("xorbs that compactions found", done.found.count);
        self.count("xorbs that were rewritten", done.rewritten.count);
        self.count("files switched", done.file_count);
        self.count("files not switched because they had changed", done.changed_count);
        self.count("sources that were damaged", done.damaged);
        self.count("parts of compactions that failed", done.failed);
        Ok(())
    }

    /// Reads the current xorbs of files from the index. Returns the xorbs that lost a file, and
    /// until when they stay if it was their last.
    pub(super) async fn judge_switches(
        &mut self,
        act: &Act,
        before: &BTreeMap<usize, Vec<usize>>,
    ) -> Result<Vec<(usize, u64)>, Failure> {
        let is_compaction = |verb: &Verb| matches!(verb, Verb::Compact(_));
        let Some(deed) = act.deeds.iter().find(|deed| is_compaction(&deed.verb)) else { return Ok(Vec::new()) };
        let Verb::Compact(plan) = &deed.verb else { return Ok(Vec::new()) };
        let begin = deed.done.as_ref().map_or(act.begin.as_millis(), |(begin, _)| *begin);
        let files: Vec<usize> = self.record.claims.keys().copied().collect();
        let mut lost = Vec::new();
        for file in files {
            let made_of = self.look_up(file).await?;
            let gone = before.get(&file).into_iter().flatten().filter(|xorb| !made_of.contains(xorb));
            lost.extend(gone.map(|xorb| (*xorb, begin + millis(MIN_GRACE))));
            self.record.made_of.insert(file, made_of.into_iter().collect());
        }
        self.check_references().await?;
        self.check_owners(plan, act).await?;
        Ok(lost)
    }

    /// The xorbs of a registered file.
    pub(super) async fn look_up(&mut self, file: usize) -> Result<BTreeSet<usize>, Failure> {
        let hash = PALETTE.files[file].hash;
        let row = self.index.find_file(hash, Reader::All, ByteRange::new(0, u64::MAX)).await;
        let Ok(Some(row)) = row else { return Err(Failure::new(Fault::Lost, format!("file {file}: {row:?}"))) };
        let named: BTreeSet<usize> = row.terms.iter().filter_map(|term| self.xorb(&term.xorb)).collect();
        for xorb in &named {
            self.record.need(*xorb);
        }
        Ok(named)
    }

    /// Checks that each file refers to the xorbs that its terms name, and to no others.
    async fn check_references(&self) -> Result<(), Failure> {
        for xorb in 0..self.xorb_count() {
            let found = self.index.files_of(self.hash_of(xorb), 0, ALL).await.unwrap().files;
            for (file, made) in PALETTE.files.iter().enumerate() {
                let Some(made_of) = self.record.made_of.get(&file) else { continue };
                let (refers, names) = (found.contains(&made.hash), made_of.contains(&xorb));
                ensure(refers == names, Fault::Torn, || {
                    format!("file {file} refers to xorb {xorb}: {refers}; it is made of it: {names}")
                })?;
            }
        }
        Ok(())
    }

    /// Checks that each owner of a new xorb has owned all of its sources.
    async fn check_owners(&mut self, plan: &CompactionPlan, act: &Act) -> Result<(), Failure> {
        let uploaded: HashSet<XorbHash> = act
            .deeds
            .iter()
            .flat_map(|deed| match &deed.verb {
                Verb::Upload { xorb, .. } | Verb::Grant { xorb, .. } => vec![*xorb],
                Verb::Register { file, recipe, listed, .. } => {
                    PALETTE.files[*file].recipes[*recipe].xorbs.iter().chain(listed).copied().collect()
                }
                _ => Vec::new(),
            })
            .map(|xorb| self.hash_of(xorb))
            .collect();
        for (xorb, owner) in self.learn_owners().await {
            if uploaded.contains(&xorb) {
                continue;
            }
            // Any rewrite of the plan may match. A new xorb without a damaged source differs from
            // the planned one, and may equal that of another rewrite.
            let mut rewrites = plan.rewrites().iter();
            let owns = |xorb: &XorbHash| self.made.owners.get(xorb).is_some_and(|owners| owners.contains(&owner));
            let is_fair = rewrites.any(|rewrite| rewrite.sources.iter().all(|source| owns(&source.xorb)));
            ensure(is_fair, Fault::Seen, || format!("xorb {:?} belongs to {owner}", self.xorb(&xorb)))?;
        }
        Ok(())
    }

    pub(super) fn keep_compaction(&mut self, plan: &CompactionPlan) {
        self.count("compactions planned", 1);
        if plan.rewrites().is_empty() {
            return;
        }
        if self.made.plans.len() == COMPACTION_COUNT {
            let one = self.rng.random_range(0..COMPACTION_COUNT);
            self.made.plans.remove(one);
        }
        self.made.plans.push(plan.clone());
    }

    fn random_min_live(&mut self) -> MinLive {
        let share = [0.5, 0.9, 0.9, 1.0][self.rng.random_range(0..4)];
        MinLive::new(share).unwrap()
    }

    /// Plans a compaction, or executes a plan of any age.
    pub(super) fn compaction_verb(&mut self) -> Verb {
        let count = self.made.plans.len();
        if count == 0 || self.rng.random_bool(0.5) {
            return Verb::PlanCompaction(self.random_min_live());
        }
        Verb::Compact(self.made.plans[self.rng.random_range(0..count)].clone())
    }

    /// Lets time pass until there may be something to rewrite. Returns a plan, if it rewrites
    /// something.
    async fn new_compaction(&mut self) -> Result<Option<CompactionPlan>, Failure> {
        self.made.plans.clear();
        let by = Duration::from_millis(self.rng.random_range(millis(MIN_GRACE)..millis(MIN_GRACE + DAY * 3)));
        self.advance(by);
        let min_live = self.random_min_live();
        self.beat(vec![Verb::PlanCompaction(min_live)], Vec::new(), None).await?;
        Ok(self.made.plans.last().cloned())
    }

    /// A source of this plan, preferably one of the palette.
    fn source_of(&mut self, plan: &CompactionPlan) -> usize {
        let sources = plan.rewrites().iter().flat_map(|rewrite| &rewrite.sources);
        let sources: Vec<usize> = sources.filter_map(|source| PALETTE.xorb(&source.xorb)).collect();
        match sources.len() {
            0 => self.random_xorb(),
            count => sources[self.rng.random_range(0..count)],
        }
    }

    /// A verb that uses this xorb while it is rewritten.
    fn verb_beside(&mut self, xorb: usize) -> Verb {
        let repo = self.rng.random_range(0..REPOS.len());
        match self.rng.random_range(0..10) {
            0..4 => self.random_registration(repo, xorb),
            4..6 => self.random_removal(xorb),
            6..8 => self.random_reading(xorb),
            _ => self.verb_about(xorb),
        }
    }

    /// Rewrites xorbs while actors use them. Garbage is collected directly afterwards, and again
    /// when the old xorbs are due.
    pub(super) async fn compaction(&mut self) -> Result<usize, Failure> {
        let Some(plan) = self.new_compaction().await? else { return Ok(1) };
        let mut count = 1;
        let xorb = self.source_of(&plan);
        if self.rng.random_bool(0.5) {
            let verb = self.verb_beside(xorb);
            count += self.beat(vec![verb], Vec::new(), None).await?;
        }
        let mut verbs = vec![Verb::Compact(plan)];
        while verbs.len() < 4 && self.rng.random_bool(0.5) {
            verbs.push(self.verb_beside(xorb));
        }
        let who = if self.rng.random_bool(0.6) { Crash::Command } else { Crash::AllProcesses };
        let is_held = self.rng.random_bool(0.3);
        let lead =
            if self.rng.random_bool(0.5) { vec![0; self.rng.random_range(0..BEFORE_SWITCH)] } else { Vec::new() };
        let script = Script {
            lead,
            crash: self.rng.random_bool(0.2).then(|| (self.rng.random_range(0..40), who)),
            jump: self.rng.random_bool(0.2).then(|| (self.rng.random_range(0..30), DAY * 3)),
            held: is_held.then_some((0, "switch_terms")),
        };
        let fault = self.rng.random_bool(0.2).then(|| {
            let (_, n, moment) = self.random_fault(1);
            (0, n * 4, moment)
        });
        count += self.play(verbs, script, fault).await?;
        self.check().await?;
        if self.rng.random_bool(0.5) {
            count += self.beat(vec![Verb::Collect], Vec::new(), None).await?;
        }
        if self.rng.random_bool(0.3) {
            let again = self.random_min_live();
            count += self.beat(vec![Verb::PlanCompaction(again)], Vec::new(), None).await?;
            if let Some(plan) = self.made.plans.last().cloned() {
                count += self.beat(vec![Verb::Compact(plan)], Vec::new(), None).await?;
            }
        }
        if self.rng.random_bool(0.4) {
            for wait in [MIN_GRACE + HOUR, CONDEMNED + HOUR] {
                self.advance(wait);
                count += self.beat(vec![Verb::Collect], Vec::new(), None).await?;
            }
        }
        Ok(count)
    }

    /// A file is removed and registered in another way, while its new terms wait to be written.
    pub(super) async fn late_switch(&mut self) -> Result<usize, Failure> {
        let ways = |file: &usize| PALETTE.files[*file].recipes.len() > 1;
        let files: Vec<usize> = (0..PALETTE.files.len()).filter(ways).collect();
        let file = files[self.rng.random_range(0..files.len())];
        let who = self.rng.random_range(0..REPOS.len());
        let recipes = PALETTE.files[file].recipes.len();
        let first = self.rng.random_range(0..recipes);
        let second = (first + self.rng.random_range(1..recipes)) % recipes;
        let mut count = self.beat(vec![Verb::Remove { who: ADMIN, file }], Vec::new(), None).await?;
        let needed: BTreeSet<usize> = PALETTE.files[file].xorbs().collect();
        for xorb in needed {
            let form = self.rng.random_range(0..2);
            count += self.beat(vec![Verb::Upload { who, xorb, form }], Vec::new(), None).await?;
        }
        let register = |recipe| Verb::Register { who, file, recipe, listed: Vec::new() };
        count += self.beat(vec![register(first)], Vec::new(), None).await?;
        let Some(plan) = self.new_compaction().await? else { return Ok(count) };
        let verbs = vec![Verb::Compact(plan), Verb::Remove { who: ADMIN, file }, register(second)];
        let lead = vec![0; BEFORE_SWITCH];
        let script = Script { lead, held: Some((0, "switch_terms")), ..Script::default() };
        count += self.play(verbs, script, None).await?;
        self.check().await?;
        Ok(count + 1)
    }
}

impl World {
    /// A file needs two parts of a xorb, and one of them is rewritten: the file is registered after
    /// the plan was made.
    pub(super) async fn half_switch(&mut self) -> Result<usize, Failure> {
        let ways = half_ways();
        if ways.is_empty() {
            return Ok(0);
        }
        let [early, late] = ways[self.rng.random_range(0..ways.len())];
        let who = self.rng.random_range(0..REPOS.len());
        let mut count = 0;
        for (file, recipe) in [early, late] {
            count += self.beat(vec![Verb::Remove { who: ADMIN, file }], Vec::new(), None).await?;
            for xorb in PALETTE.files[file].recipes[recipe].xorbs.clone() {
                let form = self.rng.random_range(0..2);
                count += self.beat(vec![Verb::Upload { who, xorb, form }], Vec::new(), None).await?;
            }
        }
        let register = |(file, recipe)| Verb::Register { who, file, recipe, listed: Vec::new() };
        count += self.beat(vec![register(early)], Vec::new(), None).await?;
        let Some(plan) = self.new_compaction().await? else { return Ok(count) };
        count += self.beat(vec![register(late)], Vec::new(), None).await?;
        count += self.beat(vec![Verb::Compact(plan)], Vec::new(), None).await?;
        Ok(count)
    }
}

/// Pairs of ways to make files: the first needs one of two parts of a xorb, the second needs both.
fn half_ways() -> Vec<[(usize, usize); 2]> {
    let all =
        || (0..PALETTE.files.len()).flat_map(|file| (0..PALETTE.files[file].recipes.len()).map(move |way| (file, way)));
    let terms = |(file, way): (usize, usize)| &PALETTE.files[file].recipes[way].terms;
    let mut found = Vec::new();
    for late in all() {
        for early in all().filter(|early| early.0 != late.0) {
            let is_covered = |term: &&Term| terms(early).iter().any(|other| is_part(term, other));
            let is_half = terms(late)
                .iter()
                .filter(is_covered)
                .any(|covered| terms(late).iter().any(|other| other.xorb == covered.xorb && !is_covered(&other)));
            if is_half {
                found.push([early, late]);
            }
        }
    }
    found
}

/// Whether the chunks of `one` are among those of `other`.
fn is_part(one: &Term, other: &Term) -> bool {
    one.xorb == other.xorb && one.chunks.start() >= other.chunks.start() && one.chunks.end() <= other.chunks.end()
}
