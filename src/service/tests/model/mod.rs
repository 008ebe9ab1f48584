//! Tests the store against a simple model of it. Random steps run concurrently and are interrupted
//! anywhere, and the invariants are checked after each step.
//!
//! The model ([`record`]) knows the files of each repository, and until when clients were promised
//! that a xorb stays. Uploads, responses that a xorb is stored, registrations and dedup responses
//! give such a promise. So does the removal of the last claim to a file. After every step:
//!
//! * a registered file has its bytes: one file is read after each step, and all at the end;
//! * a promised xorb is live: neither deleted nor condemned, and no shard that names it is refused;
//! * no xorb is deleted before it was condemned for a day;
//! * a reader without a claim to a file does not see the file;
//! * every visible xorb has its blob, and the totals in the index are the sums over all visible
//!   xorbs;
//! * a check finds a damaged blob, and no reader of a file gets a wrong byte of it. From then on
//!   reads, registrations and queries refuse it. An upload in any serialization heals it
//!   ([`damage`]);
//! * an upload in a shorter serialization replaces the blob, and URLs of the old blob are served
//!   until they expire;
//! * every blob is named by a row or by an object;
//! * a compaction changes the xorbs of files, and none of the above ([`compact`]);
//!
//! and at the end, when all claims were removed and the grace period is over, the stores are empty.
//!
//! The store is the real one over SQLite; its blobs are in memory. In a *scene* some *actors*
//! perform one verb each, concurrently, and the seed decides the order of their operations on the
//! stores ([`scene`]). A *drama* is a written sequence of scenes, which are its *beats*. A crash
//! stops all actors between any two operations, and the next process recovers. Other steps
//! ([`steps`], [`dramas`]) are registrations from a client's memory, late executions of plans,
//! clocks that jump or go back, and failing operations.
//!
//! Breaking each guard of the store ([`guards`]) shows that the model notices faults.
//!
//! A step that fails is printed with its seed and the steps before it; `ZORB_SEED=<seed>` runs that
//! seed alone.

mod compact;
mod damage;
mod dramas;
mod forgotten;
mod gate;
mod guards;
mod guards_compact;
mod guards_health;
mod judge;
mod palette;
mod record;
mod scene;
mod steps;
mod verbs;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::Builder;

pub(super) use self::gate::Gate;
pub(super) use self::guards::BrokenGuards;
use self::guards::{COVERED, GUARDS, Guard};
use self::record::{Failure, Fault};
use self::world::World;

/// Steps of one seed, which are some months of simulated time.
const STEP_COUNT: usize = 500;

/// Seeds of a full run. With [`STEP_COUNT`] steps each they are 100 000 steps.
const SEED_COUNT: u64 = 200;

/// Seeds of the short run: some thousand steps, fast enough for every test run.
const QUICK_SEED_COUNT: u64 = 10;

/// Seeds after which a broken guard counts as unnoticed.
const GUARD_SEED_COUNT: u64 = 300;

/// Seeds that are tried first for these guards, because they showed the fault when this list was
/// made. All others follow, so an outdated entry costs time only: without the list the search takes
/// 300 000 steps, with it 30 000. The output of the test has the seeds for a new list.
const FIRST_SEEDS: [(Guard, u64); 14] = [
    (Guard::RegisterTouches, 7),
    (Guard::TouchKeepsLater, 55),
    (Guard::StageSparesDeleting, 45),
    (Guard::AbandonStaged, 30),
    (Guard::PublishOwnsRow, 174),
    (Guard::HealDescribes, 12),
    (Guard::FinishDeletions, 104),
    (Guard::HealNotesReplacement, 25),
    (Guard::AbandonObjects, 43),
    (Guard::CondemnLease, 27),
    (Guard::RegisterRefusesDamaged, 7),
    (Guard::SwitchComparesTerms, 4),
    (Guard::StartAbandons, 11),
    (Guard::ObjectBeforeBlob, 91),
];

/// Minimum number of seeds that must show no fault if only the covering one of two guards is
/// broken.
const COVERED_SEED_COUNT: u64 = 24;

/// If both guards are broken, one of this number of seeds must show the fault. Many seeds are
/// needed, because mostly another fault occurs first and ends the seed.
const UNCOVERED_SEED_COUNT: u64 = 200;

/// How a seed ended.
struct Run {
    seed: u64,
    steps: usize,
    failure: Option<Failure>,
    counts: BTreeMap<&'static str, u64>,
    history: Vec<String>,
}

/// Runs one seed with these guards broken. `is_lenient`: see [`World::is_lenient`].
fn run(seed: u64, broken: &[Guard], is_lenient: bool) -> Run {
    // One thread, so that the seed decides the order: see `scene`.
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let run = runtime.block_on(async {
        let mut world = World::new(seed, broken).await;
        world.is_lenient = is_lenient;
        let mut steps = 0;
        let result = async {
            while steps < STEP_COUNT {
                steps += world.step().await?;
            }
            world.end().await
        };
        let failure = Box::pin(result).await.err();
        Run {
            seed,
            steps,
            failure,
            counts: std::mem::take(&mut world.counts),
            history: std::mem::take(&mut world.history).into(),
        }
    });
    runtime.shutdown_background();
    run
}

/// Runs `work` on one thread per CPU and returns when all are done. On Linux, each thread is bound
/// to a CPU.
///
/// A world consists of a thread of the runtime and the threads of its database, which take turns:
/// each wakes the next and sleeps. On one CPU this is a switch; between two CPUs it is an interrupt,
/// and takes several times as long on a virtual machine.
fn on_each_cpu(work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for number in 0..thread::available_parallelism().map_or(1, usize::from) {
            let work = &work;
            scope.spawn(move || {
                // The threads that this one starts inherit its CPU.
                #[cfg(target_os = "linux")]
                bind_to_cpu(number);
                work();
            });
        }
    });
}

/// Binds this thread to one of the CPUs that it may use.
#[cfg(target_os = "linux")]
fn bind_to_cpu(number: usize) {
    let permitted = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| permitted.is_set(*cpu)).cycle();
    let mut own = CpuSet::new();
    own.set(cpus.nth(number).unwrap());
    sched_setaffinity(None, &own).unwrap();
}

/// Runs these seeds, on all CPUs, until one fails.
fn run_all(seeds: std::ops::Range<u64>, broken: &[Guard]) -> (Vec<Run>, Option<Run>) {
    let (next, runs, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()), Mutex::new(None));
    on_each_cpu(|| {
        while failed.lock().unwrap().is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let run = run(seed, broken, false);
            if run.failure.is_some() {
                failed.lock().unwrap().get_or_insert(run);
            } else {
                runs.lock().unwrap().push(run);
            }
        }
    });
    (runs.into_inner().unwrap(), failed.into_inner().unwrap())
}

#[test]
fn the_first_seeds_lose_nothing_and_leave_nothing_behind() {
    let (_, failed) = run_all(0..QUICK_SEED_COUNT, &[]);
    if let Some(Run { seed, steps, failure, history, .. }) = failed {
        panic!("ZORB_SEED={seed} step {steps}: {failure:?}\n{}", history.join("\n"));
    }
}

#[cfg(feature = "full-tests")]
#[test]
fn hundred_thousand_steps_lose_nothing_and_leave_nothing() {
    let seed = std::env::var("ZORB_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = seed.map_or(0..SEED_COUNT, |seed| seed..seed + 1);
    println!("seeds {seeds:?}");
    let (runs, failed) = run_all(seeds, &[]);
    if let Some(Run { seed, steps, failure, history, .. }) = failed {
        panic!("ZORB_SEED={seed} step {steps}: {failure:?}\n{}", history.join("\n"));
    }
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (what, count) in runs.iter().flat_map(|run| &run.counts) {
        *counts.entry(what).or_default() += count;
    }
    let steps: usize = runs.iter().map(|run| run.steps).sum();
    println!("{steps} steps: {counts:#?}");
    if seed.is_none() {
        assert!(steps >= 100_000, "{steps} steps");
        // Every kind of event must have occurred.
        for what in [
            "dedup_responses",
            "blobs damaged",
            "checks of damaged xorbs",
            "clocks set back",
            "compactions",
            "condemned",
            "crashes",
            "crashes of the command",
            "deleted",
            "gc_aborts",
            "failures",
            "files removed",
            "files refused",
            "files not switched because they had changed",
            "files read",
            "files switched",
            "heals",
            "registrations refused for damage",
            "registrations",
            "registrations of missing xorbs",
            "renewals",
            "replaced blobs deleted",
            "replacements",
            "sources that were damaged",
            "spared",
            "uploads",
            "uploads during a deletion",
            "uploads of stored xorbs, or by grant",
            "URLs of replaced blobs",
            "URLs of damaged xorbs",
            "URLs used",
            "xorbs that compactions found",
            "xorbs that compactions made",
            "xorbs that were rewritten",
        ] {
            assert!(counts.get(what).is_some_and(|count| *count > 20), "{what}: {counts:?}");
        }
    }
}

/// Runs seeds with these guards broken until one fails. Returns the fault that the model reports,
/// and the number of steps before it.
fn breach(broken: &[Guard]) -> Option<(Fault, usize)> {
    let mut before = 0;
    let first = FIRST_SEEDS.iter().filter(|(guard, _)| broken == [*guard]).map(|(_, seed)| *seed);
    for seed in first.chain(0..GUARD_SEED_COUNT) {
        let run = run(seed, broken, false);
        before += run.steps;
        if let Some(Failure { fault, what }) = run.failure {
            println!("{broken:?}: {fault:?} after {before} steps, with seed {}: {what}", run.seed);
            return Some((fault, before));
        }
    }
    None
}

#[cfg(feature = "full-tests")]
#[test]
fn every_broken_guard_is_noticed() {
    let next = Mutex::new(GUARDS.iter().filter(|guard| COVERED.iter().all(|(covered, ..)| covered != *guard)));
    let unnoticed = Mutex::new(Vec::new());
    on_each_cpu(|| {
        loop {
            let Some(guard) = next.lock().unwrap().next() else { return };
            if breach(&[*guard]).is_none() {
                unnoticed.lock().unwrap().push(*guard);
            }
        }
    });
    let unnoticed = unnoticed.into_inner().unwrap();
    assert!(unnoticed.is_empty(), "no seed notices that {unnoticed:?} is broken");
}

/// Whether the seed ends with this fault, if early condemnations do not count as faults.
fn shows_fault(seed: u64, broken: &[Guard], fault: Fault) -> bool {
    run(seed, broken, true).failure.is_some_and(|failure| failure.fault == fault)
}

#[cfg(feature = "full-tests")]
#[test]
fn covered_guard_is_noticed_if_its_companion_is_broken_too() {
    let next = Mutex::new(COVERED.iter());
    on_each_cpu(|| {
        loop {
            let Some((guard, companion, fault)) = next.lock().unwrap().next() else { return };
            let mut seeds = 0..UNCOVERED_SEED_COUNT;
            let without_both = seeds.find(|seed| shows_fault(*seed, &[*guard, *companion], *fault));
            let without_both =
                without_both.unwrap_or_else(|| panic!("no seed notices that {guard:?} and {companion:?} are broken"));
            let without_one =
                (0..COVERED_SEED_COUNT.max(without_both + 1)).find(|seed| shows_fault(*seed, &[*companion], *fault));
            println!("without {companion:?}: {without_one:?}; without {guard:?} as well: {without_both}");
            assert_eq!(without_one, None, "breaking {companion:?} alone shows the fault");
        }
    });
}
