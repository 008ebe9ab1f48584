//! Any bytes as the payload of a compressed chunk: nothing panics, and what is accepted is what clients decode.
//!
//! The input is the raw length, three bytes, and then the payload.

use std::cell::RefCell;
use std::io::Read as _;

use lz4_flex::frame::FrameDecoder;
use xet_format::chunk::ChunkHeader;
use xet_format::compression::{Decoder, Scheme};
use xet_format::limits::MAX_CHUNK_RAW_LEN;

thread_local! {
    /// One for all inputs, as the server has one for all chunks of a body: nothing of an earlier one may show.
    static DECODER: RefCell<Decoder> = const { RefCell::new(Decoder::new()) };
}

/// The target.
///
/// # Panics
///
/// A promise is broken.
pub fn check(input: &[u8]) {
    DECODER.with_borrow_mut(|decoder| check_with(decoder, input));
}

fn check_with(decoder: &mut Decoder, input: &[u8]) {
    let Some(([a, b, c], payload)) = input.split_first_chunk() else { return };
    let raw_len = u32::from_le_bytes([*a, *b, *c, 0]) % MAX_CHUNK_RAW_LEN + 1;
    let payload_len = payload.len() as u32;
    let header = ChunkHeader { payload_len, scheme: Scheme::Lz4, raw_len };
    let decoded = decoder.decode(&header, payload).map(<[u8]>::to_vec);
    if let Ok(raw) = &decoded {
        assert_eq!(raw.len(), raw_len as usize);
        let mut expected = Vec::new();
        let mut frame = payload;
        FrameDecoder::new(&mut frame).read_to_end(&mut expected).expect("accepted here, so clients must take it");
        assert!(*raw == expected, "clients decode other bytes");
        assert!(frame.is_empty(), "clients stop before the end");
    }
    // Grouping changes the order of the bytes and nothing else.
    let header = ChunkHeader { scheme: Scheme::ByteGroupedLz4, ..header };
    let joined = decoder.decode(&header, payload).map(<[u8]>::to_vec);
    match (decoded, joined) {
        (Err(lz4), Err(grouped)) => assert_eq!(lz4, grouped),
        (Ok(raw), Ok(joined)) => {
            let len = raw.len();
            let starts = [0, len.div_ceil(4), len.div_ceil(4) + (len + 2) / 4, len - len / 4];
            for (index, byte) in joined.iter().enumerate() {
                assert_eq!(*byte, raw[starts[index % 4] + index / 4]);
            }
        }
        (lz4, grouped) => panic!("{:?} but {:?}", lz4.is_ok(), grouped.is_ok()),
    }
}
