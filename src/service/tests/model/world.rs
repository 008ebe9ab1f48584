//! The store under test with its environment: processes, a clock, and the model of its promises.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::compact::Made;
use super::forgotten::ForgottenRecords;
use super::gate::{Gate, Stage};
use super::guards::{BrokenGuards, Guard};
use super::record::{Failure, Fault, Record, ensure};
use super::scene::{Actor, Crash, LOCKED, Played, Script, play};
use super::verbs::{Outcome, Verb, perform};
use crate::blob::memory::MemoryBlobStore;
use crate::blob::{BlobKey, BlobStore};
use crate::format::StoreId;
use crate::index::sqlite::SqliteIndex;
use crate::index::{Collect, ObjectIndex, RecordIndex, XorbIndex, XorbLife, XorbState};
use crate::runtime::clock::{Clock, ManualClock, Timestamp};
use crate::runtime::metrics::Metrics;
use crate::service::fsck::Presence;
use crate::service::gc::{CollectionPlan, MIN_GRACE, OBJECT_RETENTION, Policy};
use crate::service::tests::faults::{Faults, FaultyBlobs, FaultyIndex, Moment};
use crate::service::{Server, Settings, Store};

/// The store id in every world.
const STORE_ID: StoreId = StoreId::from_bytes([7; 16]);

pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

/// The time between condemnation and deletion.
pub(super) const CONDEMNED: Duration = DAY;

/// Age at which a collection abandons the staged row of an upload.
const STAGED_LIFE: Duration = DAY;

/// Time after which a scene counts as stuck. Most scenes take milliseconds.
const STUCK: Duration = Duration::from_secs(120);

/// Steps that are printed after a failure.
const HISTORY_COUNT: usize = 60;

/// The file of an empty index.
static EMPTY: OnceCell<Vec<u8>> = OnceCell::const_new();

pub(super) struct World {
    pub(super) rng: StdRng,
    pub(super) clock: Arc<ManualClock>,
    pub(super) record: Record,
    /// Plans that were made and not yet executed.
    pub(super) plans: Vec<CollectionPlan>,
    /// The latest time that the clock has shown.
    pub(super) latest: u64,
    /// The rows of xorbs, as of the last check.
    pub(super) lives: HashMap<usize, XorbLife>,
    /// Counts of events, by name.
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) history: VecDeque<String>,
    pub(super) server: Arc<Server>,
    pub(super) index: SqliteIndex,
    /// The first of a few xorbs that are popular at the moment.
    pub(super) popular: usize,
    /// Whether removals are frequent at the moment.
    pub(super) is_shrinking: bool,
    /// The time at which a collection began, if it was the only verb of the last scene and nothing
    /// failed.
    pub(super) collected: Option<u64>,
    /// Whether the condemnation of a promised xorb, or a deletion soon after it, does not count as
    /// a failure.
    pub(super) is_lenient: bool,
    /// Xorbs whose blobs do not match their rows, as of the last check.
    pub(super) hurt: BTreeSet<usize>,
    /// Xorbs whose rows are marked as damaged, as of the last check.
    pub(super) marked: BTreeSet<usize>,
    /// Damaged xorbs that were not seen sound and unmarked since.
    pub(super) unrepaired: BTreeSet<usize>,
    /// The blobs that visible rows named at the last check.
    pub(super) named: BTreeMap<usize, BlobKey>,
    /// All blobs that were ever damaged.
    pub(super) ever_damaged: HashSet<BlobKey>,
    pub(super) blobs: MemoryBlobStore,
    pub(super) made: Made,
    /// A second process, which collects and compacts beside the server.
    command: Arc<Server>,
    weakness: BrokenGuards,
    /// The generation of the index that the server has seen last.
    seen: Option<u64>,
    directory: TempDir,
}

/// One verb of a scene and its outcome.
pub(super) struct Deed {
    pub(super) verb: Verb,
    /// The time when it began, and its outcome; `None` if its process died.
    pub(super) done: Option<(u64, Outcome)>,
    /// Whether an operation was made to fail.
    pub(super) was_hit: bool,
}

/// The events of a scene.
pub(super) struct Act {
    pub(super) deeds: Vec<Deed>,
    /// The time when it began.
    pub(super) begin: Timestamp,
    pub(super) has_jumped: bool,
    /// Xorbs that were promised or needed when it began.
    pub(super) safe: HashSet<usize>,
    /// Xorbs that were damaged when it began, and those that were marked.
    pub(super) hurt: BTreeSet<usize>,
    pub(super) marked: BTreeSet<usize>,
}

pub(super) fn policy() -> Policy {
    Policy::new(MIN_GRACE, CONDEMNED).unwrap()
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

impl World {
    pub(super) async fn new(seed: u64, broken: &[Guard]) -> Self {
        let directory = directory();
        let empty = EMPTY.get_or_init(empty_index).await;
        File::create(path(&directory)).unwrap().write_all(empty).unwrap();
        let index = SqliteIndex::open(&path(&directory)).await.unwrap();
        index.set_store(STORE_ID, None).await.unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_700_000_000_000)));
        let blobs = MemoryBlobStore::new();
        let weakness = BrokenGuards::new(broken, blobs.clone());
        let process = || process(&index, &blobs, &weakness, &clock);
        Self {
            rng: StdRng::seed_from_u64(seed),
            latest: clock.now().as_millis(),
            record: Record::new(CONDEMNED),
            plans: Vec::new(),
            lives: HashMap::new(),
            counts: BTreeMap::new(),
            history: VecDeque::new(),
            server: process(),
            command: process(),
            popular: 0,
            is_shrinking: false,
            collected: None,
            hurt: BTreeSet::new(),
            marked: BTreeSet::new(),
            unrepaired: BTreeSet::new(),
            named: BTreeMap::new(),
            ever_damaged: HashSet::new(),
            is_lenient: false,
            made: Made::default(),
            seen: None,
            clock,
            index,
            blobs,
            weakness,
            directory,
        }
    }

    pub(super) fn count(&mut self, what: &'static str, by: u64) {
        *self.counts.entry(what).or_default() += by;
    }

    /// Adds a line to the history, which is printed after a failure.
    pub(super) fn tell(&mut self, what: String) {
        if self.history.len() == HISTORY_COUNT {
            self.history.pop_front();
        }
        self.history.push_back(what);
    }

    /// Moves the clock.
    pub(super) fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        self.look_at_clock();
    }

    /// Updates the latest time and the promises after the clock was moved.
    pub(super) fn look_at_clock(&mut self) {
        let now = self.clock.now();
        self.latest = self.latest.max(now.as_millis());
        self.record.look_at_clock(now);
    }

    /// A copy of a process whose store operations pass these faults and their gate.
    fn cast(&self, process: &Arc<Server>, faults: &Faults) -> Arc<Server> {
        let (inner, weakness) = (self.index.clone(), self.weakness.clone());
        let mut store = Store::clone(&process.store);
        store.index = Arc::new(FaultyIndex { inner, faults: faults.clone(), weakness });
        store.blobs = Arc::new(FaultyBlobs { inner: self.blobs.clone(), faults: faults.clone() });
        Arc::new(Server { store: Arc::new(store), ..Server::clone(process) })
    }

    /// Plays a scene in which one actor performs each verb. `fault` selects the operation that
    /// fails: the actor, the number of its operation, and the moment.
    pub(super) async fn act(
        &mut self,
        verbs: Vec<Verb>,
        script: Script,
        fault: Option<(usize, usize, Moment)>,
    ) -> Result<Act, Failure> {
        let begin = self.clock.now();
        let is_compacting = verbs.iter().any(|verb| matches!(verb, Verb::Compact(_)));
        if is_compacting || verbs.iter().any(|verb| matches!(verb, Verb::PlanCompaction(_))) {
            self.learn_owners().await;
        }
        let takes_locks = verbs.iter().any(|verb| verb.lock().is_some());
        let safe = (0..self.xorb_count()).filter(|xorb| self.record.is_safe(*xorb)).collect();
        let (hurt, marked) = (self.hurt.clone(), self.marked.clone());
        let (stage, mut actors, mut hits) = (Arc::new(Stage::default()), Vec::new(), Vec::new());
        for (index, verb) in verbs.iter().enumerate() {
            let gate = Gate::new(&stage, index);
            let faults = Faults::behind(gate.clone());
            if let Some((_, n, moment)) = fault.filter(|(who, ..)| *who == index) {
                faults.arm(n, moment);
            }
            let is_command = match verb {
                Verb::Collect | Verb::Execute(_) => self.rng.random_bool(0.5),
                Verb::Compact(_) => takes_locks || self.rng.random_bool(0.5),
                _ => false,
            };
            let lacks_name = self.weakness.lacks(Guard::UrlNamesBlob);
            let presence = if is_command { Presence::Shared } else { Presence::Alone };
            let server = self.cast(if is_command { &self.command } else { &self.server }, &faults);
            let (clock, lock, locked, verb) = (Arc::clone(&self.clock), verb.lock(), verb.locked(), verb.clone());
            let acting = async move {
                gate.pass("begin").await;
                let begin = clock.now().as_millis();
                let outcome = perform(server, policy(), (presence, lacks_name), verb).await;
                // A process that dies here has done everything, without a response.
                gate.pass("response").await;
                (begin, outcome)
            };
            actors.push(Actor { acting: acting.boxed(), lock, locked, is_command });
            hits.push(faults);
        }
        let played = timeout(STUCK, play(&stage, actors, script, &self.clock, &mut self.rng)).await;
        let Played { outcomes, crash, has_jumped, order } =
            played.map_err(|_| Failure::new(Fault::Stuck, format!("{verbs:?}")))?;
        self.look_at_clock();
        let times = (begin.as_millis(), self.clock.now().as_millis());
        let done: Vec<String> =
            verbs.iter().zip(&outcomes).map(|(verb, done)| short(verb) + " → " + &short(done)).collect();
        self.tell(format!("{times:?} {done:#?} fault {fault:?} crash {crash:?} {order:?}"));
        self.count("verbs", verbs.len() as u64);
        match crash {
            None => {}
            Some(Crash::Command) => {
                self.count("crashes of the command", 1);
                self.command = process(&self.index, &self.blobs, &self.weakness, &self.clock);
            }
            Some(Crash::AllProcesses) => self.reboot().await?,
        }
        if is_compacting {
            self.adopt().await;
        }
        let outcomes = verbs.into_iter().zip(outcomes).zip(hits);
        let deeds = outcomes.map(|((verb, done), faults)| Deed { verb, done, was_hit: faults.disarm().is_some() });
        Ok(Act { deeds: deeds.collect(), begin, has_jumped, safe, hurt, marked })
    }

    /// A crash: everything in memory is lost, and the next process opens the stores.
    async fn reboot(&mut self) -> Result<(), Failure> {
        self.count("crashes", 1);
        if self.rng.random_bool(0.25) {
            self.index = SqliteIndex::open(&path(&self.directory)).await.unwrap();
        }
        if self.rng.random_bool(0.5) {
            self.plans.clear();
        }
        self.restart().await?;
        while self.rng.random_bool(0.2) {
            // The process dies during the recovery, too.
            let stage = Arc::new(Stage::default());
            let gate = Gate::new(&stage, 0);
            let server = self.cast(&self.server, &Faults::behind(gate));
            let acting = perform(server, policy(), (Presence::Alone, false), Verb::Recover).boxed();
            let actors = vec![Actor { acting, lock: None, locked: LOCKED, is_command: false }];
            let crash = Some((self.rng.random_range(0..6), Crash::AllProcesses));
            play(&stage, actors, Script { crash, ..Script::default() }, &self.clock, &mut self.rng).await;
            self.restart().await?;
        }
        let recovered = self.server.store.recover().await;
        recovered.map_err(|error| Failure::new(Fault::Response, format!("recovery: {error:?}")))?;
        let unfinished = self.index.unfinished_xorbs().await.unwrap();
        ensure(unfinished.is_empty(), Fault::Garbage, || format!("after a recovery there are {unfinished:?}"))
    }

    async fn restart(&mut self) -> Result<(), Failure> {
        let process = || process(&self.index, &self.blobs, &self.weakness, &self.clock);
        (self.server, self.command, self.seen) = (process(), process(), None);
        self.notice_hidden().await
    }

    /// The server stops and starts again without a crash.
    pub(super) async fn restart_in_order(&mut self) -> Result<(), Failure> {
        self.server.finish().await;
        self.restart().await?;
        let recovered = self.server.store.recover().await;
        recovered.map_err(|error| Failure::new(Fault::Response, format!("recovery: {error:?}"))).map(drop)
    }

    /// The server polls the generation, as it does every second.
    pub(super) async fn notice_hidden(&mut self) -> Result<(), Failure> {
        let seen = self.server.store.forget_hidden(self.seen).await;
        self.seen = Some(seen.map_err(|error| Failure::new(Fault::Response, format!("{error:?}")))?);
        Ok(())
    }

    /// Compares the index and the blobs with each other and with the promises.
    pub(super) async fn check(&mut self) -> Result<(), Failure> {
        self.check_health().await?;
        let lives = self.index.xorb_lives(None, u32::MAX).await.unwrap();
        let totals = self.index.totals().await.unwrap();
        let blobs: HashSet<BlobKey> = self.blobs.list().await.unwrap().into_iter().collect();
        self.lives.clear();
        let (mut count, mut serialized_len, mut raw_len) = (0, 0, 0);
        for life in lives {
            let xorb = self.xorb(&life.hash).expect("no other process makes xorbs");
            self.lives.insert(xorb, life);
            if matches!(life.state, XorbState::Live | XorbState::Condemned) {
                count += 1;
                serialized_len += life.serialized_len;
                raw_len += self.raw_len(xorb).await;
                let is_there =
                    self.named.get(&xorb).is_some_and(|key| blobs.contains(key)) || self.unrepaired.contains(&xorb);
                ensure(is_there, Fault::Torn, || format!("xorb {xorb} is visible without a blob"))?;
            }
        }
        // Most blobs are named by visible rows.
        let named: HashSet<&BlobKey> = self.named.values().collect();
        let others = blobs.iter().filter(|blob| !named.contains(blob));
        let others = others.map(|blob| (blob.xorb_hash(), blob.incarnation())).collect();
        let strays = self.index.unknown_names(others).await.unwrap();
        ensure(strays.is_empty(), Fault::Torn, || format!("neither a row nor an object has {strays:?}"))?;
        let sums = (totals.xorb_count, totals.serialized_len, totals.raw_len);
        ensure(sums == (count, serialized_len, raw_len), Fault::Torn, || format!("the totals are {totals:?}"))?;
        for xorb in 0..self.xorb_count() {
            let state = self.lives.get(&xorb).map(|life| life.state);
            let is_visible = matches!(state, Some(XorbState::Live | XorbState::Condemned));
            let found = || format!("xorb {xorb} is {state:?}; {}", self.record.why(xorb));
            ensure(is_visible || !self.record.is_needed(xorb), Fault::Lost, found)?;
            let is_fine = state == Some(XorbState::Live) || (is_visible && self.is_lenient);
            ensure(is_fine || !self.record.is_safe(xorb), Fault::Promise, found)?;
            ensure(is_visible || self.is_lenient || !self.record.is_retained(xorb), Fault::Hasty, found)?;
        }
        let Some(collected) = self.collected.take() else { return Ok(()) };
        for life in self.lives.values() {
            let is_old = life.since.as_millis() + millis(STAGED_LIFE) <= collected;
            let is_left = life.state == XorbState::Deleting || (life.state == XorbState::Staged && is_old);
            ensure(!is_left, Fault::Garbage, || format!("after a collection there is {life:?}"))?;
        }
        let before = Timestamp::from_millis(collected.saturating_sub(millis(OBJECT_RETENTION)));
        let dead = self.index.dead_objects(before, None, u32::MAX).await.unwrap();
        ensure(dead.is_empty(), Fault::Garbage, || format!("after a collection there are {dead:?}"))
    }

    /// The invariants when no file is left.
    pub(super) async fn check_empty(&mut self) -> Result<(), Failure> {
        self.check().await?;
        let blobs = self.blobs.list().await.unwrap();
        let lives = &self.lives;
        let objects = self.index.object_sums().await.unwrap();
        let is_empty = lives.is_empty() && blobs.is_empty() && objects.count == 0;
        ensure(is_empty, Fault::Garbage, || format!("{lives:?}, {blobs:?} and {objects:?} are left"))
    }
}

fn process(
    index: &SqliteIndex,
    blobs: &MemoryBlobStore,
    weakness: &BrokenGuards,
    clock: &Arc<ManualClock>,
) -> Arc<Server> {
    let (inner, faults, weakness) = (index.clone(), Faults::default(), weakness.clone());
    let blobs = FaultyBlobs { inner: blobs.clone(), faults: faults.clone() };
    let index = FaultyIndex { inner, faults, weakness };
    let records = ForgottenRecords::new(STORE_ID);
    let clock = Arc::clone(clock) as _;
    let (blobs, records, index) = (Arc::new(blobs), Arc::new(records), Arc::new(index));
    let settings = Settings::over(blobs, records, index, clock, Arc::new(Metrics::new()));
    Server::new(&Settings { upload_count: 8, verify_worker_count: 2, layout_cache_len: 1 << 20, ..settings })
}

/// The beginning of its debug text, which may contain whole plans and long byte strings.
fn short(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}").chars().take(250).collect()
}

fn path(directory: &TempDir) -> std::path::PathBuf {
    directory.path().join("index.sqlite")
}

/// In memory if possible, because the index syncs every transaction.
fn directory() -> TempDir {
    // In a container the directory may exist without being writable.
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

async fn empty_index() -> Vec<u8> {
    let directory = directory();
    let index = SqliteIndex::open(&path(&directory)).await.unwrap();
    index.set_store(STORE_ID, None).await.unwrap();
    index.close().await;
    std::fs::read(path(&directory)).unwrap()
}
