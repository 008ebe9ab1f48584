use xet_format::FileHash;
use xet_format::compression::Policy;
use xet_format::merkle::file_hash;
use xet_format::xorb::{BuiltXorb, XorbBuilder};

use super::*;

const COUNT: u32 = 300;

fn raw(index: u32) -> Vec<u8> {
    format!("chunk {index} ").repeat(1 + index as usize % 7).into_bytes()
}

fn xorb() -> BuiltXorb {
    let mut builder = XorbBuilder::new(Policy::Predict);
    for index in 0..COUNT {
        builder.push(&raw(index)).unwrap();
    }
    builder.finish().unwrap()
}

/// The part [from, to) of the xorb.
fn part(from: u32, to: u32) -> Bytes {
    let built = xorb();
    let bytes = built.xorb().layout().serialized_range(ChunkRange::new(from, to).unwrap()).unwrap();
    Bytes::copy_from_slice(
        &built.bytes()[usize::try_from(bytes.start()).unwrap()..usize::try_from(bytes.end()).unwrap()],
    )
}

#[test]
fn a_run_is_decoded_in_slices_from_the_middle_of_a_part() {
    let part = part(10, 290);
    let chunks = ChunkRange::new(20, 285).unwrap();
    let counts: Vec<u32> = slices(chunks).map(ChunkRange::count).collect();
    assert_eq!(counts, [128, 128, 9]);
    let mut writer = Writer::new(Vec::new(), Hasher::File(Aggregator::new()), 3, 1000);
    for slice in slices(chunks) {
        writer = writer.take(&decode(&part, 10, slice).unwrap()).unwrap();
    }
    let expected: Vec<Vec<u8>> = (20..285).map(raw).collect();
    let (sink, hasher, len) = writer.finish();
    assert_eq!((sink, len), (expected.concat()[3..1003].to_vec(), 1000));
    let hashes: Vec<(ChunkHash, u64)> = expected.iter().map(|raw| (ChunkHash::of(raw), raw.len() as u64)).collect();
    let expected: FileHash = file_hash(hashes.iter().map(|(hash, len)| (hash, *len)));
    assert!(matches!(hasher, Hasher::File(aggregator) if aggregator.clone().file_hash() == expected));
}

#[test]
fn a_part_that_ends_too_early_is_damaged_wherever_that_is() {
    let whole = part(0, 3);
    let chunks = ChunkRange::new(1, 3).unwrap();
    decode(&whole, 0, chunks).unwrap();
    for len in 0..whole.len() {
        assert!(decode(&whole.slice(..len), 0, chunks).is_err(), "{len} bytes");
    }
    let error = decode(&part(0, 2), 0, chunks).unwrap_err();
    assert_eq!(error.chunk, Some(2));
}
