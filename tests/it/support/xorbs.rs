//! Xorbs to send. Randomness is seeded, and the seed is printed, so that a failure can be repeated.

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use zorb::format::compression::Policy;
use zorb::format::xorb::{VerifiedXorb, XorbBuilder, verify, write_v1};

/// A generator with a seed: `ZORB_TEST_SEED` if that is set, else a fresh one. Printed, and shown when a test fails.
pub fn rng() -> StdRng {
    let seed = std::env::var("ZORB_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("ZORB_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// How often a test kills a server, or breaks a statement: `count`, or `ZORB_KILL_ROUNDS`, which
/// `just long` sets.
pub fn kill_rounds(count: usize) -> usize {
    std::env::var("ZORB_KILL_ROUNDS").map_or(count, |count| count.parse().unwrap())
}

/// Bytes that do not compress. By BLAKE3, because a generator is ten times as slow in a debug build.
pub fn random_bytes(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new_keyed(&rng.random()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A chunk header (spec 3.1), of lengths that may be anything.
pub fn header(scheme: u8, payload_len: usize, raw_len: usize) -> [u8; 8] {
    let [c0, c1, c2, ..] = payload_len.to_le_bytes();
    let [u0, u1, u2, ..] = raw_len.to_le_bytes();
    [0, c0, c1, c2, scheme, u0, u1, u2]
}

/// A valid xorb.
#[derive(Clone, Debug)]
pub struct Xorb {
    /// Serialized, without footer.
    pub bytes: Bytes,
    /// The contents of its chunks, one after the other.
    pub raw: Bytes,
    /// What the format knows of it.
    pub verified: VerifiedXorb,
}

impl Xorb {
    /// Of these chunks.
    pub fn of(policy: Policy, chunks: &[Vec<u8>]) -> Self {
        let mut builder = XorbBuilder::new(policy);
        for chunk in chunks {
            builder.push(chunk).expect("the chunk fits");
        }
        let (bytes, verified) = builder.finish().expect("there is a chunk").into_parts();
        Self { bytes: bytes.into(), raw: chunks.concat().into(), verified }
    }

    /// With `count` chunks of some KiB each: random ones, repetitive ones and float-like ones in turn. No two are the same.
    pub fn mixed(rng: &mut StdRng, count: usize) -> Self {
        let chunks: Vec<_> = (0..count)
            .map(|index| {
                let len = rng.random_range(1_000..20_000);
                match index % 3 {
                    0 => random_bytes(rng, len),
                    1 => {
                        let text = format!("{:016x}, the same again ", rng.random::<u64>());
                        text.into_bytes().into_iter().cycle().take(len).collect()
                    }
                    _ => (0..len).map(|at| if at % 4 == 3 { 0x3f } else { rng.random() }).collect(),
                }
            })
            .collect();
        Self::of(Policy::BruteForce, &chunks)
    }

    /// With chunks of 128 KiB that do not compress, `len` bytes in all.
    pub fn incompressible(rng: &mut StdRng, len: usize) -> Self {
        let raw = random_bytes(rng, len);
        let chunks: Vec<_> = raw.chunks(128 << 10).map(<[u8]>::to_vec).collect();
        Self::of(Policy::None, &chunks)
    }

    /// Of these chunks as they are, without any of the limits of a builder on their sum.
    pub fn stored<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let (mut bytes, mut raw) = (Vec::new(), Vec::new());
        for chunk in chunks {
            bytes.extend_from_slice(&header(0, chunk.len(), chunk.len()));
            bytes.extend_from_slice(chunk);
            raw.extend_from_slice(chunk);
        }
        let verified = verify(&bytes).expect("the chunks are within the limits");
        Self { bytes: bytes.into(), raw: raw.into(), verified }
    }

    /// The same xorb with the footer of version 1 that old clients append (spec 3.5).
    pub fn with_footer_v1(&self, nonce: u8) -> Vec<u8> {
        let mut body = self.bytes.to_vec();
        write_v1(&self.verified, &mut body);
        let end = body.len() - 4;
        body[end - 16..end].fill(nonce);
        body
    }

    /// The same xorb with a footer of version 0, written down here as spec 3.5 has it.
    pub fn with_footer_v0(&self) -> Vec<u8> {
        let (mut body, count) = (self.bytes.to_vec(), self.chunk_count());
        body.extend_from_slice(b"XETBLOB\0");
        body.extend_from_slice(self.verified.hash().as_bytes());
        body.extend_from_slice(&count.to_le_bytes());
        for place in self.verified.layout().chunks() {
            body.extend_from_slice(&u32::try_from(place.serialized.end()).unwrap().to_le_bytes());
        }
        for hash in self.verified.chunk_hashes() {
            body.extend_from_slice(hash.as_bytes());
        }
        body.extend_from_slice(&[0; 16]);
        body.extend_from_slice(&(60 + 36 * count).to_le_bytes());
        body
    }

    pub fn hash(&self) -> String {
        self.verified.hash().to_string()
    }

    /// The hash of a chunk, as text.
    pub fn chunk_hash(&self, index: usize) -> String {
        self.verified.chunk_hashes()[index].to_string()
    }

    /// `/xorbs/{hash}`.
    pub fn path(&self) -> String {
        format!("/xorbs/{}", self.hash())
    }

    /// `/v1/xorbs/default/{hash}`.
    pub fn xet_path(&self) -> String {
        format!("/v1/xorbs/default/{}", self.hash())
    }

    pub fn chunk_count(&self) -> u32 {
        self.verified.layout().chunk_count()
    }

    /// The serialized bytes of chunks [start, end).
    pub fn serialized(&self, start: u32, end: u32) -> &[u8] {
        let chunks = zorb::format::ChunkRange::new(start, end).expect("not empty");
        let range = self.verified.layout().serialized_range(chunks).expect("within the xorb");
        &self.bytes[usize::try_from(range.start()).unwrap()..usize::try_from(range.end()).unwrap()]
    }

    /// The raw bytes of chunks [start, end).
    pub fn raw(&self, start: u32, end: u32) -> &[u8] {
        let chunks = zorb::format::ChunkRange::new(start, end).expect("not empty");
        let range = self.verified.layout().raw_range(chunks).expect("within the xorb");
        &self.raw[usize::try_from(range.start()).unwrap()..usize::try_from(range.end()).unwrap()]
    }
}
