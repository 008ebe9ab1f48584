//! Converts stored columns to values and back, for any database. A column that does not parse
//! gives the error [`Inconsistent`], never a panic and never a guess.

use super::error::Inconsistent;
use super::xorbs::{ChunkColumns, XorbPart, XorbState};
use crate::format::compression::Scheme;
use crate::format::xorb::Layout;
use crate::format::{ChunkHash, XorbHash};
use crate::runtime::incarnation::Incarnation;

pub(super) const fn incarnation(number: i64) -> Incarnation {
    Incarnation::from_number(number.cast_unsigned())
}

pub(super) const fn incarnation_to_sql(incarnation: Incarnation) -> i64 {
    incarnation.number().cast_signed()
}

pub(super) const fn state_to_sql(state: XorbState) -> i64 {
    match state {
        XorbState::Staged => 0,
        XorbState::Live => 1,
        XorbState::Condemned => 2,
        XorbState::Deleting => 3,
    }
}

pub(super) const fn state(value: i64) -> Option<XorbState> {
    match value {
        0 => Some(XorbState::Staged),
        1 => Some(XorbState::Live),
        2 => Some(XorbState::Condemned),
        3 => Some(XorbState::Deleting),
        _ => None,
    }
}

pub(super) fn chunk_columns(hash: &XorbHash, hashes: &[u8], schemes: &[u8]) -> Result<ChunkColumns, Inconsistent> {
    let (hashes, rest) = hashes.as_chunks::<32>();
    if !rest.is_empty() || hashes.len() != schemes.len() {
        let reason = format!("{} whole hashes and {} bytes for {} chunks", hashes.len(), rest.len(), schemes.len());
        return Err(invalid("xorb_chunks", "hashes", hash, reason));
    }
    let schemes = schemes.iter().map(|byte| {
        Scheme::from_byte(*byte)
            .ok_or_else(|| invalid("xorb_chunks", "schemes", hash, format!("{byte} is no compression scheme")))
    });
    Ok(ChunkColumns {
        hashes: hashes.iter().copied().map(ChunkHash::from_bytes).collect(),
        schemes: schemes.collect::<Result<_, _>>()?,
    })
}

/// Parses slices of the columns `layout` and `hashes`, each given with the length of the whole
/// column. If `start` is not 0, the slice of the layout begins one entry earlier, because an entry
/// says where its chunk ends.
pub(super) fn part(
    xorb: XorbHash,
    start: u32,
    (layout, layout_len): (&[u8], i64),
    (hashes, hashes_len): (&[u8], i64),
) -> Result<XorbPart, Inconsistent> {
    // Both columns must describe the same number of whole chunks: a chunk has 8 bytes of layout and
    // a hash of 32 bytes.
    if layout_len <= 0 || layout_len % 8 != 0 || layout_len.checked_mul(4) != Some(hashes_len) {
        let reason = format!("{layout_len} bytes of layout and {hashes_len} of hashes");
        return Err(invalid("xorb_chunks", "hashes", &xorb, reason));
    }
    let raw_lens = Layout::parse_raw_lens(layout, start)
        .map_err(|error| invalid("xorbs", "layout", &xorb, format!("from chunk {start} on: {error}")))?;
    let (hashes, rest) = hashes.as_chunks::<32>();
    if !rest.is_empty() || hashes.len() != raw_lens.len() {
        let reason = format!("from chunk {start} on: {} for {} chunks", hashes.len(), raw_lens.len());
        return Err(invalid("xorb_chunks", "hashes", &xorb, reason));
    }
    Ok(XorbPart { xorb, start, raw_lens, chunk_hashes: hashes.iter().copied().map(ChunkHash::from_bytes).collect() })
}

fn invalid(table: &'static str, column: &'static str, hash: &XorbHash, reason: String) -> Inconsistent {
    Inconsistent { table, column, key: format!("xorb {hash}"), reason }
}
