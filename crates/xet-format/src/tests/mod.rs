//! Tests of hashes, ranges, the chunker, chunk headers, compression and LZ4 frames. The vectors are
//! those of appendix C of the specification.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is what it is for"
)]

mod chunk;
mod chunker;
mod compression;
mod hashes;
mod lz4_frame;
mod range;
#[cfg(feature = "reference-data")]
mod reference_files;
mod samples;

pub(crate) use samples::{Kind, Noise};
