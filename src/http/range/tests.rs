use super::RangeError::{Malformed, NotSatisfiable};
use super::{RangeError, parse_byte_ranges, parse_closed_ranges};

/// Parses a header for a representation of ten bytes.
fn check_bytes(header: &str, expected: Result<Option<&[(u64, u64)]>, RangeError>) {
    let ranges = parse_byte_ranges(header, 10)
        .map(|ranges| ranges.map(|ranges| ranges.iter().map(|range| (range.start(), range.end())).collect::<Vec<_>>()));
    assert_eq!(ranges, expected.map(|ranges| ranges.map(<[_]>::to_vec)), "Range: {header}");
}

#[test]
fn byte_ranges_are_inclusive_and_clamped_to_the_end() {
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
fn multiple_ranges_keep_order_and_drop_those_past_the_end() {
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
fn overlapping_ranges_larger_than_the_file_are_refused() {
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

#[test]
fn closed_ranges_have_a_start_and_an_end_and_are_not_clamped() {
    let ranges = |text: &str| {
        let ranges = parse_closed_ranges(text)?;
        Some(ranges.iter().map(|range| (range.start(), range.end())).collect::<Vec<_>>())
    };
    assert_eq!(ranges("bytes=0-9, 20-29"), Some(vec![(0, 10), (20, 30)]));
    assert_eq!(ranges("Bytes=7-18446744073709551615"), Some(vec![(7, u64::MAX)]));
    assert_eq!(ranges("bytes=7-99999999999999999999"), Some(vec![(7, u64::MAX)]));
    for text in ["", "bytes", "bytes=", "bytes=,", "bytes=0-,1-2", "bytes=0-1,", "bytes=-1", "bytes=2-1", "bytes=1-2-3"]
    {
        assert_eq!(ranges(text), None, "{text}");
    }
    assert_eq!(ranges(&format!("bytes={}", vec!["0-0"; 1024].join(","))).map(|ranges| ranges.len()), Some(1024));
    assert_eq!(ranges(&format!("bytes={}", vec!["0-0"; 1025].join(","))), None);
}
