//! The `Range` header, in bytes (RFC 9110, section 14). Chunk ranges in `?range=` are parsed by
//! [`ChunkRangeSpec`](crate::format::ChunkRangeSpec).
//!
//! HTTP ranges include their last byte. They become half-open ranges here, and nowhere else.

use crate::format::ByteRange;

/// Maximum number of ranges in one header. The reference server puts at most 500 into one URL.
const MAX_RANGE_COUNT: usize = 1024;

/// Why a header selects no ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeError {
    /// The header is malformed.
    Malformed,
    /// The header is well-formed, but it selects nothing, too many ranges, or too many bytes.
    NotSatisfiable,
}

/// The byte ranges of a `Range` header for a representation of `len` bytes. `None` if the header
/// must be ignored because its unit is not bytes.
///
/// Ranges are clamped to the length, and ranges after the end are left out, as RFC 9110 says. Too
/// many ranges, or overlapping ones that together exceed the length, are refused as
/// [`RangeError::NotSatisfiable`] (RFC 9110, section 15.5.17).
pub(super) fn parse_byte_ranges(header: &str, len: u64) -> Result<Option<Vec<ByteRange>>, RangeError> {
    let Some((unit, set)) = header.split_once('=') else { return Err(RangeError::Malformed) };
    if !unit.eq_ignore_ascii_case("bytes") {
        return Ok(None);
    }
    let mut ranges = Vec::new();
    let mut total: u64 = 0;
    for spec in set.split(',') {
        let spec = spec.trim_matches([' ', '\t']);
        if spec.is_empty() {
            // RFC 9110, section 5.6.1: recipients must accept and ignore empty list elements.
            continue;
        }
        if let Some(range) = parse_byte_range(spec, len)? {
            total = total.saturating_add(range.byte_len());
            ranges.push(range);
        }
        if ranges.len() > MAX_RANGE_COUNT {
            return Err(RangeError::NotSatisfiable);
        }
    }
    if ranges.is_empty() {
        let is_empty_list = set.split(',').all(|spec| spec.trim_matches([' ', '\t']).is_empty());
        return Err(if is_empty_list { RangeError::Malformed } else { RangeError::NotSatisfiable });
    }
    if ranges.len() > 1 && total > len {
        return Err(RangeError::NotSatisfiable);
    }
    Ok(Some(ranges))
}

/// Parses a list in which each range has a first and a last byte, such as `bytes=0-9,20-29`. `None`
/// for anything else, for an empty list, and for too many ranges.
pub(super) fn parse_closed_ranges(text: &str) -> Option<Vec<ByteRange>> {
    let (unit, set) = text.split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") || set.split(',').count() > MAX_RANGE_COUNT {
        return None;
    }
    let parse = |spec: &str| {
        let (first, last) = spec.trim_matches([' ', '\t']).split_once('-')?;
        ByteRange::new(parse_number(first).ok()?, parse_number(last).ok()?.saturating_add(1))
    };
    set.split(',').map(parse).collect()
}

/// Parses one element of the list; `None` if it selects no bytes.
fn parse_byte_range(spec: &str, len: u64) -> Result<Option<ByteRange>, RangeError> {
    let (first, last) = spec.split_once('-').ok_or(RangeError::Malformed)?;
    if first.is_empty() {
        let suffix = parse_number(last)?;
        return Ok(ByteRange::new(len.saturating_sub(suffix), len));
    }
    let first = parse_number(first)?;
    if last.is_empty() {
        return Ok(ByteRange::new(first, len));
    }
    let last = parse_number(last)?;
    if last < first {
        return Err(RangeError::Malformed);
    }
    // The addition saturates, because `last` may be `u64::MAX`.
    Ok(ByteRange::new(first, last.saturating_add(1).min(len)))
}

/// Parses digits. Numbers that exceed 64 bits count as `u64::MAX`.
fn parse_number(text: &str) -> Result<u64, RangeError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RangeError::Malformed);
    }
    Ok(text.parse().unwrap_or(u64::MAX))
}

// The path is explicit, because `fuzz/` includes this file from another directory.
#[cfg(test)]
#[path = "range/tests.rs"]
mod tests;
