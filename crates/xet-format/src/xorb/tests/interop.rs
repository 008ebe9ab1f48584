//! Compares this crate with the official one: each accepts the xorbs of the other, and both compute
//! the same hash.

use std::io::Cursor;

use xet_core_structures::merklehash::MerkleHash;
use xet_core_structures::xorb_object::{
    Chunk, CompressionScheme, RawXorbData, SerializedXorbObject, XorbObject, XorbObjectInfoV0, deserialize_chunks,
    reconstruct_xorb_with_footer,
};

use super::{BuiltXorb, VerifiedXorb, Version, build, verify, verify_pieces, with_footer};
use crate::compression::Policy;
use crate::tests::{Kind, Noise};
use crate::xorb::{footer, write_v1};
use crate::{ChunkHash, XorbHash};

/// Random chunks: their number, lengths and kinds.
fn random_chunks(noise: &mut Noise) -> Vec<Vec<u8>> {
    // Mostly few or short chunks, because most special cases are there, and sometimes long ones.
    let (count, max_len) = [(1, 10), (5, 1_000), (40, 300), (3, 131_072), (300, 20)][noise.below(5)];
    (0..=noise.below(count))
        .map(|_| {
            let len = if noise.below(10) == 0 { max_len } else { 1 + noise.below(max_len) };
            let kind = Kind::ALL[noise.below(4)];
            noise.sample(kind, len)
        })
        .collect()
}

fn their_chunks(chunks: &[Vec<u8>]) -> RawXorbData {
    let chunks: Vec<_> = chunks.iter().map(|chunk| Chunk::new(chunk.clone().into())).collect();
    RawXorbData::from_chunks(&chunks, vec![0])
}

/// The xorb of these chunks as the official crate serializes it. With `Auto` it chooses a scheme
/// for each chunk.
fn their_xorb(chunks: &[Vec<u8>], scheme: CompressionScheme, footer: bool) -> SerializedXorbObject {
    SerializedXorbObject::from_xorb_with_compression(their_chunks(chunks), scheme, footer, 1).unwrap()
}

fn same_hash(ours: XorbHash, theirs: &MerkleHash) -> bool {
    ours.as_bytes() == theirs.as_bytes() && ours.to_string() == theirs.hex()
}

/// Checks that hash, layout and chunk hashes are those in the footer of the official crate.
fn assert_same(ours: &VerifiedXorb, theirs: &XorbObject, what: &str) {
    assert!(same_hash(ours.hash(), &theirs.info.xorb_hash), "{what}");
    let serialized: Vec<_> = ours.layout().chunks().map(|place| place.serialized.end() as u32).collect();
    assert_eq!(serialized, theirs.info.chunk_boundary_offsets, "{what}");
    let raw: Vec<_> = ours.layout().chunks().map(|place| place.raw.end() as u32).collect();
    assert_eq!(raw, theirs.info.unpacked_chunk_offsets, "{what}");
    let hashes: Vec<_> = theirs
        .info
        .chunk_hashes
        .iter()
        .map(|hash| ChunkHash::from_bytes(hash.as_bytes().try_into().unwrap()))
        .collect();
    assert_eq!(ours.chunk_hashes(), hashes, "{what}");
}

const SCHEMES: [(CompressionScheme, Policy); 4] = [
    (CompressionScheme::None, Policy::None),
    (CompressionScheme::LZ4, Policy::Lz4),
    (CompressionScheme::ByteGrouping4LZ4, Policy::ByteGroupedLz4),
    (CompressionScheme::Auto, Policy::Predict),
];

#[test]
fn official_xorbs_are_accepted_with_equal_hash_and_layout() {
    for seed in 0..150 {
        let mut noise = Noise::new(seed);
        let chunks = random_chunks(&mut noise);
        for (scheme, _) in SCHEMES {
            let what = format!("seed {seed}, {scheme}");
            let plain = their_xorb(&chunks, scheme, false);
            let ours = verify(&plain.serialized_data).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(same_hash(ours.hash(), &plain.hash), "{what}");
            let footed = their_xorb(&chunks, scheme, true);
            assert_eq!(verify(&footed.serialized_data).as_ref(), Ok(&ours), "{what}");
            let theirs = XorbObject::deserialize(&mut Cursor::new(&footed.serialized_data)).unwrap();
            assert_same(&ours, &theirs, &what);
            let piece_len = 1 + noise.below(70_000);
            let (frames, result) = verify_pieces(footed.serialized_data.chunks(piece_len));
            assert_eq!(result.as_ref(), Ok(&ours), "{what}, pieces of {piece_len}");
            assert!(frames == plain.serialized_data, "{what}, pieces of {piece_len}");
        }
    }
}

#[test]
fn our_xorbs_equal_the_official_ones_byte_for_byte() {
    for seed in 1_000..1_150 {
        let chunks = random_chunks(&mut Noise::new(seed));
        for (scheme, policy) in SCHEMES {
            let what = format!("seed {seed}, {scheme}");
            let ours = build(policy, &chunks);
            assert!(ours.bytes() == their_xorb(&chunks, scheme, false).serialized_data, "{what}");
            assert_taken(&ours, &chunks, &what);
        }
        assert_taken(&build(Policy::BruteForce, &chunks), &chunks, &format!("seed {seed}, brute force"));
    }
}

/// Checks that the official crate accepts our xorb, decodes it to these chunks, and accepts our
/// footers.
fn assert_taken(ours: &BuiltXorb, chunks: &[Vec<u8>], what: &str) {
    let mut rebuilt = Vec::new();
    let (theirs, hash) = reconstruct_xorb_with_footer(&mut rebuilt, ours.bytes()).unwrap();
    assert!(same_hash(ours.xorb().hash(), &hash), "{what}");
    assert_same(ours.xorb(), &theirs, what);
    let (raw, _) = deserialize_chunks(&mut Cursor::new(ours.bytes())).unwrap();
    assert!(raw == chunks.concat(), "{what}");

    let mut footed = ours.bytes().to_vec();
    write_v1(ours.xorb(), &mut footed);
    assert!(footed == rebuilt, "{what}: the footers differ");
    for version in [Version::V0, Version::V1] {
        let body = with_footer(ours, version);
        let taken = XorbObject::validate_xorb_object(&mut Cursor::new(&body), &hash).unwrap();
        assert!(taken.is_some(), "{what}, footer {version:?}");
    }
}

#[test]
#[expect(deprecated, reason = "nothing else writes the footer that old clients sent")]
fn version_0_footer_equals_the_official_one() {
    for seed in 2_000..2_050 {
        let ours = build(Policy::Predict, &random_chunks(&mut Noise::new(seed)));
        let mut theirs = XorbObjectInfoV0::default();
        theirs.xorb_hash = MerkleHash::from(ours.xorb().hash().as_bytes());
        theirs.num_chunks = ours.xorb().layout().chunk_count();
        theirs.chunk_boundary_offsets =
            ours.xorb().layout().chunks().map(|place| place.serialized.end() as u32).collect();
        theirs.chunk_hashes = ours.xorb().chunk_hashes().iter().map(|hash| MerkleHash::from(hash.as_bytes())).collect();
        let mut expected = ours.bytes().to_vec();
        let info_len = theirs.serialize(&mut expected).unwrap() as u32;
        expected.extend_from_slice(&info_len.to_le_bytes());
        let mut body = ours.bytes().to_vec();
        footer::write(Version::V0, ours.xorb(), &mut body);
        assert!(body == expected, "seed {seed}");
        assert_eq!(verify(&expected).as_ref(), Ok(ours.xorb()), "seed {seed}");
    }
}

/// Old clients send such a body.
#[test]
fn largest_incompressible_xorb_with_footer_is_accepted() {
    // 8192 chunks of 8 KiB: exactly 64 MiB raw, serialized 64 KiB more, and the longest possible
    // footer.
    let noise = Noise::new(1).bytes(8_192 + 8_192);
    let chunks: Vec<_> = (0..8_192).map(|start| noise[start..start + 8_192].to_vec()).collect();
    let theirs = their_xorb(&chunks, CompressionScheme::None, true);
    assert_eq!(theirs.serialized_data.len(), 67_502_176);
    let ours = verify(&theirs.serialized_data).unwrap();
    assert!(same_hash(ours.hash(), &theirs.hash));
}
