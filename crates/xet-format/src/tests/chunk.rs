use crate::chunk::{ChunkHeader, HeaderError};
use crate::compression::Scheme;

fn bytes(version: u8, payload_len: u32, scheme: u8, raw_len: u32) -> [u8; 8] {
    let [c0, c1, c2, _] = payload_len.to_le_bytes();
    let [u0, u1, u2, _] = raw_len.to_le_bytes();
    [version, c0, c1, c2, scheme, u0, u1, u2]
}

#[test]
fn header_is_version_payload_length_scheme_and_raw_length() {
    let header = ChunkHeader::parse(&[0, 0x03, 0x02, 0x01, 2, 0x06, 0x05, 0x01]).unwrap();
    let expected = ChunkHeader { payload_len: 0x01_0203, scheme: Scheme::ByteGroupedLz4, raw_len: 0x01_0506 };
    assert_eq!(header, expected);
    assert_eq!(header.to_bytes(), [0, 0x03, 0x02, 0x01, 2, 0x06, 0x05, 0x01]);
    assert_eq!(header.record_len(), 0x01_0203 + 8);
}

#[test]
fn lengths_are_accepted_from_1_up_to_their_limits() {
    let parse = |payload_len, raw_len| ChunkHeader::parse(&bytes(0, payload_len, 1, raw_len));
    for (payload_len, raw_len) in [(1, 1), (1, 131_072), (262_144, 1), (262_144, 131_072)] {
        let header = parse(payload_len, raw_len).unwrap();
        assert_eq!(ChunkHeader::parse(&header.to_bytes()), Ok(header));
    }
    assert_eq!(parse(0, 1), Err(HeaderError::PayloadEmpty));
    assert_eq!(parse(262_145, 1), Err(HeaderError::PayloadTooLong { len: 262_145 }));
    assert_eq!(parse(16_777_215, 1), Err(HeaderError::PayloadTooLong { len: 16_777_215 }));
    assert_eq!(parse(1, 0), Err(HeaderError::RawEmpty));
    assert_eq!(parse(1, 131_073), Err(HeaderError::RawTooLong { len: 131_073 }));
    assert_eq!(parse(0, 0), Err(HeaderError::PayloadEmpty), "the payload is judged first");
}

#[test]
fn only_version_0_and_schemes_0_to_2_are_accepted() {
    for byte in 0..=255 {
        let version = ChunkHeader::parse(&bytes(byte, 5, 0, 5));
        if byte > 0 {
            assert_eq!(version, Err(HeaderError::Version { found: byte }));
        }
        let scheme = ChunkHeader::parse(&bytes(0, 5, byte, 5));
        if byte > 2 {
            assert_eq!(scheme, Err(HeaderError::Scheme { found: byte }));
        } else {
            assert_eq!(scheme.unwrap().scheme.as_byte(), byte);
        }
    }
}

#[test]
fn uncompressed_chunk_has_equal_lengths() {
    let error = HeaderError::StoredLen { payload_len: 4, raw_len: 5 };
    assert_eq!(ChunkHeader::parse(&bytes(0, 4, 0, 5)), Err(error));
    assert_eq!(error.field_offset(), 5);
    assert!(ChunkHeader::parse(&bytes(0, 4, 1, 5)).is_ok());
}

#[test]
fn header_beyond_24_bit_lengths_is_written_as_unreadable() {
    let header = ChunkHeader { payload_len: (1 << 24) + 5, scheme: Scheme::None, raw_len: (1 << 24) + 5 };
    assert_eq!(ChunkHeader::parse(&header.to_bytes()), Err(HeaderError::PayloadTooLong { len: (1 << 24) - 1 }));
}
