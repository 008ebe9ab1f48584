//! Judges the responses of a scene, and the promises that follow from them.

use std::collections::{BTreeMap, BTreeSet};

use super::palette::PALETTE;
use super::record::{Failure, Fault, Url, ensure};
use super::verbs::{ADMIN, Outcome, Place, REPOS, Verb, claims, form_of};
use super::world::{Act, Deed, World, millis};
use crate::blob::BlobKey;
use crate::runtime::clock::Clock;
use crate::service::gc::{MIN_CONDEMNED, MIN_GRACE};

/// Maximum number of URLs that are remembered for later downloads.
const URL_COUNT: usize = 30;

impl World {
    /// Judges a scene.
    pub(super) async fn judge(&mut self, act: Act) -> Result<(), Failure> {
        let (before, named) = (self.record.claims.clone(), self.named.clone());
        self.look_at_health().await;
        let is_replaced = |(xorb, key): &(&usize, &BlobKey)| {
            !act.is_ill(**xorb) && self.named.get(xorb).is_some_and(|now| now != *key)
        };
        let count = named.iter().filter(is_replaced).count() as u64;
        self.count("replacements", count);
        if act.is_compacting() && !self.marked.is_subset(&act.marked) {
            // The command may have marked a xorb. The server learns of it by its poll every second.
            self.notice_hidden().await?;
        }
        self.judge_files(&act).await?;
        for deed in &act.deeds {
            let Some((begin, outcome)) = &deed.done else { continue };
            self.judge_xorbs(&act, deed, *begin, outcome)?;
            self.judge_health(&act, deed, outcome)?;
        }
        let Act { deeds, begin, has_jumped, safe, hurt, marked } = act;
        let act = Act { deeds: Vec::new(), begin, has_jumped, safe, hurt, marked };
        let verbs: Vec<Verb> = deeds.iter().map(|deed| deed.verb.clone()).collect();
        for deed in deeds {
            self.judge_reading(&act, &before, &verbs, deed)?;
        }
        Ok(())
    }

    /// Checks the claims to the files of a scene. Claims whose fate is certain must or must not
    /// exist. The others are read from the index.
    async fn judge_files(&mut self, act: &Act) -> Result<(), Failure> {
        let verbs = || act.deeds.iter().map(|deed| &deed.verb);
        let touched: BTreeSet<usize> =
            verbs().filter_map(|verb| verb.claims().or(verb.removes())).map(|(_, file)| file).collect();
        let (mut lost, made_of) = (Vec::new(), self.record.made_of.clone());
        for file in touched {
            let before = self.record.claims.get(&file).cloned().unwrap_or_default();
            let mut found = BTreeSet::new();
            for (repo, name) in REPOS.iter().enumerate() {
                let (mut may, mut is_claimed, mut may_go, mut is_gone) = (before.contains(&repo), false, false, false);
                for deed in &act.deeds {
                    let done = deed.done.as_ref().map(|(_, outcome)| outcome);
                    if deed.verb.claims() == Some((repo, file)) {
                        may = true;
                        is_claimed |= matches!(done, Some(Outcome::Registered));
                    }
                    if deed
                        .verb
                        .removes()
                        .is_some_and(|(who, removed)| removed == file && (who == repo || who == ADMIN))
                    {
                        may_go = true;
                        is_gone |= matches!(done, Some(Outcome::Removed | Outcome::NotThere));
                    }
                }
                let must = (before.contains(&repo) || is_claimed) && !may_go;
                let is_claiming = verbs().any(|verb| verb.claims() == Some((repo, file)));
                let must_not = !may || (is_gone && !is_claiming);
                let what = || format!("file {file} for {name}, before: {before:?}");
                let sees = self.server.file_len(&claims(repo), PALETTE.files[file].hash).await;
                let sees =
                    sees.map_err(|error| Failure::new(Fault::Response, format!("{}: {error:?}", what())))?.is_some();
                ensure(sees || !must, Fault::Lost, || format!("{} is not there", what()))?;
                ensure(!sees || !must_not, Fault::Seen, || format!("{} is there", what()))?;
                if sees {
                    found.insert(repo);
                }
            }
            lost.extend(self.enter(act, file, !before.is_empty(), found).await?);
        }
        lost.extend(self.judge_switches(act, &made_of).await?);
        for (xorb, until) in lost.into_iter().filter(|(xorb, _)| !self.record.is_needed(*xorb)).collect::<Vec<_>>() {
            self.record.lose(xorb, until, self.clock.now());
        }
        Ok(())
    }

    /// Records the repositories of a file, and its xorbs. If the file has no repository left,
    /// returns its xorbs, and until when they stay if no other file needs them.
    async fn enter(
        &mut self,
        act: &Act,
        file: usize,
        was_there: bool,
        found: BTreeSet<usize>,
    ) -> Result<Vec<(usize, u64)>, Failure> {
        if found.is_empty() {
            self.record.claims.remove(&file);
            let xorbs = self.record.made_of.remove(&file).unwrap_or_default();
            let removes = |deed: &&Deed| deed.verb.removes().is_some_and(|(_, removed)| removed == file);
            let begin = |deed: &Deed| deed.done.as_ref().map_or(act.begin.as_millis(), |(begin, _)| *begin);
            let begin = act.deeds.iter().filter(removes).map(begin).min().unwrap_or_default();
            self.count("files removed", u64::from(was_there));
            return Ok(xorbs.into_iter().map(|xorb| (xorb, begin + millis(MIN_GRACE))).collect());
        }
        let named = self.look_up(file).await?;
        self.record.made_of.insert(file, named.into_iter().collect());
        self.record.claims.insert(file, found);
        Ok(Vec::new())
    }

    /// Judges the responses about xorbs.
    fn judge_xorbs(&mut self, act: &Act, deed: &Deed, begin: u64, outcome: &Outcome) -> Result<(), Failure> {
        let (now, grace) = (self.clock.now(), begin + millis(MIN_GRACE));
        let is_safe = |world: &Self, xorb: usize| act.safe.contains(&xorb) && world.record.is_safe(xorb);
        let what = || format!("{:?}: {outcome:?}", deed.verb);
        match (&deed.verb, outcome) {
            (Verb::Upload { xorb, .. } | Verb::Grant { xorb, .. }, Outcome::Stored(was_inserted)) => {
                self.record.promise(*xorb, grace, now);
                self.count(if *was_inserted { "uploads" } else { "uploads of stored xorbs, or by grant" }, 1);
            }
            (Verb::Upload { xorb, .. } | Verb::Grant { xorb, .. }, Outcome::Busy) => {
                ensure(!is_safe(self, *xorb), Fault::Promise, what)?;
                self.count("uploads during a deletion", 1);
            }
            (Verb::Renew { who, xorb }, Outcome::Renewed(is_there)) => {
                let is_fair = *is_there || *who != ADMIN || act.is_ill(*xorb) || !is_safe(self, *xorb);
                ensure(is_fair, Fault::Promise, what)?;
                if *is_there {
                    self.record.promise(*xorb, grace, now);
                    self.count("renewals", 1);
                }
            }
            (Verb::Register { file, recipe, listed, .. }, Outcome::Registered) => {
                for xorb in PALETTE.files[*file].recipes[*recipe].xorbs.iter().chain(listed) {
                    self.record.promise(*xorb, grace, now);
                }
                self.count("registrations", 1);
            }
            (Verb::Register { .. }, Outcome::Missing(xorb)) => {
                let xorb = self.xorb(xorb).expect("it was named");
                ensure(!is_safe(self, xorb), Fault::Promise, what)?;
                self.count("registrations of missing xorbs", 1);
            }
            (Verb::Ask { .. }, Outcome::Told(xorbs, until)) => {
                for xorb in xorbs {
                    let xorb = self.xorb(xorb).expect("it was uploaded, or made");
                    self.record.promise(xorb, *until, now);
                }
                self.count("dedup_responses", 1);
            }
            (_, Outcome::Collected(collected)) => {
                let failure = collected.failure.as_ref();
                ensure(failure.is_none() || deed.was_hit, Fault::Response, || format!("{failure:?}"))?;
                // The collection had no concurrent actions, and nothing failed.
                let is_whole = failure.is_none() && !collected.is_stopped && !act.has_jumped && act.deeds.len() == 1;
                self.collected = Some(begin).filter(|_| is_whole && matches!(deed.verb, Verb::Collect));
                self.count("condemned", collected.condemned.count);
                self.count("deleted", collected.deleted.count);
                self.count("spared", collected.spared);
                self.count("replaced blobs deleted", collected.replaced.count);
            }
            (_, Outcome::Planned(plan)) => self.plans.push(plan.clone()),
            (_, Outcome::CompactionPlanned(plan)) => self.keep_compaction(plan),
            (_, Outcome::Compacted(done)) => self.judge_compaction(act, deed.was_hit, done)?,
            (_, Outcome::Behind) => {
                ensure(act.begin.as_millis() < self.latest, Fault::Response, || {
                    "GC aborted by a clock that is right".to_owned()
                })?;
            }
            // Files and reads are judged in other functions.
            (Verb::Read { .. } | Verb::Fetch(_) | Verb::Register { .. }, _)
                if !matches!(outcome, Outcome::Failed(_)) => {}
            (Verb::Read { .. } | Verb::Fetch(_), Outcome::Failed(_)) => {}
            (_, Outcome::Failed(error)) => {
                // An upload that takes a day to publish a xorb may find that its row was abandoned.
                let is_late = act.has_jumped && error.contains("Lost");
                ensure(deed.was_hit || is_late, Fault::Response, what)?;
                self.count("failures", 1);
            }
            _ => {}
        }
        Ok(())
    }

    /// Judges the results of reads.
    fn judge_reading(
        &mut self,
        act: &Act,
        before: &BTreeMap<usize, BTreeSet<usize>>,
        verbs: &[Verb],
        deed: Deed,
    ) -> Result<(), Failure> {
        let Some((begin, outcome)) = deed.done else { return Ok(()) };
        match (deed.verb, outcome) {
            (Verb::Read { who, file, range }, outcome) => {
                let had = before.get(&file).is_some_and(|repos| who == ADMIN || repos.contains(&who));
                let is_ill = PALETTE.files[file].xorbs().any(|xorb| act.is_ill(xorb));
                let may_go = verbs.iter().any(|verb| verb.removes().is_some_and(|(_, removed)| removed == file));
                let claims = |verb: &Verb| {
                    verb.claims().is_some_and(|(repo, claimed)| claimed == file && (who == ADMIN || repo == who))
                };
                let may = had || verbs.iter().any(claims);
                let what = format!("reading file {file} as {who}, {range:?}");
                match outcome {
                    Outcome::Bytes(None, _) => ensure(!had || may_go, Fault::Lost, || what),
                    Outcome::Bytes(Some(bytes), places) => {
                        ensure(may, Fault::Seen, || what.clone())?;
                        let is_refused = range.is_none() && self.must_refuse(act, verbs, file);
                        ensure(!is_refused, Fault::Damage, || what.clone())?;
                        let whole = &PALETTE.files[file].bytes;
                        let expected = range.map_or(&whole[..], |range| {
                            let (start, end) = (usize::try_from(range.start()), usize::try_from(range.end()));
                            &whole[start.unwrap()..end.unwrap().min(whole.len())]
                        });
                        ensure(bytes == expected, Fault::Lost, || format!("{what}: other bytes"))?;
                        self.count("files read", 1);
                        if !act.has_jumped {
                            self.record_urls(begin, places);
                        }
                        Ok(())
                    }
                    outcome => {
                        self.count("files refused", u64::from(is_ill));
                        // A replaced blob is retained for some hours, so it may be deleted if the
                        // clock jumps during the read.
                        let is_late = act.has_jumped && format!("{outcome:?}").contains("Replaced");
                        let may_fail = deed.was_hit || may_go || is_ill || is_late;
                        ensure(may_fail, Fault::Lost, || format!("{what}: {outcome:?}"))
                    }
                }
            }
            (Verb::Fetch(url), outcome) => {
                if self.clock.now().as_millis() >= url.until {
                    return Ok(());
                }
                self.count("URLs used", 1);
                self.judge_fetch(act, verbs, &url, &outcome, deed.was_hit)
            }
            _ => Ok(()),
        }
    }

    /// Records the URLs of a read for later downloads.
    fn record_urls(&mut self, begin: u64, places: Vec<Place>) {
        for Place { xorb, bytes, checksum, incarnation, has_moved } in places {
            // URLs of new xorbs are not checked: they follow the same rules.
            let Some(xorb) = PALETTE.xorb(&xorb) else { continue };
            let Some(form) = form_of(xorb, checksum) else { continue };
            let (start, end) = (usize::try_from(bytes.start()).unwrap(), usize::try_from(bytes.end()).unwrap());
            // If the blob was replaced meanwhile, this range may be outside the form.
            let Some(expected) = form.get(start..end).map(bytes::Bytes::from_static) else { continue };
            if self.record.urls.len() == URL_COUNT {
                self.record.urls.remove(0);
            }
            let until = begin + millis(MIN_CONDEMNED);
            let (issued, may_be_refused) = (begin, has_moved || self.unrepaired.contains(&xorb));
            let is_confused = false;
            let url = Url { xorb, incarnation, bytes, expected, issued, until, may_be_refused, is_confused };
            self.record.urls.push(url);
        }
    }
}
