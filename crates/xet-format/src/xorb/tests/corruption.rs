use super::{Version, build, small_xorb, verify, with_footer};
use crate::XorbHash;
use crate::compression::{Decoder, Policy};
use crate::limits::MAX_XORB_BODY_LEN;
use crate::tests::{Kind, Noise};
use crate::xorb::{FooterError, FooterField, Splitter, Verifier, XorbError, XorbErrorClass, XorbErrorKind};

/// Whether a body is not accepted as the xorb with this hash: it gives an error, or a xorb with
/// another hash.
fn is_refused(body: &[u8], hash: XorbHash) -> bool {
    verify(body).map_or(true, |xorb| xorb.hash() != hash)
}

#[test]
fn xorb_prefix_is_incomplete_or_another_shorter_xorb() {
    for policy in [Policy::None, Policy::Lz4, Policy::ByteGroupedLz4] {
        let chunks = [Noise::new(1).sample(Kind::Floats, 301), Noise::new(2).sample(Kind::Text, 200), vec![1]];
        let xorb = build(policy, &chunks);
        let ends: Vec<_> = xorb.xorb().layout().chunks().map(|place| place.serialized.end() as usize).collect();
        for body in [xorb.bytes().to_vec(), with_footer(&xorb, Version::V0), with_footer(&xorb, Version::V1)] {
            assert_eq!(verify(&body).as_ref(), Ok(xorb.xorb()));
            for len in 0..body.len() {
                match verify(&body[..len]) {
                    Ok(shorter) => {
                        let count = ends.iter().position(|end| *end == len).unwrap() + 1;
                        assert_eq!(shorter.chunk_hashes(), &xorb.xorb().chunk_hashes()[..count]);
                        assert_eq!(shorter.hash() == xorb.xorb().hash(), count == 3, "the whole without its footer");
                    }
                    Err(error) => {
                        assert!(!ends.contains(&len));
                        assert_eq!((error.class(), error.offset), (XorbErrorClass::Incomplete, len as u64), "{error}");
                    }
                }
            }
        }
    }
}

#[test]
fn no_flipped_bit_changes_the_raw_bytes_under_the_same_hash() {
    let (xorb, chunks) = small_xorb();
    let raw = chunks.concat();
    let mut same = 0;
    for index in 0..xorb.bytes().len() {
        for bit in 0..8 {
            let mut body = xorb.bytes().to_vec();
            body[index] ^= 1 << bit;
            if !is_refused(&body, xorb.xorb().hash()) {
                // An LZ4 match with another offset may copy the same bytes from another place.
                assert!(raw_of(&body) == raw, "bit {bit} of byte {index}");
                same += 1;
            }
        }
    }
    assert!(same < 100, "{same} flipped bits make no difference, which is too many to be matches");
}

/// The raw bytes of all chunks of a body that was verified.
fn raw_of(body: &[u8]) -> Vec<u8> {
    let mut splitter = Splitter::new(MAX_XORB_BODY_LEN);
    let mut decoder = Decoder::new();
    let mut rest = body;
    let mut raw = Vec::new();
    while let Some(frame) = splitter.next_frame(&mut rest).unwrap() {
        raw.extend_from_slice(decoder.decode(&frame.header, frame.payload()).unwrap());
    }
    raw
}

#[test]
fn changed_footer_byte_except_nonce_is_refused_at_its_field() {
    let (xorb, _) = small_xorb();
    let start = xorb.bytes().len();
    for version in [Version::V0, Version::V1] {
        let body = with_footer(&xorb, version);
        let nonce = body.len() - 20..body.len() - 4;
        for index in start..body.len() {
            for change in 1..=255_u8 {
                let mut body = body.clone();
                body[index] ^= change;
                if nonce.contains(&index) {
                    assert_eq!(verify(&body).as_ref(), Ok(xorb.xorb()));
                    continue;
                }
                assert!(is_refused(&body, xorb.xorb().hash()), "byte {index}");
                let error = verify(&body).unwrap_err();
                let last = match index - start {
                    // A tag that begins with 0 is read as a chunk header. Then the error is at the
                    // field of the scheme.
                    0 => start + 4,
                    // The version may now be the other valid one. Then the error is at the first
                    // field in which the two versions differ.
                    7 => start + 40,
                    _ => index,
                };
                assert!((start as u64..=last as u64).contains(&error.offset), "byte {index}: {error}");
            }
        }
    }
}

#[test]
fn error_text_has_a_place_and_a_sentence() {
    let check = |body: &[u8], expected: &str| assert_eq!(verify(body).unwrap_err().to_string(), expected);
    let (xorb, _) = small_xorb();
    let second = xorb.xorb().layout().chunks().nth(1).unwrap().serialized.start() as usize;
    let mut body = xorb.bytes().to_vec();
    body[second + 1..second + 4].copy_from_slice(&[0xE0, 0x93, 0x04]);
    let place = second + 1;
    check(&body, &format!("chunk 1 at byte {place}: compressed length 300000 exceeds the limit of 262144"));
    check(b"", "byte 0: the body is empty");
    check(&body[..3], "chunk 0 at byte 3: the body ends after 3 of the 8 bytes of a chunk header");
    check(b"\0\x05\0\0\x01\x05\0\0hello", "chunk 0 at byte 8: 0x6c6c6568 is not the magic number of an LZ4 frame");
    check(b"\x01\x05\0\0\0\x05\0\0hello", "chunk 0 at byte 0: chunk header version 1 is not supported, only 0");

    let mut footed = with_footer(&xorb, Version::V1);
    footed[xorb.bytes().len() + 52 + 32] ^= 1;
    let place = xorb.bytes().len() + 52 + 32;
    check(&footed, &format!("byte {place}: the hash of chunk 1 of the footer does not match the chunks"));
    footed.truncate(place);
    check(&footed, &format!("byte {place}: the body ends after 84 of the 296 bytes of the footer"));
}

#[test]
fn footer_with_a_wrong_chunk_count_is_refused_at_the_count() {
    let chunks: Vec<_> = (1..6).map(|len| vec![9; len]).collect();
    let xorb = build(Policy::None, &chunks[..4]);
    for other in [&chunks[..3], &chunks] {
        for version in [Version::V0, Version::V1] {
            let mut other_body = with_footer(&build(Policy::None, other), version);
            let footer = other_body.split_off(other.iter().map(|chunk| chunk.len() + 8).sum());
            let mut body = [xorb.bytes(), &footer].concat();
            // The footer gets the hash of this xorb, because a wrong hash would be the first error.
            let start = xorb.bytes().len();
            body[start + 8..start + 40].copy_from_slice(xorb.xorb().hash().as_bytes());
            let kind = XorbErrorKind::Footer(FooterError::Mismatch { field: FooterField::ChunkCount });
            let offset = start as u64 + if version == Version::V0 { 40 } else { 48 };
            assert_eq!(verify(&body), Err(XorbError { offset, chunk: None, kind }));
        }
    }
}

#[test]
fn body_of_the_limit_is_accepted_and_one_above_too_large() {
    let (xorb, _) = small_xorb();
    for body in [xorb.bytes().to_vec(), with_footer(&xorb, Version::V0), with_footer(&xorb, Version::V1)] {
        let verify_within = |max_len: usize| {
            let mut verifier = Verifier::new(max_len as u64);
            let mut rest = body.as_slice();
            while verifier.next_frame(&mut rest)?.is_some() {}
            verifier.finish()
        };
        assert_eq!(verify_within(body.len()).as_ref(), Ok(xorb.xorb()));
        assert_eq!(verify_within(body.len() - 1).unwrap_err().class(), XorbErrorClass::TooLarge);
        assert_eq!(verify_within(0).unwrap_err().class(), XorbErrorClass::TooLarge);
    }
}

#[test]
fn log_line_of_a_verifier_does_not_contain_its_buffers() {
    let (xorb, _) = small_xorb();
    let mut verifier = Verifier::new(MAX_XORB_BODY_LEN);
    let mut piece = &xorb.bytes()[..300];
    while verifier.next_frame(&mut piece).unwrap().is_some() {}
    let line = format!("{verifier:?}");
    assert!(line.contains("buffered") && line.len() < 300, "{line}");
}
