//! The collection of garbage at 100 000 xorbs and 1 000 000 references: how long a plan takes, and for how long each step
//! of a collection, of a compaction, and of the registration and removal of a very large file, keeps others from writing.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a bench fails where it panics, and prints")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tokio::runtime::Builder;
use zorb::blob::memory::MemoryBlobStore;
use zorb::blob::records::memory::MemoryRecordStore;
use zorb::format::compression::Scheme;
use zorb::format::shard::Term;
use zorb::format::xorb::LayoutBuilder;
use zorb::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use zorb::index::sqlite::SqliteIndex;
use zorb::index::{
    Allowance, Collect, Compact, Cursor, FileSwitch, NewFile, NewXorb, RegisterIndex, Registration, RunSwitch,
    Switched, Ticket, XorbIndex,
};
use zorb::runtime::clock::{Clock, ManualClock, Timestamp};
use zorb::runtime::metrics::Metrics;
use zorb::service::gc::{MIN_CONDEMNED, MIN_GRACE, Pace, Policy};
use zorb::service::{Settings, Store};

/// Xorbs of the store; one in ten is garbage.
const XORB_COUNT: usize = 100_000;

/// References of files to them.
const REFERENCE_COUNT: usize = 1_000_000;

/// Xorbs of a file.
const FILE_XORB_COUNT: usize = 100;

/// Terms of the file that is removed: as many as a shard takes.
const LARGE_TERM_COUNT: usize = 819_200;

/// Files, and xorbs of each, of which a compaction makes half as many others in one transaction: as many references as it
/// takes at once, of which none is shared.
const SWITCHED_FILE_COUNT: usize = 2;
const SWITCHED_XORB_COUNT: usize = 64;

/// Such transactions.
const SWITCH_COUNT: usize = 50;

/// Chunks of a xorb: those of a full one.
const CHUNK_COUNT: u32 = 1024;

/// Pause between two steps, as the background task of the server makes it.
const STEP_PAUSE: Duration = Duration::from_millis(20);

/// What a step may take, in milliseconds.
const LOCK_LIMIT: f64 = 50.0;

fn xorbs() -> Vec<NewXorb> {
    let mut rng = StdRng::seed_from_u64(1);
    let mut layout = LayoutBuilder::new();
    (0..CHUNK_COUNT).for_each(|_| layout.push(60_008, 65_536).unwrap());
    let layout = layout.finish().unwrap();
    let xorb = |_| NewXorb {
        hash: XorbHash::from_bytes(rng.random()),
        crc64: rng.random(),
        layout: layout.clone(),
        // Nothing here reads them, and they would be 3 GiB.
        chunk_hashes: vec![ChunkHash::from_bytes([0; 32]); 1],
        schemes: vec![Scheme::None; 1],
        owner: None,
        grant: None,
    };
    (0..XORB_COUNT).map(xorb).collect()
}

fn file(rng: &mut StdRng, terms: Vec<Term>) -> NewFile {
    let raw_len = terms.iter().map(|term| u64::from(term.raw_len)).sum();
    NewFile { hash: FileHash::from_bytes(rng.random()), raw_len, terms, sha256: None }
}

fn term(xorb: XorbHash) -> Term {
    Term { xorb, raw_len: 65_536, chunks: ChunkRange::new(0, 1).unwrap() }
}

/// Tries to write again and again, and gives up at once where somebody else does; returns for how long nobody else could,
/// at most and in the median of the times in which that was so, in milliseconds. Two transactions with less than a
/// try between them count as one.
async fn watch_lock(path: PathBuf, stop: Arc<AtomicBool>) -> (f64, f64) {
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(Duration::ZERO);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let (mut holds, mut held_since) = (Vec::new(), None);
    while !stop.load(Ordering::Relaxed) {
        match connection.begin_with("BEGIN IMMEDIATE").await {
            Ok(transaction) => {
                transaction.rollback().await.unwrap();
                let since: Option<Instant> = held_since.take();
                holds.extend(since.map(|since| since.elapsed().as_secs_f64() * 1e3));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(_) => {
                held_since.get_or_insert_with(Instant::now);
                tokio::task::yield_now().await;
            }
        }
    }
    holds.sort_by(f64::total_cmp);
    (holds.last().copied().unwrap_or_default(), holds.get(holds.len() / 2).copied().unwrap_or_default())
}

/// Does something while the lock is watched, and prints for how long it was held; returns the longest time.
#[expect(clippy::disallowed_methods, reason = "the watch must run beside what it watches, on another thread")]
async fn beside<T: Send>(what: &str, path: &Path, work: impl Future<Output = T> + Send) -> (T, f64) {
    let stop = Arc::new(AtomicBool::new(false));
    let watch = tokio::spawn(watch_lock(path.to_owned(), Arc::clone(&stop)));
    let begin = Instant::now();
    let done = work.await;
    let secs = begin.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let (longest, median) = watch.await.unwrap();
    eprintln!("{what}: {secs:.2} s; nobody else could write for {longest:.1} ms at most, {median:.2} ms in the median");
    (done, longest)
}

/// Fills the index; returns a large file, which is not registered yet.
async fn fill(index: &SqliteIndex, now: Timestamp) -> NewFile {
    let (mut rng, begin) = (StdRng::seed_from_u64(2), Instant::now());
    let xorbs = xorbs();
    for xorb in &xorbs {
        let ticket = Ticket::random();
        index.stage_xorb(xorb.hash, ticket, now).await.unwrap();
        index.publish_xorb(xorb.clone(), ticket, now).await.unwrap();
    }
    let needed = &xorbs[..XORB_COUNT / 10 * 9];
    for _ in 0..REFERENCE_COUNT / FILE_XORB_COUNT {
        let first = rng.random_range(0..needed.len());
        // Neighbours, as files that were pushed together have them, and each once.
        let terms = (0..FILE_XORB_COUNT).map(|at| term(needed[(first + at * 7) % needed.len()].hash)).collect();
        register(index, file(&mut rng, terms), now, Duration::ZERO).await;
    }
    let terms = (0..LARGE_TERM_COUNT).map(|at| term(needed[at * 11 % needed.len()].hash)).collect();
    let large = file(&mut rng, terms);
    eprintln!("{XORB_COUNT} xorbs and {REFERENCE_COUNT} references: {:.0} s", begin.elapsed().as_secs_f64());
    large
}

/// Registers a file, with this pause between two steps.
async fn register(index: &SqliteIndex, file: NewFile, now: Timestamp, pause: Duration) {
    let mut xorbs: Vec<XorbHash> = file.terms.iter().map(|term| term.xorb).collect();
    xorbs.sort_by_key(|hash| *hash.as_bytes());
    xorbs.dedup();
    let (repo, allowance) = ("bench".to_owned(), Allowance::default());
    let registration = Registration { repo, files: vec![file], xorbs, dedup: Vec::new(), now, allowance };
    if registration.is_short() && index.register_of(&registration, None).await.unwrap().is_some() {
        return;
    }
    // As the server does: no transaction blocks others for long.
    let begun = index.begin_registration(&registration).await.unwrap();
    let mut next = Some(Cursor::start(&registration));
    while let Some(from) = next {
        next = index.write_step(begun, &registration, from).await.unwrap().next;
        tokio::time::sleep(pause).await;
    }
    index.publish_registration(begun, None).await.unwrap();
    while index.sweep_registrations(None, now).await.unwrap() {
        tokio::time::sleep(pause).await;
    }
}

/// Registers files, and makes them of other xorbs: each of one in the place of every two of its own.
async fn switches(index: &SqliteIndex, now: Timestamp) -> Vec<Vec<FileSwitch>> {
    let (mut rng, xorbs) = (StdRng::seed_from_u64(3), xorbs());
    let needed = &xorbs[..XORB_COUNT / 10 * 9];
    let mut batches = Vec::new();
    for _ in 0..SWITCH_COUNT {
        let mut batch = Vec::new();
        for _ in 0..SWITCHED_FILE_COUNT {
            // Each once, and none of the first half, which they are switched to.
            let (half, first) = (needed.len() / 2, rng.random_range(0..needed.len() / 2));
            let at = |place: usize| (first + place * 101) % half;
            let before = (0..SWITCHED_XORB_COUNT).map(|place| term(needed[half + at(place)].hash)).collect();
            let after = (0..SWITCHED_XORB_COUNT).map(|place| term(needed[at(place / 2)].hash)).collect();
            let new = file(&mut rng, before);
            let hash = new.hash;
            register(index, new, now, Duration::ZERO).await;
            let rows = index.terms_of(hash).await.unwrap();
            let [row] = rows.as_slice() else { panic!("{} runs", rows.len()) };
            let run = RunSwitch { row: row.row, before: row.terms.clone(), after };
            batch.push(FileSwitch { file: hash, runs: vec![run] });
        }
        batches.push(batch);
    }
    batches
}

/// Checkpoints the WAL between transactions until it is aborted, as a server does. Otherwise the WAL would reach the
/// length from which on each commit checkpoints it.
#[expect(clippy::disallowed_methods, reason = "it runs beside all that is measured")]
fn checkpoint(index: &SqliteIndex) -> tokio::task::JoinHandle<()> {
    let index = index.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(SqliteIndex::CHECKPOINT_INTERVAL).await;
            index.checkpoint_wal().await.unwrap();
        }
    })
}

async fn run() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sqlite");
    let index = SqliteIndex::open(&path).await.unwrap();
    let checkpoints = checkpoint(&index);
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_700_000_000_000)));
    let large = fill(&index, clock.now()).await;
    let large_hash = large.hash;
    let registration = register(&index, large, clock.now(), STEP_PAUSE);
    let (_, wait) = beside(&format!("register a file of {LARGE_TERM_COUNT} terms"), &path, registration).await;
    let blobs = Arc::new(MemoryBlobStore::new());
    let store = Store::new(&Settings::over(
        blobs,
        Arc::new(MemoryRecordStore::new()),
        Arc::new(index.clone()),
        Arc::clone(&clock) as _,
        Arc::new(Metrics::new()),
    ));
    store.agree(true).await.unwrap();
    let policy = Policy::new(MIN_GRACE, MIN_CONDEMNED).unwrap();
    let pace = Pace { pause: STEP_PAUSE, ..Pace::default() };
    let mut longest: f64 = wait;
    clock.advance(MIN_GRACE);
    for name in ["condemn", "delete"] {
        let plan = beside(&format!("plan to {name}"), &path, store.plan_collection(policy)).await.0.unwrap();
        eprintln!("  {} xorbs planned, {} kept", plan.xorbs().len(), plan.retained().referenced.count);
        let (done, wait) = beside(name, &path, store.collect(plan, &pace)).await;
        assert!(done.failure.is_none(), "{done:?}");
        eprintln!("  {} condemned, {} deleted", done.condemned.count, done.deleted.count);
        longest = longest.max(wait);
        clock.advance(MIN_CONDEMNED);
    }
    let batches = switches(&index, clock.now()).await;
    let switch = async {
        for batch in &batches {
            assert_eq!(index.switch_terms(batch, clock.now()).await.unwrap(), Switched::All);
            tokio::time::sleep(STEP_PAUSE).await;
        }
    };
    longest = longest.max(beside("switch files to other xorbs", &path, switch).await.1);
    let removal = async {
        index.remove_claims(large_hash, None, clock.now()).await.unwrap();
        let (mut steps, mut longest) = (0, 0.0_f64);
        loop {
            let begin = Instant::now();
            if !index.sweep_removed(clock.now()).await.unwrap() {
                return (steps, longest);
            }
            longest = longest.max(begin.elapsed().as_secs_f64() * 1e3);
            steps += 1;
            tokio::time::sleep(STEP_PAUSE).await;
        }
    };
    let ((steps, step), wait) = beside("remove the large file", &path, removal).await;
    eprintln!("  {steps} steps, {step:.1} ms the longest");
    longest = longest.max(wait).max(step);
    checkpoints.abort();
    eprintln!("longest lock: {longest:.1} ms of {LOCK_LIMIT} ms");
    longest <= LOCK_LIMIT
}

fn main() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if !runtime.block_on(run()) {
        std::process::exit(1);
    }
}
