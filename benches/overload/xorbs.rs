//! Xorbs that differ in their first chunk only, and therefore in their hash: a client that makes one hashes 64 KiB.

use rand::Rng;
use rand::rngs::StdRng;
use zorb::format::compression::Policy;
use zorb::format::xorb::XorbBuilder;
use zorb::format::{ChunkHash, merkle};

/// Raw bytes of each chunk.
pub(crate) const CHUNK_LEN: usize = 64 << 10;

pub(crate) struct Xorbs {
    /// The chunks that all have.
    pub(crate) shared: Vec<u8>,
    hashes: Vec<(ChunkHash, u64)>,
}

pub(crate) struct Variant {
    pub(crate) hash: String,
    /// What comes before the shared chunks.
    pub(crate) first: Vec<u8>,
}

impl Xorbs {
    /// Of so many chunks each.
    pub(crate) fn new(rng: &mut StdRng, chunk_count: usize) -> Self {
        let (mut builder, mut hashes) = (XorbBuilder::new(Policy::None), Vec::new());
        let mut chunk = vec![0; CHUNK_LEN];
        for _ in 1..chunk_count {
            rng.fill_bytes(&mut chunk);
            builder.push(&chunk).unwrap();
            hashes.push((ChunkHash::of(&chunk), CHUNK_LEN as u64));
        }
        Self { shared: builder.finish().unwrap().bytes().to_vec(), hashes }
    }

    pub(crate) fn variant(&self, rng: &mut StdRng) -> Variant {
        let mut chunk = vec![0; CHUNK_LEN];
        rng.fill_bytes(&mut chunk);
        let hash = ChunkHash::of(&chunk);
        let all = std::iter::once((&hash, CHUNK_LEN as u64));
        let hash = merkle::xorb_hash(all.chain(self.hashes.iter().map(|(hash, len)| (hash, *len)))).to_string();
        let mut builder = XorbBuilder::new(Policy::None);
        builder.push(&chunk).unwrap();
        Variant { hash, first: builder.finish().unwrap().bytes().to_vec() }
    }
}
