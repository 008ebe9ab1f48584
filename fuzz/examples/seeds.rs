//! Writes seeds to `fuzz/corpus`: one input per corner that a fuzzer would take long to find, such as headers with
//! right checksums and footers that agree with their chunks. Files that are there already stay.
#![expect(
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    reason = "the seeds are small, and written into a checkout"
)]

use std::fs;
use std::io::{Cursor, Write as _};
use std::path::Path;

use blake2::digest::consts::U8;
use blake2::{Blake2s, Digest as _};
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use rca::{WriteOptions, Writer};
use xet_format::compression::Policy;
use xet_format::shard::{
    CasChunk, CasInfo, DedupResponse, FileInfo, Sha256, Shard, Term, write_dedup_response, write_upload,
};
use xet_format::xorb::{XorbBuilder, write_v1};
use xet_format::{ChunkHash, ChunkRange, FileHash, HmacKey, RangeHash, XorbHash};

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, seeds) in [
        ("xorb", xorb_seeds()),
        ("lz4", lz4_seeds()),
        ("shard", shard_seeds()),
        ("rca", rca_seeds()),
        ("range", range_seeds()),
    ] {
        fs::create_dir_all(corpus.join(target))?;
        for (name, bytes) in seeds {
            fs::write(corpus.join(target).join(name), bytes)?;
        }
    }
    Ok(())
}

fn text(len: usize) -> Vec<u8> {
    (0..).flat_map(|line: u32| format!("line {line} of a text\n").into_bytes()).take(len).collect()
}

/// Two bytes of noise per quad, so that it compresses only when grouped.
fn numbers(len: usize) -> Vec<u8> {
    let quad = |index: u32| (index.wrapping_mul(2_654_435_761) >> 16 | 0x3F80_0000).to_le_bytes();
    (0..).flat_map(quad).take(len).collect()
}

fn xorb_seeds() -> Vec<(String, Vec<u8>)> {
    let chunks = [
        ("one", vec![vec![7]]),
        ("stored", vec![numbers(9), text(5), vec![0; 3]]),
        ("text", vec![text(300), text(70)]),
        ("numbers", vec![numbers(301), numbers(98)]),
        ("all", vec![text(200), numbers(203), vec![1, 2, 3], vec![0; 131_072]]),
        ("many", (1..40).map(|len| text(len % 7 + 1)).collect()),
    ];
    let mut seeds = Vec::new();
    for (name, chunks) in chunks {
        let mut builder = XorbBuilder::new(Policy::BruteForce);
        for chunk in &chunks {
            builder.push(chunk).expect("the seeds are small");
        }
        let (bytes, xorb) = builder.finish().expect("there is a chunk").into_parts();
        let mut v0 = bytes.clone();
        write_v0(&xorb, &mut v0);
        let mut v1 = bytes.clone();
        write_v1(&xorb, &mut v1);
        for (footer, body) in [("plain", bytes), ("v0", v0), ("v1", v1)] {
            for (pieces, lens) in [("bytes", [1; 8]), ("mixed", [7, 8, 9, 1, 200, 0, 30, 255])] {
                seeds.push((format!("seed-{name}-{footer}-{pieces}"), [lens.as_slice(), &body].concat()));
            }
        }
    }
    seeds
}

/// Nobody writes this footer any more, so the library does not either.
fn write_v0(xorb: &xet_format::xorb::VerifiedXorb, out: &mut Vec<u8>) {
    let count = xorb.layout().chunk_count();
    out.extend_from_slice(b"XETBLOB\0");
    out.extend_from_slice(xorb.hash().as_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    for place in xorb.layout().chunks() {
        out.extend_from_slice(&(place.serialized.end() as u32).to_le_bytes());
    }
    for hash in xorb.chunk_hashes() {
        out.extend_from_slice(hash.as_bytes());
    }
    out.extend_from_slice(&[0; 16]);
    out.extend_from_slice(&(60 + 36 * count).to_le_bytes());
}

fn lz4_seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (kind, raw) in [("text", text(400)), ("numbers", numbers(60)), ("zeros", vec![0; 131_072])] {
        for (mode_name, mode) in [("independent", BlockMode::Independent), ("linked", BlockMode::Linked)] {
            for (size_name, size) in [("64k", BlockSize::Max64KB), ("4m", BlockSize::Max4MB)] {
                for (sums_name, sums) in [("plain", false), ("checksums", true)] {
                    let info = FrameInfo::new()
                        .block_mode(mode)
                        .block_size(size)
                        .block_checksums(sums)
                        .content_checksum(sums)
                        .content_size(sums.then_some(raw.len() as u64));
                    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
                    encoder.write_all(&raw).expect("memory takes everything");
                    let frame = encoder.finish().expect("memory takes everything");
                    let [a, b, c, _] = (raw.len() as u32 - 1).to_le_bytes();
                    let name = format!("seed-{kind}-{mode_name}-{size_name}-{sums_name}");
                    seeds.push((name, [&[a, b, c], frame.as_slice()].concat()));
                }
            }
        }
    }
    seeds
}

fn shard_seeds() -> Vec<(String, Vec<u8>)> {
    let term = |byte, start, end| Term {
        xorb: XorbHash::from_bytes([byte; 32]),
        raw_len: (end - start) * 1000,
        chunks: ChunkRange::new(start, end).expect("the ranges below are none of them empty"),
    };
    let file = |byte, terms: Vec<Term>, proven: bool| FileInfo {
        hash: FileHash::from_bytes([byte; 32]),
        range_hashes: proven.then(|| vec![RangeHash::from_bytes([byte; 32]); terms.len()]),
        terms,
        sha256: proven.then(|| Sha256::from_digest([byte; 32])),
    };
    let xorb = |byte, count: u32| CasInfo {
        hash: XorbHash::from_bytes([byte; 32]),
        chunks: (0..count)
            .map(|index| CasChunk {
                hash: ChunkHash::from_bytes([byte ^ index as u8; 32]),
                raw_offset: index * 1000,
                raw_len: 1000,
                dedup_eligible: index == 0,
            })
            .collect(),
        raw_len: count * 1000,
    };
    let shards = [
        ("empty", Shard::default()),
        ("proven", Shard { files: vec![file(1, vec![term(9, 0, 2), term(8, 1, 2)], true)], xorbs: vec![xorb(9, 2)] }),
        ("bare", Shard { files: vec![file(1, vec![term(9, 0, 2)], false), file(2, vec![], false)], xorbs: vec![] }),
        ("xorbs", Shard { files: vec![], xorbs: vec![xorb(9, 3), xorb(8, 1), xorb(9, 3)] }),
    ];
    let mut seeds = Vec::new();
    for (name, shard) in shards {
        seeds.push((format!("seed-{name}"), write_upload(&shard).expect("the seeds are sound")));
    }
    let response = DedupResponse {
        xorbs: &[xorb(9, 3)],
        key: HmacKey::from_bytes([5; 32]),
        created_unix_secs: 1,
        key_expires_unix_secs: 2,
    };
    seeds.push(("seed-response".to_owned(), write_dedup_response(&response).expect("the seeds are sound")));
    seeds
}

/// An archive with these blobs behind what is in `bytes`, as one more session.
fn session(bytes: Vec<u8>, blobs: &[(&str, Vec<u8>)], buffer_len: usize) -> Vec<u8> {
    let options = WriteOptions { buffer_len, ..WriteOptions::default() };
    let mut writer = Writer::with_options(Cursor::new(bytes), options).expect("the seeds are sound");
    for (name, content) in blobs {
        writer.append(name, content.as_slice()).expect("memory takes everything");
    }
    writer.into_storage().into_inner()
}

fn rca_seeds() -> Vec<(String, Vec<u8>)> {
    let noise = |len: u64| -> Vec<u8> {
        let mix = |n: u64| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ n << 31).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56;
        (1..=len).map(|n| mix(n) as u8).collect()
    };
    let options = WriteOptions::default().buffer_len;
    let one = session(Vec::new(), &[("foo", text(60)), ("bar", text(90))], options);
    let two = session(one.clone(), &[("foo", text(30)), ("", Vec::new())], options);
    let three = session(two.clone(), &[("../deep/name", numbers(50))], options);
    let padded = session(one.clone(), &[("long", text(500))], 16);
    let crossing = session(one.clone(), &[("noise", noise(33_000)), ("behind", text(20))], options);
    let later = session(crossing.clone(), &[("later", text(40))], options);
    let mut zeroed = one.clone();
    zeroed[..2].fill(0);
    // As a header write that was torn behind the size.
    let mut torn = two.clone();
    torn[2..10].copy_from_slice(&one[2..10]);
    let with_garbage = [three.as_slice(), &two[..40]].concat();
    let named = [
        ("one", one),
        ("three", three),
        ("padded", padded),
        ("crossing", crossing),
        ("later", later),
        ("zeroed", zeroed),
        ("torn", torn),
        ("garbage", with_garbage),
        ("unknown", handmade(&[&[0x83, 0x02, 1, 2, 3, 4], &[0x3f]], None)),
        ("readme-hash", handmade(&[&blob(b"a\0b"), &[0x83, 0]], Some((&[0x81, 0x04], false)))),
        ("readme-varint", handmade(&[&blob(b"a\0b"), &[0x83, 0]], Some((&[0x81, 0x02], true)))),
    ];
    named.into_iter().map(|(name, bytes)| (format!("seed-{name}"), bytes)).collect()
}

/// A blob block with a frame of its own.
fn blob(plain: &[u8]) -> Vec<u8> {
    let whole = session(Vec::new(), &[("x", plain.to_vec())], 1 << 20);
    whole[10..].to_vec()
}

/// One chunk with these blocks, and behind them a reset block with this varint, whose hash bytes are hashed or not.
fn handmade(blocks: &[&[u8]], reset: Option<(&[u8], bool)>) -> Vec<u8> {
    let hash = |bytes: &[u8]| -> [u8; 8] { Blake2s::<U8>::digest(bytes).into() };
    let mut inner = blocks.concat();
    let mut digest = hash(&inner);
    if let Some((varint, is_hashed)) = reset {
        let again = blocks.concat();
        let hashed: &[u8] = if is_hashed { &digest } else { &[] };
        let last = hash(&[varint, hashed, &again].concat());
        inner.extend_from_slice(&[varint, &digest, &again].concat());
        digest = last;
    }
    let size = u16::try_from(10 + inner.len()).expect("the seeds are small");
    [&size.to_be_bytes()[..], &digest, &inner].concat()
}

fn range_seeds() -> Vec<(String, Vec<u8>)> {
    let texts = [
        "bytes=0-0",
        "bytes=0-99,200-",
        "BYTES = -5",
        "bytes= ,, 1-2\t,",
        "bytes=5-4",
        "chunks=0-1",
        "bytes=-0",
        "0-7",
        "3-",
        "-2",
        "7",
        "7-7",
        "18446744073709551615-99999999999999999999",
        "007-0100",
        "0-9,0-9,0-9",
    ];
    let lens = [1000_u64, 0, u64::MAX];
    let all = texts.iter().flat_map(|text| lens.iter().map(move |len| [&len.to_le_bytes(), text.as_bytes()].concat()));
    all.enumerate().map(|(index, bytes)| (format!("seed-{index}"), bytes)).collect()
}
