//! The one pure file of `http`, with a door that the targets can reach.

use crate::format::ByteRange;

#[path = "../../src/http/range.rs"]
mod range;

/// What the server makes of a `Range` header; `Err` is one word that says why not.
///
/// # Errors
///
/// It is refused.
pub fn parse_byte_ranges(header: &str, len: u64) -> Result<Option<Vec<ByteRange>>, String> {
    range::parse_byte_ranges(header, len).map_err(|error| format!("{error:?}"))
}
