//! What it costs to keep the usage of repositories: the same registrations with and without, in turn, as a ratio.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a bench fails where it panics, and prints")]

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sqlx::{Connection, SqliteConnection, raw_sql};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use zorb::format::compression::Scheme;
use zorb::format::shard::Term;
use zorb::format::xorb::LayoutBuilder;
use zorb::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use zorb::index::sqlite::SqliteIndex;
use zorb::index::{
    Allowance, Collect, Limits, NewFile, NewXorb, RegisterIndex, Registered, Registration, Staging, Ticket, UsageIndex,
    XorbIndex,
};
use zorb::runtime::clock::Timestamp;

/// Registrations of each kind; the median counts.
const ROUND_COUNT: usize = 15;

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

struct Store {
    _directory: TempDir,
    index: SqliteIndex,
}

impl Store {
    async fn new(xorbs: &[XorbHash], is_counted: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index.sqlite");
        let index = SqliteIndex::open(&path).await.unwrap();
        for hash in xorbs {
            let mut layout = LayoutBuilder::new();
            (0..64).for_each(|_| layout.push(1008, 1000).unwrap());
            let new = NewXorb {
                hash: *hash,
                crc64: 0,
                layout: layout.finish().unwrap(),
                chunk_hashes: vec![ChunkHash::from_bytes([1; 32]); 64],
                schemes: vec![Scheme::None; 64],
                owner: None,
                grant: None,
            };
            let ticket = Ticket::random();
            assert_eq!(index.stage_xorb(*hash, ticket, NOW).await.unwrap(), Staging::Staged);
            index.publish_xorb(new, ticket, NOW).await.unwrap();
        }
        if !is_counted {
            let mut connection = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
            let sql = "DROP TRIGGER usage_claim; DROP TRIGGER usage_unclaim; DROP TRIGGER usage_file; \
                 DROP TRIGGER usage_refer; DROP TRIGGER usage_unrefer; DROP TRIGGER usage_resize;";
            raw_sql(sql).execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        }
        Self { _directory: directory, index }
    }

    /// Milliseconds.
    async fn register(&self, registration: &Registration) -> f64 {
        let begin = Instant::now();
        assert_eq!(self.index.register_of(registration, None).await.unwrap(), Some(Registered::New));
        begin.elapsed().as_secs_f64() * 1e3
    }

    /// Milliseconds of the removal of the first file.
    async fn remove(&self, registration: &Registration) -> f64 {
        let (file, repo) = (registration.files[0].hash, registration.repo.clone());
        let begin = Instant::now();
        self.index.remove_claims(file, Some(repo), NOW).await.unwrap();
        begin.elapsed().as_secs_f64() * 1e3
    }
}

/// So many files of so many xorbs each, which no registration before had.
fn registration(rng: &mut StdRng, xorbs: &[XorbHash], file_count: usize, xorb_count: usize) -> Registration {
    let chunks = ChunkRange::new(0, 8).unwrap();
    let file = |rng: &mut StdRng| {
        let start = rng.random_range(0..xorbs.len());
        let named = xorbs.iter().cycle().skip(start).take(xorb_count);
        let terms: Vec<_> = named.map(|xorb| Term { xorb: *xorb, chunks, raw_len: 8000 }).collect();
        let hash = FileHash::from_bytes(rng.random());
        NewFile { hash, raw_len: 8000 * terms.len() as u64, terms, sha256: None }
    };
    let files: Vec<_> = (0..file_count).map(|_| file(rng)).collect();
    let mut named: Vec<_> = files.iter().flat_map(|file| &file.terms).map(|term| term.xorb).collect();
    named.sort_unstable_by_key(|hash| *hash.as_bytes());
    named.dedup();
    let many = Limits { file_count: Some(u64::MAX), logical_len: Some(u64::MAX), physical_len: Some(u64::MAX) };
    let allowance = Allowance { repo: many, owner: Some(("acme".to_owned(), many)) };
    Registration { repo: "acme/bert".to_owned(), files, xorbs: named, dedup: Vec::new(), now: NOW, allowance }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(runtime: &Runtime, name: &str, xorbs: &[XorbHash], file_count: usize, xorb_count: usize) {
    let mut rng = StdRng::seed_from_u64(1);
    let counted = runtime.block_on(Store::new(xorbs, true));
    let plain = runtime.block_on(Store::new(xorbs, false));
    let mut times = [const { Vec::new() }; 5];
    for round in 0..ROUND_COUNT {
        let limited = registration(&mut rng, xorbs, file_count, xorb_count);
        let free = Registration { allowance: Allowance::default(), ..limited.clone() };
        runtime.block_on(async {
            // In turn who is first: what the disk does in the background hits both.
            if round % 2 == 0 {
                times[0].push(plain.register(&free).await);
                times[1].push(counted.register(&limited).await);
            } else {
                times[1].push(counted.register(&limited).await);
                times[0].push(plain.register(&free).await);
            }
            times[2].push(plain.remove(&free).await);
            times[3].push(counted.remove(&limited).await);
            let begin = Instant::now();
            counted.index.repo_usage("acme/bert".to_owned()).await.unwrap();
            times[4].push(begin.elapsed().as_secs_f64() * 1e3);
        });
    }
    let usage = runtime.block_on(counted.index.repo_usage("acme/bert".to_owned())).unwrap();
    assert_eq!(usage.file_count, (ROUND_COUNT * (file_count - 1)) as u64, "one file of each was removed");
    let [plain, counted, plain_removal, counted_removal, read] = times.map(median);
    eprintln!("{name}: registered in {plain:.1} ms without, {counted:.1} ms with usage: {:.2} times", counted / plain);
    eprintln!("{name}: one file removed in {plain_removal:.1} ms without, {counted_removal:.1} ms with");
    eprintln!("{name}: usage read in {read:.2} ms");
}

fn main() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut rng = StdRng::seed_from_u64(2);
    let xorbs: Vec<_> = (0..1600).map(|_| XorbHash::from_bytes(rng.random())).collect();
    compare(&runtime, "1000 files of 1 xorb", &xorbs[..64], 1000, 1);
    compare(&runtime, "1000 files of 4 xorbs", &xorbs[..256], 1000, 4);
    compare(&runtime, "1 file of 1600 xorbs", &xorbs, 1, 1600);
}
