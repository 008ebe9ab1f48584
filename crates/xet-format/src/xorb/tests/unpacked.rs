//! Unpacks xorbs and repacks them.

use super::*;
use crate::limits::{MAX_CHUNK_RAW_LEN, MAX_XORB_CHUNK_COUNT};
use crate::xorb::{RepackMode, Repacker, UNPACKED_ENTRY_LEN, Unpacked, UnpackedError, Unpacker, parse_unpacked_table};

fn unpack(bytes: &[u8], piece_len: usize) -> Result<(VerifiedXorb, Unpacked), XorbError> {
    let mut unpacker = Unpacker::new(bytes.len() as u64);
    for piece in bytes.chunks(piece_len) {
        unpacker.push(piece)?;
    }
    unpacker.finish()
}

fn repack(unpacked: &Unpacked, mode: RepackMode) -> (Vec<u8>, VerifiedXorb) {
    let (mut repacker, mut bytes) = (Repacker::new(mode), Vec::new());
    let mut rest = unpacked.contents.as_slice();
    for chunk in parse_unpacked_table(&unpacked.table).unwrap() {
        let (contents, after) = rest.split_at(chunk.raw_len as usize);
        repacker.push(chunk, contents, &mut bytes).unwrap();
        rest = after;
    }
    assert!(rest.is_empty());
    (bytes, repacker.finish().unwrap())
}

/// This holds only for a xorb that this compressor has compressed.
#[test]
fn unpacked_and_repacked_xorb_is_byte_identical() {
    let (xorb, chunks) = small_xorb();
    for piece_len in [1, 7, 1000, xorb.bytes().len()] {
        let (verified, unpacked) = unpack(xorb.bytes(), piece_len).unwrap();
        assert_eq!(&verified, xorb.xorb());
        assert_eq!(unpacked.table.len(), UNPACKED_ENTRY_LEN * chunks.len());
        assert_eq!(unpacked.contents.len(), chunks.concat().len());
        let (bytes, repacked) = repack(&unpacked, RepackMode::Compressed);
        assert_eq!((bytes.as_slice(), &repacked), (xorb.bytes(), xorb.xorb()));
    }
}

#[test]
fn repacked_without_compression_is_the_same_xorb() {
    let (xorb, chunks) = small_xorb();
    let (_, unpacked) = unpack(xorb.bytes(), 500).unwrap();
    let (bytes, repacked) = repack(&unpacked, RepackMode::Uncompressed);
    assert_eq!(repacked.hash(), xorb.xorb().hash());
    assert_eq!(repacked.chunk_hashes(), xorb.xorb().chunk_hashes());
    assert_eq!(bytes.len(), chunks.concat().len() + 8 * chunks.len());
    assert_eq!(verify(&bytes).as_ref(), Ok(&repacked));
}

#[test]
fn contents_are_raw_or_grouped_as_the_scheme_says() {
    let chunks = [[1, 2, 3, 4, 5, 6, 7, 8, 9].repeat(40), vec![7; 300]];
    for (policy, grouped) in [(Policy::Lz4, false), (Policy::ByteGroupedLz4, true)] {
        let xorb = build(policy, &chunks);
        let (_, unpacked) = unpack(xorb.bytes(), 64).unwrap();
        let first = &unpacked.contents[..chunks[0].len()];
        assert_eq!(first == chunks[0], !grouped, "{policy:?}");
        assert_eq!(repack(&unpacked, RepackMode::Compressed).0, xorb.bytes());
    }
}

#[test]
fn chunk_expanded_by_another_compressor_is_repacked_stored() {
    // Random bytes with the scheme LZ4: compression would make them longer.
    let raw = Noise::new(3).sample(Kind::Random, 500);
    let mut unpacked = Unpacked { table: vec![1, 0, 0, 0], contents: raw.clone() };
    unpacked.table[1..3].copy_from_slice(&500_u16.to_le_bytes());
    let (bytes, repacked) = repack(&unpacked, RepackMode::Compressed);
    assert_eq!((repacked.schemes(), bytes.len()), (&[Scheme::None][..], 508));
    assert_eq!(verify(&bytes), Ok(repacked));
}

#[test]
fn invalid_or_truncated_xorb_is_not_unpacked() {
    let (xorb, _) = small_xorb();
    let mut spoilt = xorb.bytes().to_vec();
    spoilt[4] = 9;
    assert!(unpack(&spoilt, 10).is_err());
    for len in 0..xorb.bytes().len() {
        let (cut, whole) = (unpack(&xorb.bytes()[..len], 100), xorb.xorb().hash());
        // A cut between two chunks is a shorter xorb, of another hash.
        assert!(cut.is_err() || cut.is_ok_and(|(cut, _)| cut.hash() != whole), "{len}");
    }
}

#[test]
fn table_is_accepted_only_with_lengths_within_the_limits() {
    let entry = |scheme: u8, len: u32| {
        let [a, b, c, _] = len.to_le_bytes();
        vec![scheme, a, b, c]
    };
    let table = |entries: &[Vec<u8>]| parse_unpacked_table(&entries.concat());
    assert_eq!(table(&[]), Err(UnpackedError::TableLen { len: 0 }));
    assert_eq!(parse_unpacked_table(&[0, 1, 0]), Err(UnpackedError::TableLen { len: 3 }));
    assert_eq!(table(&[entry(0, 1), entry(3, 1)]), Err(UnpackedError::Entry { index: 1 }));
    assert_eq!(table(&[entry(0, 0)]), Err(UnpackedError::Entry { index: 0 }));
    assert_eq!(table(&[entry(0, MAX_CHUNK_RAW_LEN)]).map(|chunks| chunks.len()), Ok(1));
    assert_eq!(table(&[entry(0, MAX_CHUNK_RAW_LEN + 1)]), Err(UnpackedError::Entry { index: 0 }));
    assert!(table(&vec![entry(0, 8192); MAX_XORB_CHUNK_COUNT as usize]).is_ok());
    let len = (MAX_XORB_CHUNK_COUNT as usize + 1) * 4;
    assert_eq!(table(&vec![entry(0, 1); MAX_XORB_CHUNK_COUNT as usize + 1]), Err(UnpackedError::TableLen { len }));
    assert!(table(&vec![entry(0, MAX_CHUNK_RAW_LEN); 512]).is_ok());
    let too_long = UnpackedError::TooLong { len: (64 << 20) + 1 };
    assert_eq!(table(&[vec![entry(0, MAX_CHUNK_RAW_LEN); 512], vec![entry(0, 1)]].concat()), Err(too_long));
}
