//! Ranges of chunks and of bytes as users and clients write them.

use crate::{ByteRange, ByteRangeSpec, ChunkRange, ChunkRangeSpec, ParseRangeError};

/// Resolves a range of a xorb of four chunks. `Ok(None)` is a range that goes past them.
fn check(text: &str, expected: Result<Option<(u32, u32)>, ParseRangeError>) {
    let range = text.parse::<ChunkRangeSpec>().map(|spec| spec.resolve(4));
    assert_eq!(range, expected.map(|range| range.and_then(|(start, end)| ChunkRange::new(start, end))), "{text}");
}

#[test]
fn chunk_ranges_are_half_open_and_never_clamped() {
    check("0-4", Ok(Some((0, 4))));
    check("1-2", Ok(Some((1, 2))));
    check("3", Ok(Some((3, 4))));
    check("2-", Ok(Some((2, 4))));
    check("-1", Ok(Some((3, 4))));
    check("-4", Ok(Some((0, 4))));
    check("00-04", Ok(Some((0, 4))));
}

#[test]
fn chunk_range_past_the_end_is_none_for_any_number() {
    for text in ["0-5", "4-5", "4", "4-", "5-", "-5", "0-99999999999999999999", "99999999999999999999"] {
        check(text, Ok(None));
    }
}

#[test]
fn an_empty_backward_or_garbled_chunk_range_is_refused() {
    for text in ["", "-", "-0", "2-2", "3-1", "a", "1-b", "+1", " 1", "1-2-3", "1,2", "0x1", "1.", "--1", "9-9"] {
        check(text, Err(ParseRangeError));
    }
}

#[test]
fn a_chunk_range_prints_as_it_was_asked_for() {
    for text in ["0-4", "3", "2-", "-1"] {
        assert_eq!(text.parse::<ChunkRangeSpec>().unwrap().to_string(), text);
    }
}

#[test]
fn a_byte_range_is_written_alike_and_counts_in_64_bits() {
    let resolve = |text: &str, len| text.parse::<ByteRangeSpec>().unwrap().resolve(len);
    assert_eq!(resolve("5000000000-5000000001", 6_000_000_000), ByteRange::new(5_000_000_000, 5_000_000_001));
    assert_eq!(resolve("-1", u64::MAX), ByteRange::new(u64::MAX - 1, u64::MAX));
    assert_eq!(resolve("-1", 0), None);
    assert_eq!(resolve("0-", 0), None);
    assert_eq!(resolve("3-9", 8), None);
}
