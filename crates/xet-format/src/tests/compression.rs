use super::samples::{Kind, Noise};
use crate::bg4;
use crate::chunk::ChunkHeader;
use crate::compression::{DecodeError, Decoder, Encoder, Policy, Scheme};

/// Lengths around every bound in the code: groups of four bytes, the shortest input that LZ4
/// compresses, the two LZ4 block sizes, and the limit of a chunk.
pub(super) const LENS: [usize; 19] =
    [1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 63, 64, 65, 1_000, 65_535, 65_536, 65_537, 131_071, 131_072];

fn header(scheme: Scheme, payload: &[u8], raw: &[u8]) -> ChunkHeader {
    ChunkHeader { payload_len: payload.len() as u32, scheme, raw_len: raw.len() as u32 }
}

#[test]
fn grouping_sorts_bytes_by_position_mod_4_and_joining_undoes() {
    let mut grouped = [0; 10];
    bg4::split(b"0123456789", &mut grouped);
    assert_eq!(&grouped, b"0481592637");
    for len in (0..70).chain(LENS) {
        let raw = Noise::new(len as u64).bytes(len);
        let expected: Vec<u8> =
            (0..4).flat_map(|group| raw.iter().skip(group).step_by(4).copied().collect::<Vec<_>>()).collect();
        let mut grouped = vec![0; len];
        bg4::split(&raw, &mut grouped);
        assert_eq!(grouped, expected, "{len} bytes");
        let mut joined = vec![0; len];
        bg4::join(&grouped, &mut joined);
        assert_eq!(joined, raw, "{len} bytes");
    }
}

#[test]
fn encoded_chunk_decodes_for_every_policy_kind_and_length() {
    let mut decoder = Decoder::new();
    let mut encoder = Encoder::new();
    for policy in [Policy::None, Policy::Lz4, Policy::ByteGroupedLz4, Policy::BruteForce, Policy::Predict] {
        for kind in Kind::ALL {
            for len in LENS {
                let raw = Noise::new(len as u64).sample(kind, len);
                let mut out = b"before".to_vec();
                let scheme = encoder.encode(policy, &raw, &mut out);
                let payload = out.strip_prefix(b"before").unwrap();
                assert!(payload.len() <= raw.len(), "{policy:?} {kind:?} {len}");
                assert_eq!(payload.len() == raw.len(), scheme == Scheme::None, "{policy:?} {kind:?} {len}");
                let decoded = decoder.decode(&header(scheme, payload, &raw), payload);
                assert_eq!(decoded, Ok(raw.as_slice()), "{policy:?} {kind:?} {len}");
            }
        }
    }
}

#[test]
fn policies_choose_the_scheme_that_suits_the_bytes() {
    let check = |policy, kind, expected| {
        let raw = Noise::new(3).sample(kind, 65_536);
        assert_eq!(Encoder::new().encode(policy, &raw, &mut Vec::new()), expected, "{policy:?} {kind:?}");
    };
    for policy in [Policy::BruteForce, Policy::Predict] {
        check(policy, Kind::Random, Scheme::None);
        check(policy, Kind::Zeros, Scheme::Lz4);
        check(policy, Kind::Text, Scheme::Lz4);
        check(policy, Kind::Floats, Scheme::ByteGroupedLz4);
    }
    check(Policy::Lz4, Kind::Floats, Scheme::None);
    check(Policy::ByteGroupedLz4, Kind::Text, Scheme::ByteGroupedLz4);
    check(Policy::None, Kind::Zeros, Scheme::None);
}

#[test]
fn brute_force_is_never_longer_than_any_other_policy() {
    for kind in Kind::ALL {
        let raw = Noise::new(4).sample(kind, 100_000);
        let len = |policy| {
            let mut out = Vec::new();
            Encoder::new().encode(policy, &raw, &mut out);
            out.len()
        };
        let best = len(Policy::BruteForce);
        let others = [Policy::None, Policy::Lz4, Policy::ByteGroupedLz4, Policy::Predict];
        assert!(others.into_iter().all(|policy| best <= len(policy)), "{kind:?}");
    }
}

#[test]
fn decoder_refuses_headers_put_together_by_hand() {
    let mut decoder = Decoder::new();
    let header = |scheme, payload_len, raw_len| ChunkHeader { payload_len, scheme, raw_len };
    assert_eq!(
        decoder.decode(&header(Scheme::None, 4, 4), b"12345"),
        Err(DecodeError::PayloadLen { actual: 5, declared: 4 })
    );
    assert_eq!(
        decoder.decode(&header(Scheme::None, 5, 4), b"12345"),
        Err(DecodeError::StoredLen { payload_len: 5, raw_len: 4 })
    );
    for raw_len in [0, 131_073, u32::MAX] {
        let error = Err(DecodeError::RawLen { raw_len });
        assert_eq!(decoder.decode(&header(Scheme::Lz4, 5, raw_len), b"12345"), error);
    }
}

#[test]
fn decoder_output_has_no_bytes_of_earlier_chunks() {
    let mut decoder = Decoder::new();
    for scheme in [Policy::Lz4, Policy::ByteGroupedLz4] {
        for (kind, len) in [(Kind::Text, 131_072), (Kind::Zeros, 100), (Kind::Text, 70_000)] {
            let raw = Noise::new(9).sample(kind, len);
            let mut payload = Vec::new();
            let scheme = Encoder::new().encode(scheme, &raw, &mut payload);
            assert_ne!(scheme, Scheme::None);
            assert_eq!(decoder.decode(&header(scheme, &payload, &raw), &payload), Ok(raw.as_slice()));
        }
    }
}
