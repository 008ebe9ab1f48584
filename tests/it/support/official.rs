//! Xorbs made by the official crate, as a stock client makes them.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use xet_core_structures::xorb_object::{Chunk, RawXorbData, SerializedXorbObject};

/// A xorb of 64 MiB raw, serialized just below 64 MiB: its name and its bytes.
///
/// Chunks of 8 to 128 KiB; most do not compress, every sixteenth does (text, or floats for byte grouping), so that all
/// three compression schemes occur and the whole stays below the limit of `POST /xorbs/{hash}`.
pub fn official_xorb(rng: &mut StdRng) -> (String, Vec<u8>) {
    let mut left = 64 << 20;
    let mut chunks = Vec::new();
    while left > 0 {
        let len = rng.random_range(8 << 10..=128 << 10).min(left);
        left -= len;
        chunks.push(Chunk::new(contents(rng, chunks.len(), len).into()));
    }
    let raw = RawXorbData::from_chunks(&chunks, (0..chunks.len()).step_by(8).collect());
    // The policy is decided anew for each file; a file begins at every eighth chunk.
    let xorb = SerializedXorbObject::from_xorb(raw, false, "auto", 1).expect("the official crate takes its own chunks");
    (xorb.hash.hex(), xorb.serialized_data)
}

fn contents(rng: &mut StdRng, index: usize, len: usize) -> Vec<u8> {
    match index % 32 {
        0 => (0..len).map(|at| if at % 4 == 3 { 0x3f } else { rng.random() }).collect(),
        16 => format!("{index} the same again, ").bytes().cycle().take(len).collect(),
        _ => {
            let mut bytes = vec![0; len];
            rng.fill_bytes(&mut bytes);
            bytes
        }
    }
}
