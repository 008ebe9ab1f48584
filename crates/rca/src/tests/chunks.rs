//! The chunk layer without blobs, also with size fields of other widths.

use std::io::{Cursor, Read};

use rand::RngExt;

use super::support::{noise, rng};
use crate::{Chunker, Error, Layout, Unchunker};

fn unchunk(data: &[u8], layout: Layout) -> (Vec<u8>, Option<Vec<u8>>, Option<bool>) {
    let (mut unchunker, mut payload) = (Unchunker::new(data, layout), Vec::new());
    unchunker.read_to_end(&mut payload).unwrap();
    (payload, unchunker.metadata().map(<[u8]>::to_vec), unchunker.trailing_garbage())
}

/// The payload is written in pieces of random lengths, and the file is reopened after each.
#[test]
fn chunks_of_any_layout_read_back_what_was_written() {
    let seed = 11;
    println!("seed {seed}");
    let mut rng = rng(seed);
    for bits in [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 64, 65, 128, 200] {
        for metadata_len in [0, 1, 2, 8, 9] {
            let layout = Layout::new(bits, metadata_len).unwrap();
            let Ok(mut chunker) = Chunker::open(Cursor::new(Vec::new()), layout) else {
                assert!(bits < 6, "{bits} {metadata_len}");
                continue;
            };
            let mut payload = Vec::new();
            for n in 0..40_u8 {
                let piece = noise(u64::from(n), rng.random_range(0..[2, 20, 200, 9000][usize::from(n) % 4]));
                chunker.append(&piece, &vec![n; metadata_len]).unwrap();
                payload.extend_from_slice(&piece);
                let data = chunker.into_storage().into_inner();
                let what = format!("{bits} bits, {metadata_len} bytes, append {n}");
                assert_eq!(
                    unchunk(&data, layout),
                    (payload.clone(), Some(vec![n; metadata_len]), Some(false)),
                    "{what}"
                );
                let garbage =
                    if n % 3 == 0 && metadata_len > 0 { vec![0; rng.random_range(0..20)] } else { Vec::new() };
                let reopened = Chunker::open(Cursor::new([data, garbage].concat()), layout);
                chunker = reopened.unwrap_or_else(|e| panic!("{what}: {e}"));
            }
        }
    }
}

/// A full chunk has no successor until more payload is written.
#[test]
fn chunks_begin_at_offsets_of_the_format() {
    let layout = Layout::ARCHIVE;
    let mut chunker = Chunker::open(Cursor::new(Vec::new()), layout).unwrap();
    chunker.append(&[7; 0x8000 - 10], &[1; 8]).unwrap();
    assert_eq!(chunker.committed_end(), 0x8000);
    chunker.append(&[], &[2; 8]).unwrap();
    let data = chunker.into_storage().into_inner();
    assert_eq!((data.len(), &data[..10]), (0x8000, &[0x80, 0, 2, 2, 2, 2, 2, 2, 2, 2][..]));
    let mut chunker = Chunker::open(Cursor::new(data), layout).unwrap();
    chunker.append(&[8], &[3; 8]).unwrap();
    let data = chunker.into_storage().into_inner();
    assert_eq!(data[0x8000..], [0, 0, 0, 13, 3, 3, 3, 3, 3, 3, 3, 3, 8]);
    assert_eq!(data[2..10], [2; 8], "the metadata of a full chunk is left alone");
}

#[test]
fn a_zero_size_ends_the_file_even_with_nothing_behind_it() {
    assert_eq!(unchunk(&[0; 10], Layout::ARCHIVE), (vec![], None, Some(true)));
    assert_eq!(unchunk(&[0; 9], Layout::ARCHIVE), (vec![], None, Some(true)));
    assert_eq!(unchunk(&[], Layout::ARCHIVE), (vec![], None, Some(false)));
}

#[test]
fn a_size_below_the_header_is_refused_by_both_again_and_again() {
    for size in 1..10 {
        let data = [0, size, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3];
        let mut unchunker = Unchunker::new(&data[..], Layout::ARCHIVE);
        for _ in 0..2 {
            let error = unchunker.read_payload(&mut [0; 4]).unwrap_err();
            assert!(matches!(error, Error::BadChunkSize { offset: 0, header_len: 10, .. }), "{error:?}");
        }
        assert_eq!(unchunker.trailing_garbage(), None);
        assert_eq!(Chunker::open(Cursor::new(data.to_vec()), Layout::ARCHIVE).unwrap_err().code(), "bad_chunk_size");
    }
    let header_only = [0, 10, 9, 9, 9, 9, 9, 9, 9, 9];
    assert_eq!(unchunk(&header_only, Layout::ARCHIVE), (vec![], Some(vec![9; 8]), Some(false)));
}

#[test]
fn payload_of_a_short_file_is_returned_before_the_error() {
    let data = [0x80, 0, 1, 1, 1, 1, 1, 1, 1, 1, b'a', b'b'];
    let mut unchunker = Unchunker::new(&data[..], Layout::ARCHIVE);
    let mut buf = [0; 100];
    assert_eq!(unchunker.read_payload(&mut buf).unwrap(), 2);
    let error = unchunker.read_payload(&mut buf).unwrap_err();
    assert!(matches!(error, Error::TruncatedChunk { offset: 0, size: 0x8000 }));
    assert_eq!(error.to_string(), "the chunk at byte 0 has size 32768, but the file ends before that");
}

#[test]
fn impossible_layouts_are_refused() {
    for (bits, metadata_len) in [(0, 8), (1025, 8), (16, 65_537), (u32::MAX, 0), (16, usize::MAX)] {
        assert!(matches!(Layout::new(bits, metadata_len), Err(Error::BadOptions(_))));
    }
    let narrow = Layout::new(3, 8).unwrap();
    assert!(matches!(Chunker::open(Cursor::new(Vec::new()), narrow), Err(Error::BadOptions(_))));
    let mut chunker = Chunker::open(Cursor::new(Vec::new()), Layout::ARCHIVE).unwrap();
    assert!(matches!(chunker.append(b"x", b"short"), Err(Error::BadOptions(_))));
    chunker.append(b"x", b"eight by").unwrap();
}
