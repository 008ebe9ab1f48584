//! The store against a simple model of it: random steps, many at once, cut off anywhere, and the
//! invariants after each.
//!
//! The model ([`record`]) knows the files of each repository, and until when clients were promised
//! that a xorb stays. Uploads, responses that a xorb is stored, registrations and dedup responses
//! give such a promise. So does the removal of the last claim to a file. After every step:
//!
//! * a registered file reads as it was: all of them at the end, one of them after each step;
//! * a promised xorb is live: neither deleted nor condemned, and no shard that names it is refused;
//! * no xorb is deleted before it was condemned for a day;
//! * a reader without a claim to a file sees none;
//! * every visible xorb has its blob, and the totals are their sums;
//! * a check finds a damaged blob, and no reader of a file gets a wrong byte of it. From then on
//!   reads, registrations and queries refuse it. An upload in any serialization heals it
//!   ([`damage`]);
//! * an upload in a shorter serialization replaces the blob, and URLs of the old one are served for
//!   their time;
//! * every name of a blob is that of a row or of an object;
//! * a compaction changes the xorbs of files, and none of the above ([`compact`]);
//!
//! and at the end, when all claims were removed and the grace period is over, the stores are empty.
//!
//! The store is the real one over SQLite; its blobs are in memory. Verbs run at once, with their
//! operations on the stores in an order that the seed decides ([`scene`]). A crash cuts all of them
//! off between any two operations, and the next process recovers. Other steps ([`steps`],
//! [`dramas`]) are registrations from a client's memory, late executions of plans, clocks that jump
//! or go back, and failing operations.
//!
//! Breaking each guard of the store ([`guards`]) shows that the model notices faults.
//!
//! A step that goes wrong is printed with its seed and the steps before it; `ZORB_SEED=<seed>` runs
//! that seed alone.

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

use tokio::runtime::Builder;

pub(super) use self::gate::Gate;
pub(super) use self::guards::Weakness;
use self::guards::{COVERED, GUARDS, Guard};
use self::record::{Failure, Fault};
use self::world::World;

/// Steps of one seed: some months.
const STEP_COUNT: usize = 500;

/// Seeds of a run; together with the steps of each, 100 000 steps.
const SEED_COUNT: u64 = 200;

/// Seeds of the short run: some thousand steps, which any test run has the time for.
const QUICK_SEED_COUNT: u64 = 10;

/// Seeds after which a broken guard counts as unnoticed.
const GUARD_SEED_COUNT: u64 = 300;

/// Seeds that show no fault without one of two guards, at least: as many as are needed to show the
/// fault without both.
const COVERED_SEED_COUNT: u64 = 24;

/// Seeds of which one must show the fault. The first fault of a seed hides the rest, and mostly it
/// is another one.
const UNCOVERED_SEED_COUNT: u64 = 200;

/// How a seed ended.
struct Run {
    seed: u64,
    steps: usize,
    failure: Option<Failure>,
    counts: BTreeMap<&'static str, u64>,
    history: Vec<String>,
}

fn run(seed: u64, broken: &[Guard], is_lenient: bool) -> Run {
    // One thread, and one thing at a time: see `scene`.
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

/// Runs these seeds, on as many threads as there are CPUs, until one fails.
fn run_all(seeds: std::ops::Range<u64>, broken: &[Guard]) -> (Vec<Run>, Option<Run>) {
    let (next, runs, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()), Mutex::new(None));
    let work = || {
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
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
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
        // An event that never happens is not tested.
        for what in [
            "dedup_responses",
            "blobs damaged",
            "checks of what is damaged",
            "clocks set back",
            "compactions",
            "condemned",
            "crashes",
            "crashes of the command",
            "deleted",
            "gc_aborts",
            "failures",
            "files gone",
            "files refused",
            "files not switched, since they had changed",
            "files read",
            "files switched",
            "heals",
            "refusals of what is damaged",
            "registrations",
            "registrations of what is missing",
            "renewals",
            "replaced blobs deleted",
            "replacements",
            "sources that were damaged",
            "spared",
            "uploads",
            "uploads of what is being deleted",
            "uploads of what is there, or by grant",
            "URLs of replaced blobs",
            "URLs of what is damaged",
            "URLs used",
            "xorbs that compactions found",
            "xorbs that compactions made",
            "xorbs that were rewritten",
        ] {
            assert!(counts.get(what).is_some_and(|count| *count > 20), "{what}: {counts:?}");
        }
    }
}

/// Breaks guards; what the model says of that, after how many steps.
fn breach(broken: &[Guard]) -> Option<(Fault, usize)> {
    let mut before = 0;
    for seed in 0..GUARD_SEED_COUNT {
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
fn every_guard_that_is_broken_is_missed() {
    let next = Mutex::new(GUARDS.iter().filter(|guard| COVERED.iter().all(|(covered, ..)| covered != *guard)));
    let unnoticed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(guard) = next.lock().unwrap().next() else { return };
            if breach(&[*guard]).is_none() {
                unnoticed.lock().unwrap().push(*guard);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let unnoticed = unnoticed.into_inner().unwrap();
    assert!(unnoticed.is_empty(), "no seed misses {unnoticed:?}");
}

/// Whether this is the first fault without these guards, where early condemnation does not count.
fn is_lost(seed: u64, broken: &[Guard], fault: Fault) -> bool {
    run(seed, broken, true).failure.is_some_and(|failure| failure.fault == fault)
}

#[cfg(feature = "full-tests")]
#[test]
fn covered_guard_is_missed_when_its_companion_is_broken_too() {
    for (guard, companion, fault) in COVERED {
        let mut seeds = 0..UNCOVERED_SEED_COUNT;
        let without_both = seeds.find(|seed| is_lost(*seed, &[*guard, *companion], *fault));
        let without_both = without_both.unwrap_or_else(|| panic!("no seed misses {guard:?} and {companion:?}"));
        let without_one =
            (0..COVERED_SEED_COUNT.max(without_both + 1)).find(|seed| is_lost(*seed, &[*companion], *fault));
        println!("without {companion:?}: {without_one:?}; without {guard:?} as well: {without_both}");
        assert_eq!(without_one, None, "{companion:?} is missed by itself");
    }
}
