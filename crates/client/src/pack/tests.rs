use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use xet_format::chunker::chunks;
use xet_format::compression::Decoder;
use xet_format::limits::MAX_XORB_RAW_LEN;
use xet_format::merkle::file_hash;
use xet_format::xorb::{Splitter, verify};

use super::*;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    println!("seed {seed}");
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

/// Packs the files in pieces of this length and checks that the terms give the files back. Returns
/// the xorbs and the packed files.
fn check(files: &[&[u8]], piece_len: usize) -> (Vec<BuiltXorb>, Packed) {
    let mut packer = Packer::new(Policy::None);
    let mut xorbs = Vec::new();
    for file in files {
        for mut piece in file.chunks(piece_len) {
            while let Some(full) = packer.push(&mut piece) {
                xorbs.push(full);
            }
        }
        xorbs.extend(packer.end_file());
    }
    let (last, packed) = packer.finish();
    xorbs.extend(last);
    assert_eq!(packed.files.len(), files.len());
    for (file, packed) in files.iter().zip(&packed.files) {
        let contents: Vec<u8> = packed.terms.iter().flat_map(|term| raw_of(&xorbs, term)).collect();
        assert!(contents == **file, "the terms of a file of {} bytes give other bytes", file.len());
        assert_eq!(packed.len, file.len() as u64);
        let hashes: Vec<_> = chunks(file).map(|chunk| (ChunkHash::of(chunk), chunk.len() as u64)).collect();
        assert_eq!(packed.hash, file_hash(hashes.iter().map(|(hash, len)| (hash, *len))));
    }
    (xorbs, packed)
}

fn raw_of(xorbs: &[BuiltXorb], term: &Term) -> Vec<u8> {
    let xorb = xorbs.iter().find(|xorb| xorb.xorb().hash() == term.xorb).unwrap();
    assert_eq!(verify(xorb.bytes()).as_ref(), Ok(xorb.xorb()));
    let (mut splitter, mut decoder, mut raw) = (Splitter::new(u64::MAX), Decoder::new(), Vec::new());
    let mut rest = xorb.bytes();
    while let Some(frame) = splitter.next_frame(&mut rest).unwrap() {
        if (term.chunks.start()..term.chunks.end()).contains(&frame.index) {
            raw.extend_from_slice(decoder.decode(&frame.header, frame.payload()).unwrap());
        }
    }
    assert_eq!(raw.len() as u64, term.raw_len);
    raw
}

#[test]
fn nothing_and_empty_files_give_no_xorb() {
    assert_eq!(check(&[], 1).0.len(), 0);
    let (xorbs, packed) = check(&[b"", b""], 1);
    assert_eq!(xorbs.len(), 0);
    assert_eq!(packed.files[0], PackedFile { len: 0, hash: FileHash::EMPTY, terms: vec![] });
}

#[test]
fn files_share_a_xorb_in_order_however_they_are_cut_into_pieces() {
    let (a, b) = (noise(1, 300_000), noise(2, 1));
    let expected = check(&[&a, b"", &b], usize::MAX);
    assert_eq!(expected.0.len(), 1);
    for piece_len in [1, 8_191, 65_536, 299_999] {
        assert_eq!(check(&[&a, b"", &b], piece_len), expected, "{piece_len}");
    }
}

#[test]
fn a_chunk_is_stored_once_and_runs_of_chunks_are_one_term() {
    let a = noise(3, 500_000);
    let chunk_count = chunks(&a).count() as u64;
    let (xorbs, packed) = check(&[&a, &a], 100_000);
    assert_eq!(xorbs.len(), 1);
    assert_eq!((packed.duplicate_count, packed.duplicate_len), (chunk_count, 500_000));
    assert_eq!((packed.files[0].terms.len(), &packed.files[0]), (1, &packed.files[1]));
    // Zeros are cut into chunks of the longest length, which are all equal.
    let (xorbs, packed) = check(&[&vec![0; 4 << 17]], usize::MAX);
    assert_eq!(xorbs[0].xorb().layout().chunk_count(), 1);
    assert_eq!((packed.duplicate_count, packed.files[0].terms.len()), (3, 4));
}

#[test]
fn excess_goes_into_the_next_xorb_and_duplicates_refer_back() {
    let a = noise(4, usize::try_from(MAX_XORB_RAW_LEN).unwrap() + 200_000);
    let (xorbs, packed) = check(&[&a, &a[..1 << 20]], 1 << 20);
    assert_eq!(xorbs.len(), 2);
    assert_eq!(packed.files[0].terms.len(), 2);
    assert_eq!(packed.files[1].terms[0].xorb, xorbs[0].xorb().hash());
}
