//! Tests of xorbs: which bodies are accepted and refused, the offsets of errors, and that the
//! lengths of pieces make no difference.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is what it is for"
)]

mod build;
mod corruption;
mod docs_table;
mod interop;
mod layout;
mod pieces;
mod unpacked;

use super::footer::{self, Version};
use super::{BuiltXorb, VerifiedXorb, Verifier, XorbBuilder, XorbError, verify};
use crate::compression::{Policy, Scheme};
use crate::limits::MAX_XORB_BODY_LEN;
use crate::tests::{Kind, Noise};

/// A xorb of these chunks.
fn build(policy: Policy, chunks: &[Vec<u8>]) -> BuiltXorb {
    let mut builder = XorbBuilder::new(policy);
    for chunk in chunks {
        builder.push(chunk).unwrap();
    }
    builder.finish().unwrap()
}

/// A small xorb in which every scheme occurs, and its chunks.
fn small_xorb() -> (BuiltXorb, Vec<Vec<u8>>) {
    let mut noise = Noise::new(17);
    let chunks = vec![
        noise.sample(Kind::Text, 300),
        noise.sample(Kind::Random, 40),
        noise.sample(Kind::Floats, 400),
        noise.sample(Kind::Zeros, 500),
        vec![7],
    ];
    let xorb = build(Policy::BruteForce, &chunks);
    let schemes = [Scheme::Lz4, Scheme::None, Scheme::ByteGroupedLz4, Scheme::Lz4, Scheme::None];
    assert_eq!(xorb.xorb().schemes(), schemes);
    (xorb, chunks)
}

/// The body of a xorb with a footer whose nonce is not zero.
fn with_footer(xorb: &BuiltXorb, version: Version) -> Vec<u8> {
    let mut body = xorb.bytes().to_vec();
    footer::write(version, xorb.xorb(), &mut body);
    let nonce = body.len() - 20;
    body[nonce..nonce + 16].copy_from_slice(b"any nonce at all");
    body
}

/// Verifies a body that arrives in these pieces. Returns the frames that the verifier returned, and
/// its result.
fn verify_pieces<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> (Vec<u8>, Result<VerifiedXorb, XorbError>) {
    let mut verifier = Verifier::new(MAX_XORB_BODY_LEN);
    let mut frames = Vec::new();
    for piece in pieces {
        let mut rest = piece;
        loop {
            match verifier.next_frame(&mut rest) {
                Ok(Some(frame)) => frames.extend_from_slice(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(verifier.next_frame(&mut rest), Err(error), "an error stays");
                    assert_eq!(verifier.finish(), Err(error), "and cannot be finished away");
                    return (frames, Err(error));
                }
            }
        }
        assert_eq!(rest, b"", "a piece is used up");
    }
    (frames, verifier.finish())
}
