//! What the record of a registration costs: the same registrations with records on disk and with records in memory, which
//! cost next to nothing, in turn on the same disk. Prints milliseconds per registration, medians of the rounds, and their
//! ratio. `cargo bench --bench register`
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a bench fails where it panics, and prints")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use tokio::runtime::Builder;
use zorb::blob::memory::MemoryBlobStore;
use zorb::blob::records::RecordStore;
use zorb::blob::records::fs::FsRecordStore;
use zorb::blob::records::memory::MemoryRecordStore;
use zorb::format::compression::Policy;
use zorb::format::shard::{FileInfo, Shard, Term, write_upload};
use zorb::format::xorb::{BuiltXorb, XorbBuilder};
use zorb::format::{ChunkRange, RangeHash, merkle};
use zorb::index::sqlite::SqliteIndex;
use zorb::runtime::blocking::Pool;
use zorb::runtime::clock::SystemClock;
use zorb::runtime::metrics::Metrics;
use zorb::service::access::Claims;
use zorb::service::{BodyError, Server, Settings, Upload};

/// Registrations of one round.
const COUNT: usize = 64;

/// Rounds of each kind.
const ROUND_COUNT: usize = 9;

/// Terms of each file: a shard of 4 KiB, some 2 GiB of a common file.
const TERM_COUNT: usize = 32;

fn main() {
    let directory = tempfile::tempdir_in(".").unwrap();
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kept = Arc::new(FsRecordStore::open(directory.path(), Pool::new(8)).unwrap());
        let with = server_over(&directory.path().join("with.sqlite"), kept).await;
        let without = server_over(&directory.path().join("without.sqlite"), Arc::new(MemoryRecordStore::new())).await;
        for at_once in [1, 8] {
            let (mut with_ms, mut without_ms) = (Vec::new(), Vec::new());
            for round in 0..ROUND_COUNT {
                let first = (at_once * ROUND_COUNT + round) * COUNT;
                without_ms.push(register(&without, first, at_once).await);
                with_ms.push(register(&with, first, at_once).await);
            }
            let (with_ms, without_ms) = (median(with_ms), median(without_ms));
            let ratio = with_ms / without_ms;
            eprintln!("{at_once} at once: {with_ms:.2} ms with records, {without_ms:.2} ms without, ratio {ratio:.2}");
        }
    });
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn xorb() -> BuiltXorb {
    let mut builder = XorbBuilder::new(Policy::None);
    for chunk in 0..4_u8 {
        builder.push(&[chunk; 1000]).unwrap();
    }
    builder.finish().unwrap()
}

async fn server_over(path: &Path, records: Arc<dyn RecordStore>) -> Arc<Server> {
    let index = SqliteIndex::open(path).await.unwrap();
    let blobs = Arc::new(MemoryBlobStore::new());
    let (index, clock, metrics) = (Arc::new(index), Arc::new(SystemClock), Arc::new(Metrics::new()));
    let settings = Settings::over(blobs, records, index, clock, metrics);
    let settings = Settings { upload_count: 4, verify_worker_count: 2, layout_cache_len: 1 << 20, ..settings };
    let server = Server::new(&settings);
    let xorb = xorb();
    let body = stream::iter(vec![Ok::<_, BodyError>(Bytes::copy_from_slice(xorb.bytes()))]);
    let (claims, claimed) = (&Claims::UNRESTRICTED, xorb.xorb().hash());
    server.upload(Upload { claims, claimed, max_len: 1 << 20, declared_len: None, body }).await.unwrap();
    server
}

/// Registers files that nobody has registered before; returns milliseconds for each.
async fn register(server: &Arc<Server>, first: usize, at_once: usize) -> f64 {
    let xorb = xorb();
    let shards: Vec<Bytes> = (first..first + COUNT).map(|number| shard(&xorb, number)).collect();
    let begin = Instant::now();
    for shards in shards.chunks(at_once) {
        let register = |shard: &Bytes| server.register(&Claims::UNRESTRICTED, shard.clone().into());
        for outcome in join_all(shards.iter().map(register)).await {
            assert!(outcome.unwrap().was_new);
        }
    }
    begin.elapsed().as_secs_f64() * 1e3 / COUNT as f64
}

/// A file whose chunks spell the number.
fn shard(xorb: &BuiltXorb, number: usize) -> Bytes {
    let verified = xorb.xorb();
    let digits: Vec<usize> =
        (0..TERM_COUNT).map(|place| number.checked_shr(2 * u32::try_from(place).unwrap()).unwrap_or(0) % 4).collect();
    let hashes: Vec<_> = digits.iter().map(|digit| verified.chunk_hashes()[*digit]).collect();
    let term = |digit: &usize| {
        let start = u32::try_from(*digit).unwrap();
        Term { xorb: verified.hash(), raw_len: 1000, chunks: ChunkRange::new(start, start + 1).unwrap() }
    };
    let file = FileInfo {
        hash: merkle::file_hash(hashes.iter().map(|hash| (hash, 1000))),
        terms: digits.iter().map(term).collect(),
        range_hashes: Some(hashes.iter().map(|hash| RangeHash::of(&[*hash])).collect()),
        sha256: None,
    };
    write_upload(&Shard { files: vec![file], xorbs: Vec::new() }).unwrap().into()
}
