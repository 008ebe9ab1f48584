//! A chunk range that is not in memory: one indexed read, and the arithmetic on its layout.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a bench fails where it panics, and prints")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Builder;
use zorb::format::compression::Scheme;
use zorb::format::xorb::LayoutBuilder;
use zorb::format::{ChunkHash, ChunkRange, XorbHash};
use zorb::index::sqlite::SqliteIndex;
use zorb::index::{NewXorb, Ticket, XorbIndex};
use zorb::runtime::clock::Timestamp;

/// Xorbs in the index: 32 GiB worth of them.
const XORB_COUNT: u32 = 512;

/// Chunks of each, as a full xorb has on average.
const CHUNK_COUNT: u32 = 1024;

fn range_lookup(criterion: &mut Criterion) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sqlite");
    let index = runtime.block_on(SqliteIndex::open(&path)).unwrap();
    let mut rng = StdRng::seed_from_u64(1);
    let hashes: Vec<XorbHash> = (0..XORB_COUNT).map(|_| XorbHash::from_bytes(rng.random())).collect();
    for hash in &hashes {
        let (ticket, now) = (Ticket::random(), Timestamp::from_millis(0));
        runtime.block_on(index.stage_xorb(*hash, ticket, now)).unwrap();
        runtime.block_on(index.publish_xorb(xorb(*hash, &mut rng), ticket, now)).unwrap();
    }

    let mut group = criterion.benchmark_group("range lookup");
    group.sample_size(50);
    group.bench_function("not cached", |bencher| {
        bencher.iter(|| {
            let hash = hashes[rng.random_range(0..hashes.len())];
            let row = runtime.block_on(index.find_xorb(hash)).unwrap().unwrap();
            row.layout.serialized_range(black_box(ChunkRange::new(100, 200).unwrap())).unwrap()
        });
    });
    let row = runtime.block_on(index.find_xorb(hashes[0])).unwrap().unwrap();
    group.bench_function("cached", |bencher| {
        bencher
            .iter(|| black_box(&row).layout.serialized_range(black_box(ChunkRange::new(100, 200).unwrap())).unwrap());
    });
    group.finish();

    runtime.block_on(index.close());
    let len = std::fs::metadata(&path).unwrap().len();
    let per_gib = len / u64::from(XORB_COUNT / 16);
    eprintln!("index: {len} bytes for {XORB_COUNT} full xorbs, {} KiB per GiB stored", per_gib >> 10);
}

fn xorb(hash: XorbHash, rng: &mut StdRng) -> NewXorb {
    let mut layout = LayoutBuilder::new();
    for _ in 0..CHUNK_COUNT {
        let raw_len = rng.random_range(1_u32..=128 << 10);
        layout.push(8 + raw_len.div_ceil(2), raw_len.min(64 << 10)).unwrap();
    }
    NewXorb {
        hash,
        crc64: rng.random(),
        layout: layout.finish().unwrap(),
        chunk_hashes: (0..CHUNK_COUNT).map(|_| ChunkHash::from_bytes(rng.random())).collect(),
        schemes: vec![Scheme::Lz4; 1024],
        owner: Some("*".to_owned()),
        grant: None,
    }
}

criterion_group!(benches, range_lookup);
criterion_main!(benches);
