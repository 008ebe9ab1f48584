//! The `Range` header, in bytes (RFC 9110, section 14). The ranges of `?range=`, in chunks, are
//! [`ChunkRangeSpec`](crate::format::ChunkRangeSpec).
//!
//! Pure. In here the inclusive notation of HTTP becomes half-open, once.

use crate::format::ByteRange;

/// Ranges in one header, at most. Upstream puts at most 500 into one URL; a header with more is not
/// from a client.
const MAX_RANGE_COUNT: usize = 1024;

/// Why a text is no range, or there is nothing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeError {
    /// Not of the form.
    Malformed,
    /// Of the form, but nothing is there.
    NotSatisfiable,
}

/// The byte ranges of a `Range` header over something of `len` bytes; `None` where the header is to
/// be ignored because its unit is not bytes.
///
/// Ranges are clamped, and those past the end left out, as RFC 9110 has it. Too many, or so many
/// overlapping ones that they ask for more than there is, are refused as
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
            // RFC 9110, section 5.6.1: recipients must take empty list elements.
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

/// The ranges of a text in which each has a start and an end, like `bytes=0-9,20-29`. `None` for
/// anything else, for no range, and for too many.
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

/// One element of the list; `None` where nothing of it is there.
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
    // `last` may be u64::MAX; clamping to the length comes first, so that adding 1 cannot overflow.
    Ok(ByteRange::new(first, last.saturating_add(1).min(len)))
}

/// Digits only; more than fit are taken as "very many", since their meaning is clear.
fn parse_number(text: &str) -> Result<u64, RangeError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RangeError::Malformed);
    }
    Ok(text.parse().unwrap_or(u64::MAX))
}

// The path because fuzz/ includes this file in another place.
#[cfg(test)]
#[path = "range/tests.rs"]
mod tests;
