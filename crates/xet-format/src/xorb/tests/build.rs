use super::{build, small_xorb, verify};
use crate::chunk::ChunkHeader;
use crate::compression::{Decoder, Policy};
use crate::tests::{Kind, Noise};
use crate::xorb::{BuildError, BuildLimit, Splitter, XorbBuilder};
use crate::{ChunkHash, merkle};

#[test]
fn built_xorb_is_what_verifying_its_bytes_gives() {
    let (xorb, chunks) = small_xorb();
    assert_eq!(verify(xorb.bytes()).as_ref(), Ok(xorb.xorb()));
    let hashes: Vec<_> = chunks.iter().map(|chunk| ChunkHash::of(chunk)).collect();
    assert_eq!(xorb.xorb().chunk_hashes(), hashes);
    let pairs = hashes.iter().zip(&chunks).map(|(hash, chunk)| (hash, chunk.len() as u64));
    assert_eq!(xorb.xorb().hash(), merkle::xorb_hash(pairs));
    let (bytes, verified) = xorb.clone().into_parts();
    assert_eq!(verified.layout().serialized_len(), bytes.len() as u64);
    assert_eq!(verified.layout().raw_len(), chunks.concat().len() as u64);
    let (hash, layout, chunk_hashes, schemes) = verified.into_parts();
    assert_eq!((hash, &layout), (xorb.xorb().hash(), xorb.xorb().layout()));
    assert_eq!((chunk_hashes.len(), schemes.len()), (5, 5));

    let mut splitter = Splitter::new(u64::MAX);
    let mut decoder = Decoder::new();
    let mut rest = xorb.bytes();
    let mut raw = Vec::new();
    while let Some(frame) = splitter.next_frame(&mut rest).unwrap() {
        raw.extend_from_slice(decoder.decode(&frame.header, frame.payload()).unwrap());
    }
    assert_eq!(raw, chunks.concat());
}

#[test]
fn hash_of_a_xorb_does_not_depend_on_its_compression() {
    let chunks = [Noise::new(1).sample(Kind::Text, 5_000), Noise::new(2).sample(Kind::Floats, 9_000)];
    let hash = |policy| build(policy, &chunks).xorb().hash();
    let expected = hash(Policy::None);
    for policy in [Policy::Lz4, Policy::ByteGroupedLz4, Policy::BruteForce, Policy::Predict] {
        assert_eq!(hash(policy), expected, "{policy:?}");
    }
}

#[test]
fn builder_without_chunks_gives_no_xorb() {
    let builder = XorbBuilder::new(Policy::Predict);
    assert!(builder.is_empty());
    assert_eq!((builder.chunk_count(), builder.raw_len(), builder.serialized_len()), (0, 0, 0));
    assert_eq!(builder.finish(), None);
}

#[test]
fn empty_chunk_or_one_above_128_kib_leaves_the_builder_as_is() {
    let mut builder = XorbBuilder::new(Policy::None);
    assert_eq!(builder.push(b""), Err(BuildError::EmptyChunk));
    assert_eq!(builder.push(&vec![0; 131_073]), Err(BuildError::ChunkTooLong { len: 131_073 }));
    assert!(builder.is_empty());
    assert_eq!(builder.push(&vec![0; 131_072]), Ok(ChunkHash::of(&vec![0; 131_072])));
    assert_eq!((builder.chunk_count(), builder.raw_len(), builder.serialized_len()), (1, 131_072, 131_080));
}

#[test]
fn chunk_8193_does_not_fit() {
    let mut builder = XorbBuilder::new(Policy::None);
    for _ in 0..8_192 {
        builder.push(b"x").unwrap();
    }
    assert_eq!(builder.push(b"x"), Err(BuildError::Full { limit: BuildLimit::ChunkCount }));
    let xorb = builder.finish().unwrap();
    assert_eq!(xorb.xorb().layout().chunk_count(), 8_192);
    assert_eq!(verify(xorb.bytes()).as_ref(), Ok(xorb.xorb()));
}

#[test]
fn raw_bytes_fill_up_to_64_mib_when_they_compress() {
    let mut builder = XorbBuilder::new(Policy::Lz4);
    let chunk = vec![0; 131_072];
    for _ in 0..512 {
        builder.push(&chunk).unwrap();
    }
    assert_eq!(builder.raw_len(), 67_108_864);
    assert_eq!(builder.push(b"x"), Err(BuildError::Full { limit: BuildLimit::RawLen }));
    let xorb = builder.finish().unwrap();
    assert_eq!(verify(xorb.bytes()).as_ref(), Ok(xorb.xorb()));
}

#[test]
fn xorb_fills_to_64_mib_and_takes_a_smaller_chunk_after() {
    let mut builder = XorbBuilder::new(Policy::None);
    let chunk = Noise::new(1).bytes(131_072);
    for _ in 0..511 {
        builder.push(&chunk).unwrap();
    }
    assert_eq!(builder.serialized_len(), 511 * 131_080);
    assert_eq!(builder.push(&chunk), Err(BuildError::Full { limit: BuildLimit::SerializedLen }));
    assert_eq!((builder.chunk_count(), builder.serialized_len()), (511, 511 * 131_080));
    let space_left = 67_108_864 - 511 * 131_080 - 8;
    assert_eq!(builder.push(&chunk[..space_left + 1]), Err(BuildError::Full { limit: BuildLimit::SerializedLen }));
    builder.push(&chunk[..space_left]).unwrap();
    assert_eq!(builder.serialized_len(), 67_108_864);
    let xorb = builder.finish().unwrap();
    assert_eq!(verify(xorb.bytes()).as_ref(), Ok(xorb.xorb()));
    let last = xorb.bytes()[511 * 131_080..].first_chunk().unwrap();
    assert_eq!(ChunkHeader::parse(last).unwrap().raw_len, space_left as u32);
}
