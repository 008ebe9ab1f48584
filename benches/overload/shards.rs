//! Hostile shards: one client uploads small xorbs and registers small files, one after the other, alone and beside four
//! connections of another tenant that send shards of 290 676 files of one term without end. And what it costs to refuse such
//! a shard where a quota forbids it.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zorb::format::compression::Policy;
use zorb::format::shard::{FileInfo, Shard, Term, write_upload};
use zorb::format::xorb::{BuiltXorb, XorbBuilder};
use zorb::format::{ChunkRange, RangeHash, merkle};

use crate::quiet::{open, percentile, post, put};
use crate::server::Server;

/// Files of a hostile shard: 144 bytes each, a shard of 40 MiB.
const FILE_COUNT: usize = 290_676;

/// Chunks of its xorb, of 8 bytes each: as many as a xorb has. Files are made of 1 to 36 of them in a row.
const CHUNK_COUNT: u32 = 8192;

/// Connections of the hostile tenant, and shards that each of them sends in turn.
const CONNECTION_COUNT: u32 = 4;
const SHARD_COUNT: u32 = 2;

/// How long the quiet tenant is measured.
const PHASE: Duration = Duration::from_secs(20);

/// What is aimed at: the slowest request, and the CPU of a refusal, in seconds.
const SLOWEST_AIM: f64 = 1.0;
const REFUSAL_AIM: f64 = 0.5;

struct Hostile {
    xorb: BuiltXorb,
    shard: Vec<u8>,
}

pub(crate) fn measure(binary: &str) -> ExitCode {
    let all: Vec<Hostile> = (0..CONNECTION_COUNT * SHARD_COUNT).map(hostile).collect();
    let is_fast = beside(binary, &all);
    let is_cheap = refusals(binary, &all[0]);
    if is_fast && is_cheap { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether the quiet tenant was served in time, and always.
fn beside(binary: &str, all: &[Hostile]) -> bool {
    let server = Server::start(binary);
    let (quiet, flood) = (server.token("quiet/one", "quiet"), server.token("flood/one", "flood"));
    for Hostile { xorb, .. } in all {
        assert_eq!(put(&mut open(&server.address), &flood, &xorb.xorb().hash().to_string(), xorb.bytes()), 201);
    }
    let mut number = 1 << 20;
    let alone = small(&server, &quiet, PHASE / 4, &mut number);
    let (is_over, registered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let times = thread::scope(|scope| {
        let _over = Over(&is_over);
        for shards in all.chunks(SHARD_COUNT as usize) {
            let (server, flood, is_over, registered) = (&server, &flood, &is_over, &registered);
            scope.spawn(move || {
                for Hostile { shard, .. } in shards.iter().cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    // It may be refused: what counts is what the other tenant sees.
                    let status = post(&mut open(&server.address), flood, "/v1/shards", shard);
                    registered.fetch_add(usize::from(status == 200), Ordering::Relaxed);
                }
            });
        }
        small(&server, &quiet, PHASE, &mut number)
    });
    let slowest = percentile(&times, 1.0);
    for (what, times) in [("alone", &alone), ("beside hostile shards", &times)] {
        let at = |part| percentile(times, part) * 1e3;
        println!(
            "{what:24} {:5} uploads and registrations: median {:7.2} ms  p99 {:7.2} ms  slowest {:7.2} ms",
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    println!("hostile shards registered meanwhile: {}", registered.into_inner());
    println!("slowest request {slowest:.3} s   aim: {SLOWEST_AIM} s {}", met(slowest <= SLOWEST_AIM));
    slowest <= SLOWEST_AIM
}

/// Whether a refusal by quota costs little.
fn refusals(binary: &str, hostile: &Hostile) -> bool {
    let server = Server::start_with(binary, &[("ZORB_QUOTA_FILES", "1000")]);
    let flood = server.token("flood/one", "flood");
    let Hostile { xorb, shard } = hostile;
    assert_eq!(put(&mut open(&server.address), &flood, &xorb.xorb().hash().to_string(), xorb.bytes()), 201);
    let (before, count) = (server.cpu(), 5);
    for _ in 0..count {
        assert_eq!(post(&mut open(&server.address), &flood, "/v1/shards", shard), 413);
    }
    let each = (server.cpu() - before) / f64::from(count);
    println!("refusal by quota: {each:.3} s of CPU   aim: {REFUSAL_AIM} s {}", met(each <= REFUSAL_AIM));
    each <= REFUSAL_AIM
}

fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "NOT MET" }
}

/// Seconds of each upload of a small xorb and of each registration of its file; none is refused.
fn small(server: &Server, token: &str, phase: Duration, number: &mut u32) -> Vec<f64> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    let mut connection = open(&server.address);
    while begin.elapsed() < phase {
        *number += 1;
        let xorb = xorb(*number, 2);
        let (files, hash) = (files(&xorb, 1), xorb.xorb().hash().to_string());
        let asked = Instant::now();
        assert_eq!(put(&mut connection, token, &hash, xorb.bytes()), 201, "an upload of the quiet tenant");
        times.push(asked.elapsed().as_secs_f64());
        let asked = Instant::now();
        assert_eq!(post(&mut connection, token, "/v1/shards", &files), 200, "a registration of the quiet tenant");
        times.push(asked.elapsed().as_secs_f64());
    }
    times
}

fn hostile(number: u32) -> Hostile {
    let xorb = xorb(number, CHUNK_COUNT);
    let shard = files(&xorb, FILE_COUNT);
    Hostile { xorb, shard }
}

fn xorb(number: u32, chunk_count: u32) -> BuiltXorb {
    let mut builder = XorbBuilder::new(Policy::None);
    for chunk in 0..chunk_count {
        builder.push(&[number.to_le_bytes(), chunk.to_le_bytes()].concat()).unwrap();
    }
    builder.finish().unwrap()
}

/// A shard of so many files of one term each.
fn files(xorb: &BuiltXorb, count: usize) -> Vec<u8> {
    let hashes = xorb.xorb().chunk_hashes();
    let longest = hashes.len().min(36);
    let lens = if count == 1 { hashes.len()..=hashes.len() } else { 1..=longest };
    let ranges = lens.flat_map(|len| (0..=hashes.len() - len).map(move |start| (start, start + len)));
    let file = |(start, end): (usize, usize)| {
        let (first, last) = (u32::try_from(start).unwrap(), u32::try_from(end).unwrap());
        let chunks = ChunkRange::new(first, last).unwrap();
        FileInfo {
            hash: merkle::file_hash(hashes[start..end].iter().map(|hash| (hash, 8))),
            terms: vec![Term { xorb: xorb.xorb().hash(), raw_len: 8 * (last - first), chunks }],
            range_hashes: Some(vec![RangeHash::of(&hashes[start..end])]),
            sha256: None,
        }
    };
    let files: Vec<FileInfo> = ranges.take(count).map(file).collect();
    assert_eq!(files.len(), count);
    write_upload(&Shard { files, xorbs: Vec::new() }).unwrap()
}

/// Ends the hostile tenant when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
