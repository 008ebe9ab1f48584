use std::io::{Read as _, Write as _};

use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use twox_hash::XxHash32;

use super::compression::LENS;
use super::samples::{Kind, Noise};
use crate::lz4_frame::{FrameError, FrameErrorKind, decode, encode};

/// Every combination of the options of a frame header, except dictionaries.
fn infos(raw_len: usize) -> Vec<FrameInfo> {
    let mut infos = Vec::new();
    for block_size in [BlockSize::Auto, BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
        for block_mode in [BlockMode::Independent, BlockMode::Linked] {
            for bits in 0..8 {
                let info = FrameInfo::new()
                    .block_size(block_size)
                    .block_mode(block_mode)
                    .block_checksums(bits & 1 > 0)
                    .content_checksum(bits & 2 > 0)
                    .content_size((bits & 4 > 0).then_some(raw_len as u64));
                infos.push(info);
            }
        }
    }
    infos
}

/// A frame of these bytes. They are written in pieces and flushed after each, so that the frame has
/// several small blocks.
fn frame(info: &FrameInfo, raw: &[u8], piece_len: usize) -> Vec<u8> {
    let mut encoder = FrameEncoder::with_frame_info(info.clone(), Vec::new());
    for piece in raw.chunks(piece_len) {
        encoder.write_all(piece).unwrap();
        encoder.flush().unwrap();
    }
    encoder.finish().unwrap()
}

fn decode_to(frame: &[u8], raw_len: usize) -> Result<Vec<u8>, FrameError> {
    let mut raw = vec![0; raw_len];
    decode(frame, &mut raw).map(|()| raw)
}

/// Decodes a frame as clients do. Returns the raw bytes, and how many bytes follow the frame.
fn decode_as_clients(mut frame: &[u8]) -> std::io::Result<(Vec<u8>, usize)> {
    let mut raw = Vec::new();
    FrameDecoder::new(&mut frame).read_to_end(&mut raw)?;
    Ok((raw, frame.len()))
}

/// A frame with this descriptor and the bytes that follow it. The checksum of the descriptor is
/// computed.
fn raw_frame(descriptor: &[u8], rest: &[u8]) -> Vec<u8> {
    let [_, checksum, _, _] = XxHash32::oneshot(0, descriptor).to_le_bytes();
    [&[0x04, 0x22, 0x4D, 0x18], descriptor, &[checksum], rest].concat()
}

/// The descriptor of a frame of version 1 with independent blocks of 64 KiB, without any option.
const PLAIN: [u8; 2] = [0x60, 0x40];
/// The end mark of a frame.
const END: [u8; 4] = [0; 4];

/// A block that is stored uncompressed.
fn stored(raw: &[u8]) -> Vec<u8> {
    [&(raw.len() as u32 | 1 << 31).to_le_bytes(), raw].concat()
}

/// A block of LZ4 data.
fn compressed(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u32).to_le_bytes(), data].concat()
}

#[test]
fn frames_of_all_option_combinations_decode() {
    for kind in Kind::ALL {
        for len in LENS {
            let raw = Noise::new(len as u64).sample(kind, len);
            // Each encoder takes 8 MiB, so each of the largest samples gets only some combinations.
            let infos = infos(len);
            let step = if len > 1_000 { 7 } else { 1 };
            for info in infos.iter().skip(len % step).step_by(step) {
                for piece_len in [len, len.div_ceil(3), 20_000] {
                    let frame = frame(info, &raw, piece_len);
                    assert!(decode_to(&frame, len).as_ref() == Ok(&raw), "{kind:?}, {len} by {piece_len}, {info:?}");
                }
            }
        }
    }
}

#[test]
fn encoded_frame_begins_like_those_of_stock_clients() {
    let begin = |len: usize| {
        let mut out = Vec::new();
        assert_eq!(encode(&Noise::new(1).bytes(len), &mut out), Some(out.len()));
        out[..7].to_vec()
    };
    assert_eq!(begin(65_536), [0x04, 0x22, 0x4D, 0x18, 0x60, 0x40, 0x82]);
    assert_eq!(begin(65_537), [0x04, 0x22, 0x4D, 0x18, 0x60, 0x50, 0xFB]);
}

#[test]
fn frame_prefix_is_truncated_and_longer_one_has_trailing_bytes() {
    let raw = Noise::new(1).sample(Kind::Text, 500);
    for info in infos(raw.len()).iter().step_by(3) {
        let frame = frame(info, &raw, 200);
        for len in 0..frame.len() {
            let error = decode_to(&frame[..len], raw.len()).unwrap_err();
            assert_eq!(error.kind, FrameErrorKind::Truncated, "{len} bytes of {info:?}");
            assert!(error.offset as usize <= len, "{len} bytes of {info:?}");
        }
        let longer = [frame.as_slice(), b"xyz"].concat();
        let error = FrameError { offset: frame.len() as u32, kind: FrameErrorKind::TrailingBytes { len: 3 } };
        assert_eq!(decode_to(&longer, raw.len()), Err(error));
    }
}

/// No byte is written beyond the length of the chunk.
#[test]
fn frame_of_another_length_is_refused_before_an_overrun() {
    let raw = Noise::new(1).sample(Kind::Text, 500);
    let plain = frame(&FrameInfo::new(), &raw, raw.len());
    for len in 1..500 {
        let error = decode_to(&plain, len).unwrap_err();
        assert_eq!((error.offset, error.kind), (7, FrameErrorKind::RawTooLong { expected: len as u32 }));
    }
    let error = decode_to(&plain, 501).unwrap_err();
    assert_eq!(error.kind, FrameErrorKind::RawTooShort { actual: 500, expected: 501 });

    let stored = frame(&FrameInfo::new(), &Noise::new(1).bytes(500), 500);
    assert_eq!(decode_to(&stored, 499).unwrap_err().kind, FrameErrorKind::RawTooLong { expected: 499 });
}

#[test]
fn expansion_bomb_is_refused_at_the_length_of_the_chunk() {
    // One literal, then a match that repeats it: each byte 0xFF makes the match 255 bytes longer.
    let mut data = vec![0x1F, b'a', 1, 0];
    data.resize(60_000, 0xFF);
    data.extend_from_slice(&[0, 0x50, b'a', b'a', b'a', b'a', b'a']);
    let frame = raw_frame(&PLAIN, &[compressed(&data).as_slice(), &END].concat());
    let error = decode_to(&frame, 1_000).unwrap_err();
    assert_eq!((error.offset, error.kind), (7, FrameErrorKind::RawTooLong { expected: 1_000 }));
    let error = decode_to(&frame, 131_072).unwrap_err();
    assert_eq!((error.offset, error.kind), (7, FrameErrorKind::BlockOverflow { limit: 65_536 }));
}

#[test]
fn unsupported_frame_headers_are_refused() {
    let check = |frame: &[u8], offset, kind| {
        assert_eq!(decode_to(frame, 3), Err(FrameError { offset, kind }));
    };
    let content = [stored(b"abc").as_slice(), &END].concat();
    let magic = |bytes: [u8; 4]| {
        let mut frame = raw_frame(&PLAIN, &content);
        frame[..4].copy_from_slice(&bytes);
        frame
    };
    assert_eq!(decode_to(&raw_frame(&PLAIN, &content), 3).unwrap(), b"abc");
    check(&magic([0x02, 0x21, 0x4C, 0x18]), 0, FrameErrorKind::Legacy);
    for last in 0x50..=0x5F {
        check(&magic([last, 0x2A, 0x4D, 0x18]), 0, FrameErrorKind::Skippable);
    }
    check(&magic([0x05, 0x22, 0x4D, 0x18]), 0, FrameErrorKind::Magic { found: 0x184D_2205 });
    for version in [0, 2, 3] {
        let frame = raw_frame(&[0x20 | version << 6, 0x40], &content);
        check(&frame, 4, FrameErrorKind::Version { found: version });
    }
    check(&raw_frame(&[0x62, 0x40], &content), 4, FrameErrorKind::ReservedBits);
    check(&raw_frame(&[0x61, 0x40, 1, 2, 3, 4], &content), 4, FrameErrorKind::Dictionary);
    for bit in [0, 1, 2, 3, 7] {
        check(&raw_frame(&[0x60, 0x40 | 1 << bit], &content), 5, FrameErrorKind::ReservedBits);
    }
    for code in 0..4 {
        check(&raw_frame(&[0x60, code << 4], &content), 5, FrameErrorKind::BlockSize { code });
    }
    let mut wrong_checksum = raw_frame(&PLAIN, &content);
    wrong_checksum[6] ^= 1;
    check(&wrong_checksum, 6, FrameErrorKind::HeaderChecksum);
    for declared in [0, 2, 4, u64::MAX] {
        let descriptor = [&[0x68, 0x40], declared.to_le_bytes().as_slice()].concat();
        let kind = FrameErrorKind::ContentSize { declared, expected: 3 };
        check(&raw_frame(&descriptor, &content), 6, kind);
    }
}

#[test]
fn invalid_blocks_are_refused() {
    let check = |blocks: &[u8], raw_len, offset, kind| {
        let frame = raw_frame(&PLAIN, &[blocks, &END].concat());
        assert_eq!(decode_to(&frame, raw_len), Err(FrameError { offset, kind }));
    };
    // Clients take an empty block for the end of the data.
    check(&[stored(b"abc"), stored(b"")].concat(), 3, 14, FrameErrorKind::EmptyBlock);
    check(&[stored(b""), stored(b"abc")].concat(), 3, 7, FrameErrorKind::EmptyBlock);
    check(&[stored(b"abc"), compressed(&[0])].concat(), 3, 14, FrameErrorKind::EmptyBlock);
    // A stored and a compressed block with more bytes than the block size.
    let long = FrameErrorKind::BlockTooLong { len: 65_537, limit: 65_536 };
    check(&stored(&[1; 65_537]), 65_537, 7, long);
    check(&compressed(&[1; 65_537]), 65_537, 7, long);
    // A match offset of 0, a match offset before the start, missing literals, and a block that ends
    // with a match.
    for data in [[0x10, b'a', 0, 0, 0].as_slice(), &[0x10, b'a', 2, 0, 0], &[0xF0, 9, b'a'], &[0x14, b'a', 1, 0]] {
        check(&compressed(data), 100, 7, FrameErrorKind::CorruptBlock);
    }
}

#[test]
fn matches_reach_into_the_previous_block_only_if_linked() {
    // No literal, a match of 4 bytes that begins 3 bytes back, then one literal, because a block
    // must end with literals.
    let second = compressed(&[0x00, 3, 0, 0x10, b'!']);
    let blocks = [stored(b"abc"), second, END.to_vec()].concat();
    assert_eq!(decode_to(&raw_frame(&[0x40, 0x40], &blocks), 8).unwrap(), b"abcabca!");
    let error = FrameError { offset: 14, kind: FrameErrorKind::CorruptBlock };
    assert_eq!(decode_to(&raw_frame(&PLAIN, &blocks), 8), Err(error));
}

#[test]
fn match_65535_bytes_back_is_found_over_linked_blocks() {
    let raw = Noise::new(3).bytes(70_000);
    let mut blocks: Vec<u8> = raw.chunks(1_000).flat_map(stored).collect();
    blocks.extend(compressed(&[0x00, 0xFF, 0xFF, 0x10, b'!']));
    blocks.extend(END);
    let expected = [raw.as_slice(), &raw[70_000 - 65_535..][..4], b"!"].concat();
    let frame = raw_frame(&[0x40, 0x40], &blocks);
    assert!(decode_to(&frame, expected.len()).as_ref() == Ok(&expected));
    assert_eq!(decode_as_clients(&frame).unwrap(), (expected, 0));
}

#[test]
fn wrong_checksums_of_blocks_and_contents_are_found() {
    let raw = b"abc";
    let sum = XxHash32::oneshot(0, raw).to_le_bytes();
    let content = |block_sum: &[u8], content_sum: &[u8]| [&stored(raw), block_sum, &END, content_sum].concat();
    let with_both = [0x74, 0x40];
    assert_eq!(decode_to(&raw_frame(&with_both, &content(&sum, &sum)), 3).unwrap(), raw);
    let wrong = [sum[0] ^ 1, sum[1], sum[2], sum[3]];
    let error = decode_to(&raw_frame(&with_both, &content(&wrong, &sum)), 3).unwrap_err();
    assert_eq!((error.offset, error.kind), (14, FrameErrorKind::BlockChecksum));
    let error = decode_to(&raw_frame(&with_both, &content(&sum, &wrong)), 3).unwrap_err();
    assert_eq!((error.offset, error.kind), (22, FrameErrorKind::ContentChecksum));
}

/// A chunk that verifies on the server must be the same chunk on the client.
#[test]
fn accepted_corrupted_frames_decode_alike_in_clients() {
    let mut accepted = 0;
    for seed in 0..60_000 {
        let mut noise = Noise::new(seed);
        let len = 1 + noise.below(600);
        let kind = Kind::ALL[noise.below(4)];
        let raw = noise.sample(kind, len);
        let infos = infos(len);
        let info = &infos[16 + noise.below(infos.len() - 16) / 4]; // block sizes up to 256 KiB: less to allocate
        let piece_len = 1 + noise.below(len);
        let mut frame = frame(info, &raw, piece_len);
        for _ in 0..=noise.below(3) {
            let index = noise.below(frame.len());
            match noise.below(4) {
                0 => frame[index] ^= 1 << noise.below(8),
                1 => frame[index] = noise.next() as u8,
                2 => drop(frame.remove(index)),
                _ => frame.insert(index, noise.next() as u8),
            }
        }
        // Most corruptions change the raw length, so the decoder gets the length that clients would
        // decode.
        let clients = decode_as_clients(&frame);
        let raw_len = clients.as_ref().map_or(len, |(raw, _)| raw.len().clamp(1, 131_072));
        if let Ok(decoded) = decode_to(&frame, raw_len) {
            assert_eq!(clients.unwrap(), (decoded, 0), "seed {seed}");
            accepted += 1;
        }
    }
    assert!(accepted > 500, "only {accepted} corrupted frames were valid: the test tests too little");
}
