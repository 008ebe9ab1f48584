//! Damaged blobs: the invariants before the damage is found, while it is known, and after the
//! repair.
//!
//! A disk may change a blob in any way between two scenes. Until the damage is known, a reader of
//! the file gets its bytes or an error. Only a download of serialized bytes by URL may get wrong
//! bytes, because only a hash of the whole blob would detect them.

use bytes::Bytes;
use futures_util::TryStreamExt;
use rand::RngExt;

use super::palette::PALETTE;
use super::record::{Failure, Fault, Url, ensure};
use super::scene::Script;
use super::verbs::{ADMIN, Outcome, REPOS, Verb};
use super::world::{Act, Deed, World};
use crate::blob::{BlobKey, BlobStore};
use crate::format::xorb::verify;
use crate::format::{ByteRange, Crc64};
use crate::index::{RepairIndex, XorbHealth};

/// Maximum number of xorbs that are damaged at once, because other verbs need sound ones.
const DAMAGED_COUNT: usize = 3;

/// Operations of a check up to the one that records its result.
const IN_CHECK: usize = 6;

/// Operations of an upload that heals a xorb.
const IN_HEAL: usize = 5;

impl Act {
    /// Whether the blob of a xorb was damaged, or its row marked, when the scene began.
    pub(super) fn is_ill(&self, xorb: usize) -> bool {
        self.hurt.contains(&xorb) || self.marked.contains(&xorb)
    }
}

impl World {
    /// Finds the blobs that do not match their rows, and the rows that are marked as damaged.
    pub(super) async fn look_at_health(&mut self) {
        let rows = self.index.health_after(None, u32::MAX).await.unwrap();
        self.hurt.clear();
        self.marked.clear();
        self.named.clear();
        let mut visible = Vec::with_capacity(rows.len());
        for row in rows {
            let xorb = self.xorb(&row.hash).expect("no other process makes xorbs");
            visible.push(xorb);
            self.named.insert(xorb, BlobKey::new(row.hash, row.incarnation));
            if row.damaged_at.is_some() {
                self.marked.insert(xorb);
            }
            if !self.is_described(&row).await {
                self.hurt.insert(xorb);
            }
        }
        self.unrepaired.retain(|xorb| visible.contains(xorb));
    }

    /// Whether the blob is the xorb, in the serialization that the row describes.
    async fn is_described(&self, row: &XorbHealth) -> bool {
        let Some(bytes) = self.blob(BlobKey::new(row.hash, row.incarnation)).await else { return false };
        Crc64::of(&bytes) == row.crc64
            && verify(&bytes)
                .is_ok_and(|xorb| xorb.hash() == row.hash && xorb.layout().serialized_len() == bytes.len() as u64)
    }

    async fn blob(&self, key: BlobKey) -> Option<Vec<u8>> {
        let bytes = ByteRange::new(0, self.blobs.head(key).await.unwrap()?)?;
        let blob = self.blobs.read(key, bytes).await.unwrap()?;
        Some(blob.try_collect::<Vec<Bytes>>().await.unwrap().concat())
    }

    /// Checks that only xorbs that the test has damaged have wrong blobs or marks.
    pub(super) async fn check_health(&mut self) -> Result<(), Failure> {
        self.look_at_health().await;
        for xorb in &self.hurt {
            ensure(self.unrepaired.contains(xorb), Fault::Torn, || {
                format!("the row of xorb {xorb} describes another blob")
            })?;
        }
        for xorb in &self.marked {
            ensure(self.unrepaired.contains(xorb), Fault::Damage, || format!("xorb {xorb} counts as damaged"))?;
        }
        let (hurt, marked) = (&self.hurt, &self.marked);
        self.unrepaired.retain(|xorb| hurt.contains(xorb) || marked.contains(xorb));
        Ok(())
    }

    /// Damages the blob of a random xorb.
    pub(super) async fn rot(&mut self) -> Result<usize, Failure> {
        let xorb = self.random_xorb();
        self.damage(xorb).await
    }

    async fn damage(&mut self, xorb: usize) -> Result<usize, Failure> {
        let Some(key) = self.named.get(&xorb).copied() else { return Ok(0) };
        let Some(mut bytes) = self.blob(key).await else { return Ok(0) };
        if !self.is_visible(xorb) || self.unrepaired.len() >= DAMAGED_COUNT {
            return Ok(0);
        }
        let at = self.rng.random_range(0..bytes.len());
        let kind = self.rng.random_range(0..10);
        match kind {
            0 => {
                self.blobs.delete(key).await.unwrap();
            }
            1 => bytes.truncate(at),
            2 => bytes = PALETTE.xorbs[(xorb + 1) % PALETTE.xorbs.len()].forms[0].bytes().to_vec(),
            // As if an operator had copied the same xorb from another store.
            3 => bytes = PALETTE.xorbs[xorb].forms[self.rng.random_range(0..2)].bytes().to_vec(),
            _ => bytes[at] ^= 1 << self.rng.random_range(0..8),
        }
        if kind != 0 {
            self.blobs.damage(key, bytes);
        }
        self.tell(format!("the blob of xorb {xorb} is damaged: {kind}, at {at}"));
        self.count("blobs damaged", 1);
        self.unrepaired.insert(xorb);
        self.ever_damaged.insert(key);
        for url in self.record.urls.iter_mut().filter(|url| url.xorb == xorb) {
            url.may_be_refused = true;
        }
        self.check().await?;
        Ok(1)
    }

    /// Checks a damaged xorb or uses it otherwise, for example by an upload.
    pub(super) async fn treat(&mut self) -> Result<usize, Failure> {
        let unrepaired: Vec<usize> = self.unrepaired.iter().copied().collect();
        if unrepaired.is_empty() {
            return Ok(0);
        }
        let xorb = unrepaired[self.rng.random_range(0..unrepaired.len())];
        let mut verbs = vec![if self.rng.random_bool(0.5) { Verb::Check { xorb } } else { self.verb_about(xorb) }];
        if self.rng.random_bool(0.5) {
            verbs.push(self.verb_about(xorb));
        }
        self.beat(verbs, Vec::new(), None).await
    }

    /// A file is read, its blob is damaged, the damage is noticed, and the xorb is uploaded again;
    /// at each moment an actor uses it.
    pub(super) async fn damaged_file(&mut self) -> Result<usize, Failure> {
        let claims = self.record.all_claims();
        if claims.is_empty() {
            return Ok(0);
        }
        let (file, who) = claims[self.rng.random_range(0..claims.len())];
        let mut count = self.beat(vec![Verb::Read { who, file, range: None }], Vec::new(), None).await?;
        let Some(made_of) = self.record.made_of.get(&file) else { return Ok(count) };
        // No client could upload a new xorb of a compaction again.
        let made_of: Vec<usize> = made_of.iter().copied().filter(|xorb| *xorb < PALETTE.xorbs.len()).collect();
        if made_of.is_empty() {
            return Ok(count);
        }
        let xorb = made_of[self.rng.random_range(0..made_of.len())];
        count += self.damage(xorb).await?;
        let mut verbs = vec![Verb::Check { xorb }];
        if self.rng.random_bool(0.6) {
            let form = self.rng.random_range(0..2);
            verbs.push(Verb::Upload { who, xorb, form });
        }
        let lead = if self.rng.random_bool(0.5) { vec![0; self.rng.random_range(3..8)] } else { Vec::new() };
        count += self.beat(verbs, lead, None).await?;
        for _ in 0..2 {
            let repo = self.rng.random_range(0..REPOS.len());
            for verb in [
                Verb::Read { who, file, range: None },
                Verb::Renew { who: ADMIN, xorb },
                self.random_registration(repo, xorb),
                self.question(xorb),
            ] {
                count += self.beat(vec![verb], Vec::new(), None).await?;
            }
            let urls: Vec<Url> = self.record.urls.iter().filter(|url| url.xorb == xorb).take(2).cloned().collect();
            for url in urls {
                count += self.beat(vec![Verb::Fetch(url)], Vec::new(), None).await?;
            }
            let mut verbs = vec![Verb::Upload { who, xorb, form: self.rng.random_range(0..2) }];
            let mut script = Script::default();
            if self.rng.random_bool(0.6) {
                verbs.push(Verb::Check { xorb });
                // Preferably the check reads the old blob before the new one is published.
                script.lead.extend(vec![1; self.rng.random_range(0..=IN_CHECK)]);
                script.lead.extend(vec![0; self.rng.random_range(0..IN_HEAL + 2)]);
                script.held = self.rng.random_bool(0.5).then_some((1, "mark_damaged"));
            }
            count += self.play(verbs, script, None).await?;
            self.check().await?;
        }
        Ok(count)
    }

    /// Checks all damaged xorbs, and uploads them again.
    pub(super) async fn repair_all(&mut self) -> Result<(), Failure> {
        self.check().await?;
        let unrepaired: Vec<usize> = self.unrepaired.iter().copied().collect();
        for xorb in unrepaired {
            for verb in [Verb::Check { xorb }, Verb::Upload { who: ADMIN, xorb, form: 0 }] {
                self.beat(vec![verb], Vec::new(), None).await?;
            }
            ensure(!self.unrepaired.contains(&xorb), Fault::Damage, || format!("xorb {xorb} cannot be healed"))?;
        }
        Ok(())
    }

    /// Judges the outcomes about xorbs that were damaged when the scene began.
    pub(super) fn judge_health(&mut self, act: &Act, deed: &Deed, outcome: &Outcome) -> Result<(), Failure> {
        let what = || format!("{:?}: {outcome:?}", deed.verb);
        // The damage was known when the scene began, and no actor may have healed it since.
        let is_known = |xorb: usize| act.marked.contains(&xorb) && !act.heals(xorb);
        let is_bad = |world: &Self, xorb: usize| world.hurt.contains(&xorb) || world.marked.contains(&xorb);
        match (&deed.verb, outcome) {
            (Verb::Check { xorb }, Outcome::Sound(true)) => {
                ensure(!is_bad(self, *xorb), Fault::Damage, what)?;
                self.count("heals", u64::from(act.is_ill(*xorb)));
            }
            (Verb::Check { xorb }, Outcome::Sound(false)) => {
                ensure(act.is_ill(*xorb), Fault::Damage, what)?;
                let is_alone = act.deeds.len() == 1;
                ensure(!is_alone || self.marked.contains(xorb), Fault::Damage, what)?;
                self.count("checks of damaged xorbs", 1);
            }
            (Verb::Upload { xorb, .. } | Verb::Grant { xorb, .. }, Outcome::Stored(_)) if act.marked.contains(xorb) => {
                ensure(!is_bad(self, *xorb), Fault::Damage, what)?;
                self.count("heals", 1);
            }
            (Verb::Upload { xorb, .. } | Verb::Grant { xorb, .. }, Outcome::Damaged) => {
                ensure(act.is_ill(*xorb), Fault::Damage, what)?;
            }
            (Verb::Renew { xorb, .. }, Outcome::Renewed(true)) => ensure(!is_known(*xorb), Fault::Damage, what)?,
            (Verb::Register { file, recipe, listed, .. }, outcome) => {
                let named = || PALETTE.files[*file].recipes[*recipe].xorbs.iter().chain(listed);
                // The terms that a known file has. Beside other actors they may have others.
                let is_alone = act.deeds.len() == 1;
                let stored = || self.record.made_of.get(file).into_iter().flatten().filter(|_| is_alone);
                if matches!(outcome, Outcome::Registered) {
                    ensure(!named().chain(stored()).any(|xorb| is_known(*xorb)), Fault::Damage, what)?;
                } else if matches!(outcome, Outcome::Damaged) {
                    let has_others = !is_alone && (!act.marked.is_empty() || !act.hurt.is_empty());
                    let is_ill = named().chain(stored()).any(|xorb| act.is_ill(*xorb));
                    ensure(is_ill || has_others, Fault::Damage, what)?;
                    self.count("registrations refused for damage", 1);
                }
            }
            (Verb::Ask { .. }, Outcome::Told(xorbs, _)) => {
                let mut told = xorbs.iter().filter_map(|xorb| self.xorb(xorb));
                ensure(!told.any(is_known), Fault::Damage, what)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a file cannot be read completely, because one of its blobs was known to be damaged
    /// during the whole scene.
    pub(super) fn must_refuse(&self, act: &Act, verbs: &[Verb], file: usize) -> bool {
        let is_changed =
            verbs.iter().any(|verb| verb.claims().or(verb.removes()).is_some_and(|(_, changed)| changed == file));
        let is_known = |xorb: &usize| act.marked.contains(xorb) && !verbs.iter().any(|verb| verb.may_heal(*xorb));
        !is_changed && self.record.made_of.get(&file).is_some_and(|made_of| made_of.iter().any(is_known))
    }

    /// Judges the outcome of using a URL that has not expired.
    pub(super) fn judge_fetch(
        &mut self,
        act: &Act,
        verbs: &[Verb],
        url: &Url,
        outcome: &Outcome,
        was_hit: bool,
    ) -> Result<(), Failure> {
        let what = || format!("{url:?}: {outcome:?}");
        let is_ill = act.is_ill(url.xorb);
        self.count("URLs of damaged xorbs", u64::from(is_ill));
        // A clock that was ahead may have ended the retention of a replaced blob.
        let may_be_refused = url.may_be_refused || url.is_confused;
        let key = BlobKey::new(PALETTE.xorbs[url.xorb].hash, url.incarnation);
        let is_replaced = self.named.get(&url.xorb) != Some(&key);
        let is_healed = verbs.iter().any(|verb| verb.may_heal(url.xorb));
        self.count("URLs of replaced blobs", u64::from(is_replaced && matches!(outcome, Outcome::Bytes(Some(_), _))));
        match outcome {
            Outcome::Bytes(Some(_), _) if act.marked.contains(&url.xorb) && !is_healed && !is_replaced => {
                Err(Failure::new(Fault::Damage, what()))
            }
            Outcome::Bytes(Some(bytes), _) => {
                // No reader could detect the damage if it was not known yet, or not before the blob
                // was replaced.
                let is_rotten = is_replaced && self.ever_damaged.contains(&key);
                let is_excused = act.hurt.contains(&url.xorb) || url.is_confused || is_rotten;
                ensure(url.expected == bytes[..] || is_excused, Fault::Promise, what)
            }
            Outcome::Bytes(None, _) => ensure(may_be_refused || is_ill, Fault::Promise, what),
            Outcome::Failed(_) => ensure(was_hit || may_be_refused || is_ill, Fault::Promise, what),
            _ => Err(Failure::new(Fault::Promise, what())),
        }
    }
}

impl Act {
    /// Whether an actor of the scene may have healed this xorb.
    fn heals(&self, xorb: usize) -> bool {
        self.deeds.iter().any(|deed| deed.verb.may_heal(xorb))
    }
}
