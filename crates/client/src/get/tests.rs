use xet_format::compression::Policy;
use xet_format::xorb::{BuiltXorb, XorbBuilder};

use super::*;
use crate::wire::ChunkJson;

fn xorb() -> BuiltXorb {
    let mut builder = XorbBuilder::new(Policy::None);
    for chunk in ["one", "two", "three", "four", "five"] {
        builder.push(chunk.as_bytes()).unwrap();
    }
    builder.finish().unwrap()
}

fn list() -> ChunksJson {
    let built = xorb();
    let (hashes, places) = (built.xorb().chunk_hashes(), built.xorb().layout().chunks());
    let lens = places.map(|place| place.raw.byte_len());
    let chunks = hashes.iter().zip(lens).map(|(hash, raw_len)| chunk(hash.to_string(), raw_len)).collect();
    ChunksJson { hash: built.xorb().hash().to_string(), serialized_len: 0, raw_len: 0, chunks }
}

/// A chunk of a list. The client does not read the other fields.
fn chunk(hash: String, raw_len: u64) -> ChunkJson {
    let scheme = "none".to_owned();
    ChunkJson { index: 0, hash, scheme, serialized_offset: 0, serialized_len: 0, raw_offset: 0, raw_len }
}

/// Checks whether a list is accepted after this change.
fn check(change: impl FnOnce(&mut Vec<ChunkJson>), expected: bool) {
    let mut list = list();
    change(&mut list.chunks);
    assert_eq!(verify_list(xorb().xorb().hash(), &list).is_some(), expected, "{list:?}");
}

#[test]
fn only_the_list_of_this_xorb_is_taken() {
    check(|_| (), true);
    check(|chunks| chunks.swap(1, 2), false);
    check(|chunks| chunks[0].raw_len += 1, false);
    check(|chunks| chunks[4].hash = chunks[3].hash.clone(), false);
    check(|chunks| chunks[4].hash = "x".to_owned(), false);
    check(|chunks| drop(chunks.pop()), false);
    check(|chunks| chunks.push(chunk("0".repeat(64), 0)), false);
    check(Vec::clear, false);
    let many = |chunks: &mut Vec<ChunkJson>| {
        chunks.extend((0..8192).map(|_| chunk("0".repeat(64), 1)));
    };
    check(many, false);
}

/// Receives these bytes, one by one, as chunks [1,3) of the xorb.
fn take_part(bytes: &[u8]) -> Result<Vec<u8>, GetError> {
    let built = xorb();
    let chunks = ChunkRange::new(1, 3).unwrap();
    let expected = Expected::Part(chunks, built.xorb().chunk_hashes()[1..3].to_vec());
    let intake = Intake::new(built.xorb().hash(), expected, true, Vec::new());
    let pieces = bytes.chunks(1).map(Bytes::copy_from_slice).collect();
    let (got, sink) = intake.take(pieces)?.finish()?;
    assert_eq!((got.chunks, got.serialized_len, got.raw_len), (chunks, 24, 8));
    Ok(sink)
}

#[test]
fn a_part_is_taken_chunk_by_chunk_and_only_as_it_was_asked_for() {
    let built = xorb();
    // The records of the chunks have 8 + 3, 8 + 3, 8 + 5 … bytes.
    assert_eq!(take_part(&built.bytes()[11..35]).unwrap(), b"twothree");
    assert!(matches!(take_part(&built.bytes()[..22]), Err(GetError::WrongChunk { index: 1, .. })));
    assert!(matches!(take_part(&built.bytes()[11..]), Err(GetError::WrongCount { expected: 2, actual: 3, .. })));
    assert!(matches!(take_part(&built.bytes()[11..22]), Err(GetError::WrongCount { expected: 2, actual: 1, .. })));
    assert!(matches!(take_part(&built.bytes()[11..34]), Err(GetError::Damaged { .. })));
    assert!(matches!(take_part(&[]), Err(GetError::Damaged { .. })));
}
