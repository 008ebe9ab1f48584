//! Ranges as clients write them, in a `Range` header and in `?range=`: nothing panics, what is taken lies inside what
//! there is, and written down again it means the same.
//!
//! The input is a length of eight bytes, and then the text, which is tried as both.

use xet_format::{ByteRange, ChunkRangeSpec};

use self::parser::{parse_byte_ranges, parse_closed_ranges};

// Pure, like the formats. Building all of the server with sanitizers would take many times longer.
#[path = "../../src/http/range.rs"]
mod parser;

/// The target.
///
/// # Panics
///
/// A promise is broken.
pub fn check(input: &[u8]) {
    let Some((len, text)) = input.split_first_chunk::<8>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let len = u64::from_le_bytes(*len);
    // The fuzzer need not find the unit in front of every list.
    for text in [text, &format!("bytes={text}")] {
        header(text, len);
        closed(text);
    }
    chunks(text, len as u32);
}

fn header(text: &str, len: u64) {
    let parsed = parse_byte_ranges(text, len);
    assert_eq!(parse_byte_ranges(text, len), parsed);
    let Ok(Some(ranges)) = parsed else { return };
    assert!(!ranges.is_empty());
    let mut total = 0_u64;
    for range in &ranges {
        assert!(range.start() < range.end() && range.end() <= len, "{range} of {len}");
        total = total.saturating_add(range.byte_len());
    }
    assert!(ranges.len() == 1 || total <= len, "{total} of {len} in {} ranges", ranges.len());

    let written: Vec<String> = ranges.iter().map(inclusive).collect();
    let written = format!("Bytes= {}\t", written.join(" ,, "));
    assert_eq!(parse_byte_ranges(&written, len), Ok(Some(ranges)), "{text:?} became {written:?}");
}

fn closed(text: &str) {
    let Some(ranges) = parse_closed_ranges(text) else { return };
    assert!(!ranges.is_empty() && ranges.iter().all(|range| range.start() < range.end()), "{text:?}");
    let written: Vec<String> = ranges.iter().map(inclusive).collect();
    assert_eq!(parse_closed_ranges(&format!("bytes={}", written.join(", "))), Some(ranges), "{text:?}");
}

fn inclusive(range: &ByteRange) -> String {
    format!("{}-{}", range.start(), range.last())
}

fn chunks(text: &str, count: u32) {
    let Ok(spec) = text.parse::<ChunkRangeSpec>() else { return };
    assert_eq!(spec.to_string().parse(), Ok(spec), "{text:?}");
    for count in [count, count % 10, 0, u32::MAX] {
        let Some(range) = spec.resolve(count) else { continue };
        assert!(range.start() < range.end() && range.end() <= count, "{text:?} of {count} is {range}");
        let again: ChunkRangeSpec = range.to_string().parse().expect("what is printed can be parsed");
        assert_eq!(again.resolve(count), Some(range), "{text:?}");
    }
}
