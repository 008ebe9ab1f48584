//! Writes seeds to `fuzz/corpus`: one input per corner that a fuzzer would take long to find, such as headers with
//! right checksums and footers that agree with their chunks. Files that are there already stay.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use zorb_fuzz::format::compression::Policy;
use zorb_fuzz::format::xorb::{XorbBuilder, write_v1};

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, seeds) in [("xorb", xorb_seeds()), ("lz4", lz4_seeds())] {
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
fn write_v0(xorb: &zorb_fuzz::format::xorb::VerifiedXorb, out: &mut Vec<u8>) {
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
