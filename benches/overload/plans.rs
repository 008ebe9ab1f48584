//! Long responses: one client asks for little, alone and beside eight of another tenant that ask again and again what a whole
//! file of 100 000 terms is made of. Those have the priority of the server, and take from its cores what they read with.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zorb::format::compression::Policy;
use zorb::format::shard::{FileInfo, Shard, Term, write_upload};
use zorb::format::xorb::XorbBuilder;
use zorb::format::{ChunkHash, ChunkRange, RangeHash, XorbHash, merkle};

use crate::quiet::{Quiet, fetch, open, percentile, post, put};
use crate::server::Server;

/// Chunks of the xorb that the file is made of, and bytes of each.
const CHUNK_COUNT: u32 = 1000;
const CHUNK_LEN: u32 = 256;

/// Terms of the file, of one chunk each: a shard of 10 MB.
const TERM_COUNT: u32 = 100_000;

/// Clients that ask for it: more than there are turns.
const CLIENT_COUNT: usize = 8;

/// How long each phase takes, and requests in it at most.
const PHASE: Duration = Duration::from_secs(6);
const MAX_COUNT: usize = 1 << 20;

/// Measures each of these servers three times, in turn.
pub(crate) fn measure(binaries: &[&str]) -> ExitCode {
    for _ in 0..3 {
        for binary in binaries {
            one_round(binary);
        }
    }
    ExitCode::SUCCESS
}

fn one_round(binary: &str) {
    let server = Server::start(binary);
    let mut quiet = Quiet::connect(&server, &server.fill()).reading(1);
    let (long, short) = (register(&server, TERM_COUNT), register(&server, 1));
    quiet.reads(MAX_COUNT, PHASE / 10);
    let [reads, plans] = [quiet.reads(MAX_COUNT, PHASE), short_plans(&server, &short)];
    let (is_over, plan_count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let [reads_beside, plans_beside] = thread::scope(|scope| {
        // Also when something here fails: the scope waits for the others.
        let _over = Over(&is_over);
        for _ in 0..CLIENT_COUNT {
            scope.spawn(|| {
                let mut connection = open(&server.address);
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(fetch(&mut connection, &server.flood_token, &long), 200);
                    plan_count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // All of them have asked by then, though not all may have had a response.
        quiet.reads(MAX_COUNT, PHASE / 3);
        plan_count.store(0, Ordering::Relaxed);
        [quiet.reads(MAX_COUNT, PHASE), short_plans(&server, &short)]
    });
    println!(
        "{binary}: {} long plans in {} s, peak memory {} MiB",
        plan_count.into_inner(),
        2 * PHASE.as_secs(),
        server.memory("VmHWM:") >> 20
    );
    let lines = [
        ("chunks, alone", &reads),
        ("chunks, beside long plans", &reads_beside),
        ("short plans, alone", &plans),
        ("short plans, beside long ones", &plans_beside),
    ];
    for (what, times) in lines {
        let at = |part| percentile(times, part) * 1e3;
        println!("  {what:30}  median {:7.3} ms  p90 {:7.3} ms  p99 {:7.3} ms", at(0.5), at(0.9), at(0.99));
    }
}

/// Ends the clients when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Seconds of each plan of a file of one term.
fn short_plans(server: &Server, path: &str) -> Vec<f64> {
    let (mut connection, begin, mut times) = (open(&server.address), Instant::now(), Vec::new());
    while begin.elapsed() < PHASE {
        let asked = Instant::now();
        assert_eq!(fetch(&mut connection, &server.quiet_token, path), 200);
        times.push(asked.elapsed().as_secs_f64());
    }
    times
}

/// Stores the xorb and a file of so many of its chunks; returns where its plan is.
fn register(server: &Server, term_count: u32) -> String {
    let mut builder = XorbBuilder::new(Policy::None);
    let hashes: Vec<ChunkHash> = (0..CHUNK_COUNT)
        .map(|index| builder.push(&index.to_le_bytes().repeat(CHUNK_LEN as usize / 4)).unwrap())
        .collect();
    let built = builder.finish().unwrap();
    let (xorb, mut connection) = (built.xorb().hash(), open(&server.address));
    // The second time it is there.
    assert!(matches!(put(&mut connection, &server.flood_token, &xorb.to_string(), built.bytes()), 200 | 201));
    // In no order, so that no two are a run.
    let chunks: Vec<u32> = (0..term_count).map(|index| index * 7 % CHUNK_COUNT).collect();
    let hash = merkle::file_hash(chunks.iter().map(|chunk| (&hashes[*chunk as usize], u64::from(CHUNK_LEN))));
    let range_hashes = Some(chunks.iter().map(|chunk| RangeHash::of(&[hashes[*chunk as usize]])).collect());
    let terms = chunks.iter().map(|chunk| term(xorb, *chunk)).collect();
    let shard = Shard { files: vec![FileInfo { hash, terms, range_hashes, sha256: None }], xorbs: Vec::new() };
    assert_eq!(post(&mut connection, &server.flood_token, "/v1/shards", &write_upload(&shard).unwrap()), 200);
    format!("/v2/reconstructions/{hash}")
}

fn term(xorb: XorbHash, chunk: u32) -> Term {
    Term { xorb, raw_len: CHUNK_LEN, chunks: ChunkRange::new(chunk, chunk + 1).unwrap() }
}
