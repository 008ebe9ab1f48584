//! How fast the formats are, without I/O, on one core.
//!
//! Throughput is in *raw* bytes, so that the figures can be compared. Only that of a full xorb is
//! in stored bytes. `hash` computes the keyed BLAKE3 of every chunk and nothing else. No
//! verification can be faster; `verify` takes longer, because it also splits and decompresses.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use xet_format::ChunkHash;
use xet_format::chunk::ChunkHeader;
use xet_format::chunker::chunks;
use xet_format::compression::{Decoder, Encoder, Policy, Scheme};
use xet_format::merkle;
use xet_format::xorb::{BuiltXorb, Verifier, XorbBuilder, verify};

/// Raw length of a chunk: the mean of what clients send.
const CHUNK_LEN: usize = 65_536;

/// Chunks of the xorbs that are verified: 8 MiB, more than the inner CPU caches hold, but small
/// enough for a short run.
const CHUNK_COUNT: usize = 128;

/// Length of the pieces in which a body arrives from a socket.
const PIECE_LEN: usize = 65_536;

/// Makes the raw bytes of a chunk from the state of a random number generator, and advances the
/// state.
type Make = fn(&mut u64) -> Vec<u8>;

/// The kinds of contents, each with the scheme that compresses it best.
const CONTENTS: [(Scheme, Make); 3] = [(Scheme::None, noise), (Scheme::Lz4, text), (Scheme::ByteGroupedLz4, floats)];

fn next(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let [.., a, b, c, d] = state.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn noise(state: &mut u64) -> Vec<u8> {
    (0..CHUNK_LEN / 4).flat_map(|_| next(state).to_be_bytes()).collect()
}

fn text(state: &mut u64) -> Vec<u8> {
    let words = ["store ", "chunk ", "of the ", "content ", "addressed ", "0x1f", "\n"];
    let mut text = String::new();
    while text.len() < CHUNK_LEN {
        text.push_str(words[next(state) as usize % words.len()]);
    }
    text.into_bytes().split_at(CHUNK_LEN).0.to_vec()
}

/// Weights as models have them: full mantissas, few exponents.
fn floats(state: &mut u64) -> Vec<u8> {
    let float = |state: &mut u64| ((next(state) as f32 / u32::MAX as f32 - 0.5) / 16.0).to_le_bytes();
    std::iter::repeat_with(|| float(state)).take(CHUNK_LEN / 4).flatten().collect()
}

fn raw_chunks(make: Make) -> Vec<Vec<u8>> {
    let mut state = 1;
    (0..CHUNK_COUNT).map(|_| make(&mut state)).collect()
}

fn build(chunks: &[Vec<u8>]) -> BuiltXorb {
    let mut builder = XorbBuilder::new(Policy::BruteForce);
    for chunk in chunks {
        builder.push(chunk).expect("8 MiB fit");
    }
    builder.finish().expect("there are chunks")
}

fn group<'a>(criterion: &'a mut Criterion, name: &str, raw_len: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(raw_len as u64));
    group
}

fn bench_verify(criterion: &mut Criterion) {
    let mut group = group(criterion, "verify", CHUNK_COUNT * CHUNK_LEN);
    for (scheme, make) in CONTENTS {
        let raw = raw_chunks(make);
        let xorb = build(&raw);
        assert!(xorb.xorb().schemes().iter().all(|used| *used == scheme), "the contents suit {scheme}");
        let ratio = xorb.bytes().len() as f64 / (CHUNK_COUNT * CHUNK_LEN) as f64;
        group.bench_function(format!("{scheme} ({ratio:.2})/whole"), |bencher| {
            bencher.iter(|| verify(black_box(xorb.bytes())).expect("it is valid"));
        });
        group.bench_function(format!("{scheme} ({ratio:.2})/pieces"), |bencher| {
            bencher.iter(|| verify_pieces(black_box(xorb.bytes())));
        });
        if scheme == Scheme::None {
            group.bench_function("hash", |bencher| {
                bencher.iter(|| {
                    raw.iter().map(|chunk| ChunkHash::of(chunk)).fold(0, |sum, hash| sum ^ hash.as_bytes()[0])
                });
            });
        }
    }
}

/// A full xorb as it arrives, a third of each kind of contents. One benchmark verifies it; the
/// other only decodes and hashes its chunks. Throughput is in *stored* bytes, as for uploads.
fn bench_full(criterion: &mut Criterion) {
    const THIRD: usize = 341;
    let mut state = 1;
    let mut builder = XorbBuilder::new(Policy::BruteForce);
    let mut chunks = Vec::new();
    for number in 0..3 * THIRD {
        let (_, make) = CONTENTS[number % CONTENTS.len()];
        let (raw, mut payload) = (make(&mut state), Vec::new());
        builder.push(&raw).expect("they fit");
        let scheme = Encoder::new().encode(Policy::BruteForce, &raw, &mut payload);
        let header = ChunkHeader::new(scheme, len_of(&payload), len_of(&raw)).expect("it is within the limits");
        chunks.push((header, payload));
    }
    let xorb = builder.finish().expect("there are chunks");
    let mut group = group(criterion, "full xorb, stored bytes", xorb.bytes().len());
    let mut decoder = Decoder::new();
    group.bench_function("decode and hash only", |bencher| {
        bencher.iter(|| {
            let hash = |(header, payload): &(ChunkHeader, Vec<u8>)| {
                ChunkHash::of(decoder.decode(header, payload).expect("it is valid"))
            };
            chunks.iter().map(hash).fold(0, |sum, hash| sum ^ hash.as_bytes()[0])
        });
    });
    group.bench_function("verify", |bencher| bencher.iter(|| verify_pieces(black_box(xorb.bytes()))));
}

fn verify_pieces(body: &[u8]) {
    let mut verifier = Verifier::new(body.len() as u64);
    // The first piece has an odd length, so that pieces end at odd offsets. Uncompressed frames
    // have 65 544 bytes and end at even offsets. So each of them spans pieces.
    let (first, rest) = body.split_at(1_001);
    for mut piece in std::iter::once(first).chain(rest.chunks(PIECE_LEN)) {
        while let Some(frame) = verifier.next_frame(&mut piece).expect("it is valid") {
            black_box(frame);
        }
    }
    black_box(verifier.finish()).expect("it is valid");
}

fn bench_merkle(criterion: &mut Criterion) {
    let hashes: Vec<_> = (0_u64..1_024).map(|index| ChunkHash::of(&index.to_le_bytes())).collect();
    criterion.bench_function("merkle/1024 chunks", |bencher| {
        bencher.iter(|| merkle::xorb_hash(black_box(&hashes).iter().map(|hash| (hash, CHUNK_LEN as u64))));
    });
}

fn bench_chunker(criterion: &mut Criterion) {
    let data = raw_chunks(noise).concat();
    let mut group = group(criterion, "chunker", data.len());
    group.bench_function("noise", |bencher| bencher.iter(|| chunks(black_box(&data)).count()));
}

fn bench_codec(criterion: &mut Criterion) {
    let mut group = group(criterion, "codec", CHUNK_LEN);
    for (scheme, make) in CONTENTS {
        let raw = make(&mut 1);
        let mut payload = Vec::new();
        assert_eq!(Encoder::new().encode(Policy::BruteForce, &raw, &mut payload), scheme);
        let header = ChunkHeader::new(scheme, len_of(&payload), len_of(&raw)).expect("it is within the limits");
        let mut decoder = Decoder::new();
        group.bench_function(format!("decode/{scheme}"), |bencher| {
            bencher.iter(|| decoder.decode(&header, black_box(&payload)).map(<[u8]>::len));
        });
        let mut encoder = Encoder::new();
        group.bench_function(format!("encode predicted/{scheme}"), |bencher| {
            bencher.iter(|| {
                payload.clear();
                encoder.encode(Policy::Predict, black_box(&raw), &mut payload)
            });
        });
    }
}

fn len_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a chunk is short")
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .nresamples(5_000)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! {
    name = format;
    config = short();
    targets = bench_verify, bench_full, bench_merkle, bench_chunker, bench_codec
}
criterion_main!(format);
