use super::RangeError::{Malformed, NotSatisfiable};
use super::{RangeError, parse_byte_ranges, parse_chunk_range};

/// Chunks of a xorb of four.
fn check_chunks(text: &str, expected: Result<(u32, u32), RangeError>) {
    let range = parse_chunk_range(text, 4).map(|range| (range.start(), range.end()));
    assert_eq!(range, expected, "?range={text}");
}

/// Bytes of something of ten.
fn check_bytes(header: &str, expected: Result<Option<&[(u64, u64)]>, RangeError>) {
    let ranges = parse_byte_ranges(header, 10)
        .map(|ranges| ranges.map(|ranges| ranges.iter().map(|range| (range.start(), range.end())).collect::<Vec<_>>()));
    assert_eq!(ranges, expected.map(|ranges| ranges.map(<[_]>::to_vec)), "Range: {header}");
}

#[test]
fn chunk_ranges_are_half_open_and_never_clamped() {
    check_chunks("0-4", Ok((0, 4)));
    check_chunks("1-2", Ok((1, 2)));
    check_chunks("3", Ok((3, 4)));
    check_chunks("2-", Ok((2, 4)));
    check_chunks("-1", Ok((3, 4)));
    check_chunks("-4", Ok((0, 4)));
    check_chunks("00-04", Ok((0, 4)));
}

#[test]
fn a_chunk_range_past_the_end_is_not_satisfiable_however_large_its_numbers() {
    for text in ["0-5", "4-5", "4", "4-", "5-", "-5", "0-99999999999999999999", "99999999999999999999"] {
        check_chunks(text, Err(NotSatisfiable));
    }
}

#[test]
fn an_empty_backward_or_garbled_chunk_range_is_malformed() {
    for text in ["", "-", "-0", "2-2", "3-1", "a", "1-b", "+1", " 1", "1-2-3", "1,2", "0x1", "1.", "--1", "9-9"] {
        check_chunks(text, Err(Malformed));
    }
}

#[test]
fn byte_ranges_are_inclusive_in_the_header_and_clamped_to_the_end() {
    check_bytes("bytes=0-9", Ok(Some(&[(0, 10)])));
    check_bytes("bytes=0-0", Ok(Some(&[(0, 1)])));
    check_bytes("bytes=5-", Ok(Some(&[(5, 10)])));
    check_bytes("bytes=-3", Ok(Some(&[(7, 10)])));
    check_bytes("bytes=-30", Ok(Some(&[(0, 10)])));
    check_bytes("bytes=9-10", Ok(Some(&[(9, 10)])));
    check_bytes("bytes=0-18446744073709551615", Ok(Some(&[(0, 10)])));
    check_bytes("bytes=0-99999999999999999999999", Ok(Some(&[(0, 10)])));
    check_bytes("Bytes=1-2", Ok(Some(&[(1, 3)])));
}

#[test]
fn several_byte_ranges_keep_their_order_and_lose_those_past_the_end() {
    check_bytes("bytes=0-1,4-5", Ok(Some(&[(0, 2), (4, 6)])));
    check_bytes("bytes=4-5, 0-1", Ok(Some(&[(4, 6), (0, 2)])));
    check_bytes("bytes=0-1,10-11", Ok(Some(&[(0, 2)])));
    check_bytes("bytes=, 0-1 ,\t,", Ok(Some(&[(0, 2)])));
}

#[test]
fn byte_ranges_with_nothing_in_them_are_not_satisfiable() {
    for header in ["bytes=10-", "bytes=10-11", "bytes=-0", "bytes=11-12,13-14", "bytes=18446744073709551615-"] {
        check_bytes(header, Err(NotSatisfiable));
    }
}

#[test]
fn overlapping_ranges_that_ask_for_more_than_there_is_are_refused() {
    check_bytes("bytes=0-9,0-9", Err(NotSatisfiable));
    check_bytes("bytes=0-8,8-9", Err(NotSatisfiable));
    let many = format!("bytes={}", vec!["0-0"; 2000].join(","));
    assert_eq!(parse_byte_ranges(&many, u64::MAX), Err(NotSatisfiable));
}

#[test]
fn a_garbled_byte_range_is_malformed() {
    for header in [
        "bytes",
        "bytes=",
        "bytes=,",
        "bytes=a-b",
        "bytes=1",
        "bytes=2-1",
        "bytes=1-2-3",
        "bytes=- 1",
        "bytes=+1-2",
        "bytes=-",
    ] {
        check_bytes(header, Err(Malformed));
    }
}

#[test]
fn a_range_in_another_unit_is_ignored() {
    check_bytes("chunks=0-1", Ok(None));
    check_bytes("seconds=a", Ok(None));
}
