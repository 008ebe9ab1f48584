//! Large files: registered and planned from the index alone. Nobody has a byte of them.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a bench fails where it panics, and prints")]

use std::sync::Arc;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use zorb::blob::memory::MemoryBlobStore;
use zorb::blob::records::memory::MemoryRecordStore;
use zorb::format::compression::Scheme;
use zorb::format::shard::{CasChunk, CasInfo, FileInfo, Shard, Term, write_upload};
use zorb::format::xorb::LayoutBuilder;
use zorb::format::{ByteRange, ChunkHash, ChunkRange, FileHash, RangeHash, XorbHash, merkle};
use zorb::index::sqlite::SqliteIndex;
use zorb::index::{NewXorb, Ticket, XorbIndex};
use zorb::runtime::clock::{SystemClock, Timestamp};
use zorb::runtime::metrics::Metrics;
use zorb::service::access::{Claims, RepoScope, Scope};
use zorb::service::{Detail, Server, Settings};

/// Raw length of every chunk.
const CHUNK_LEN: u32 = 64 << 10;

/// Chunks of every xorb: 64 MiB.
const CHUNK_COUNT: u32 = 1024;

/// What stock clients ask for at once.
const WINDOW_LEN: u64 = 256_000_000;

const EVERYBODY: Claims = Claims {
    scope: Scope::Admin,
    repo: RepoScope::All,
    subject: None,
    issued_unix_secs: 0,
    expires_unix_secs: u64::MAX,
    user: None,
};

struct Store {
    runtime: Runtime,
    directory: TempDir,
    server: Arc<Server>,
    xorbs: Vec<NewXorb>,
}

impl Store {
    /// A store whose index has these xorbs, fresh from the start: nothing is in memory.
    fn new(xorbs: Vec<NewXorb>) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let index = runtime.block_on(SqliteIndex::open(&directory.path().join("index.sqlite"))).unwrap();
        for xorb in &xorbs {
            let (ticket, now) = (Ticket::random(), Timestamp::from_millis(0));
            runtime.block_on(index.stage_xorb(xorb.hash, ticket, now)).unwrap();
            runtime.block_on(index.publish_xorb(xorb.clone(), ticket, now)).unwrap();
        }
        let server = process(&index);
        Self { runtime, directory, server, xorbs }
    }

    /// Another process over the same index.
    fn restart(&mut self) {
        let path = self.directory.path().join("index.sqlite");
        self.server = process(&self.runtime.block_on(SqliteIndex::open(&path)).unwrap());
    }

    /// Registers a file of these runs of chunks, `(xorb, first, behind the last)`; returns its hash and the seconds.
    fn register(&self, runs: &[(usize, u32, u32)], lists_xorbs: bool) -> (FileHash, f64) {
        let (hash, shard) = self.shard(runs, lists_xorbs);
        let begin = Instant::now();
        self.runtime.block_on(self.server.register(&EVERYBODY, shard.into())).unwrap();
        (hash, begin.elapsed().as_secs_f64())
    }

    fn shard(&self, runs: &[(usize, u32, u32)], lists_xorbs: bool) -> (FileHash, Vec<u8>) {
        let hashes = |run: &(usize, u32, u32)| &self.xorbs[run.0].chunk_hashes[run.1 as usize..run.2 as usize];
        let chunks = runs.iter().flat_map(hashes);
        let hash = merkle::file_hash(chunks.map(|hash| (hash, CHUNK_LEN.into())));
        let term = |(xorb, start, end): &(usize, u32, u32)| Term {
            xorb: self.xorbs[*xorb].hash,
            raw_len: (end - start) * CHUNK_LEN,
            chunks: ChunkRange::new(*start, *end).unwrap(),
        };
        let range_hashes = runs.iter().map(|run| RangeHash::of(hashes(run))).collect();
        let terms = runs.iter().map(term).collect();
        let file = FileInfo { hash, terms, range_hashes: Some(range_hashes), sha256: None };
        let xorbs = if lists_xorbs { self.xorbs.iter().map(listed).collect() } else { Vec::new() };
        (hash, write_upload(&Shard { files: vec![file], xorbs }).unwrap())
    }

    /// Milliseconds of a plan of this range, and its terms.
    fn plan(&self, file: FileHash, start: u64, len: u64) -> (f64, usize) {
        let range = ByteRange::new(start, start + len);
        let begin = Instant::now();
        let found = self.runtime.block_on(self.server.reconstruct(&EVERYBODY, file, range, Detail::Terms)).unwrap();
        (begin.elapsed().as_secs_f64() * 1e3, found.plan.file.terms.len())
    }

    fn print_plans(&mut self, name: &str, file: FileHash, file_len: u64) {
        self.restart();
        for (place, start) in [("start", 0), ("middle", file_len / 2 + 12_345), ("end", file_len - WINDOW_LEN)] {
            let (first, term_count) = self.plan(file, start, WINDOW_LEN);
            let mut again: Vec<f64> = (0..21).map(|_| self.plan(file, start, WINDOW_LEN).0).collect();
            again.sort_by(f64::total_cmp);
            eprintln!(
                "{name}, 256 MB at the {place}: {first:.2} ms at first, {:.2} ms then, {term_count} terms",
                again[10]
            );
        }
        let begin = Instant::now();
        let mut start = 0;
        while start < file_len {
            self.plan(file, start, WINDOW_LEN);
            start += WINDOW_LEN;
        }
        let windows = file_len.div_ceil(WINDOW_LEN);
        let per_window = begin.elapsed().as_secs_f64() * 1e3 / windows as f64;
        eprintln!("{name}, window by window to the end: {windows} plans, {per_window:.2} ms each");
        let begin = Instant::now();
        let edit = [ByteRange::new(file_len / 2, file_len / 2 + 1).unwrap()];
        let wanted = async {
            let permit = self.server.walk_permit(EVERYBODY.tenant()).await.unwrap();
            self.server.chunk_windows(&permit, &EVERYBODY, file, &edit).await.unwrap()
        };
        self.runtime.block_on(wanted);
        eprintln!("{name}, what an edit in the middle must know: {:.2} s", begin.elapsed().as_secs_f64());
    }
}

fn process(index: &SqliteIndex) -> Arc<Server> {
    let blobs = Arc::new(MemoryBlobStore::new());
    let records = Arc::new(MemoryRecordStore::new());
    let (index, clock, metrics) = (Arc::new(index.clone()), Arc::new(SystemClock), Arc::new(Metrics::new()));
    let settings = Settings::over(blobs, records, index, clock, metrics);
    Server::new(&Settings { upload_count: 4, verify_worker_count: 3, layout_cache_len: 16 << 20, ..settings })
}

fn xorbs(count: usize) -> Vec<NewXorb> {
    let mut rng = StdRng::seed_from_u64(1);
    let mut layout = LayoutBuilder::new();
    (0..CHUNK_COUNT).for_each(|_| layout.push(8 + CHUNK_LEN, CHUNK_LEN).unwrap());
    let layout = layout.finish().unwrap();
    let xorb = |_| NewXorb {
        hash: XorbHash::from_bytes(rng.random()),
        crc64: rng.random(),
        layout: layout.clone(),
        chunk_hashes: (0..CHUNK_COUNT).map(|_| ChunkHash::from_bytes(rng.random())).collect(),
        schemes: vec![Scheme::None; CHUNK_COUNT as usize],
        owner: None,
        grant: None,
    };
    (0..count).map(xorb).collect()
}

fn listed(xorb: &NewXorb) -> CasInfo {
    let chunk = |(hash, index): (&ChunkHash, u32)| CasChunk {
        hash: *hash,
        raw_offset: index * CHUNK_LEN,
        raw_len: CHUNK_LEN,
        dedup_eligible: false,
    };
    let chunks = xorb.chunk_hashes.iter().zip(0..).map(chunk).collect();
    CasInfo { hash: xorb.hash, chunks, raw_len: CHUNK_COUNT * CHUNK_LEN }
}

fn main() {
    let gib = 1_u64 << 30;
    let store = Store::new(xorbs(160));
    let whole: Vec<_> = (0..160).map(|xorb| (xorb, 0, CHUNK_COUNT)).collect();
    let (_, secs) = store.register(&whole, true);
    eprintln!("10 GiB in 160 terms of 64 MiB: registered in {secs:.2} s");
    drop(store);

    let mut store = Store::new(xorbs(1600));
    let whole: Vec<_> = (0..1600).map(|xorb| (xorb, 0, CHUNK_COUNT)).collect();
    // Its xorbs are listed in other shards: they do not fit into one.
    let (file, secs) = store.register(&whole, false);
    eprintln!("100 GiB in 1600 terms of 64 MiB: registered in {secs:.2} s");
    store.print_plans("100 GiB in 1600 terms", file, 100 * gib);

    // As many terms as a shard of 80 MiB takes: 850 000 terms of one or two chunks, no two of which are neighbours.
    let mut scattered = Vec::new();
    for xorb in 0..1600 {
        for start in (0..CHUNK_COUNT).step_by(4) {
            scattered.extend([(xorb, start, start + 1), (xorb, start + 2, start + 4)]);
        }
    }
    let len: u64 = scattered.iter().map(|(_, start, end)| u64::from((end - start) * CHUNK_LEN)).sum();
    let (file, secs) = store.register(&scattered, false);
    eprintln!("{} GiB in {} terms: registered in {secs:.2} s", len / gib, scattered.len());
    store.print_plans("75 GiB in 819 200 terms", file, len);
}
