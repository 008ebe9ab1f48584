//! Rows to values. A row that does not parse is an [`Inconsistent`], never a panic and never a
//! guess.

use super::error::Inconsistent;
use super::{ChunkColumns, XorbPart, XorbRow, XorbState};
use crate::format::compression::Scheme;
use crate::format::xorb::Layout;
use crate::format::{ChunkHash, XorbHash};
use crate::runtime::incarnation::Incarnation;

pub(super) fn xorb_hash(bytes: &[u8]) -> Result<XorbHash, Inconsistent> {
    let bytes = bytes.try_into().map_err(|_| Inconsistent {
        table: "xorbs",
        column: "hash",
        key: "a row".to_owned(),
        reason: format!("{} bytes, not 32", bytes.len()),
    })?;
    Ok(XorbHash::from_bytes(bytes))
}

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

pub(super) fn state(hash: &XorbHash, value: i64) -> Result<XorbState, Inconsistent> {
    match value {
        0 => Ok(XorbState::Staged),
        1 => Ok(XorbState::Live),
        2 => Ok(XorbState::Condemned),
        3 => Ok(XorbState::Deleting),
        _ => Err(invalid("xorbs", "state", hash, format!("{value} is no state"))),
    }
}

pub(super) fn xorb(
    hash: XorbHash,
    incarnation: Incarnation,
    crc64: i64,
    layout: &[u8],
) -> Result<XorbRow, Inconsistent> {
    let layout = self::layout(&hash, layout)?;
    Ok(XorbRow { hash, incarnation, crc64: crc64.cast_unsigned(), layout, is_damaged: false, replaced_at: None })
}

pub(super) fn layout(hash: &XorbHash, packed: &[u8]) -> Result<Layout, Inconsistent> {
    Layout::parse(packed).map_err(|error| invalid("xorbs", "layout", hash, error.to_string()))
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

/// Parts of both columns, with the lengths of the whole columns. The layout begins one entry before
/// the first chunk, if there is one.
pub(super) fn part(
    xorb: XorbHash,
    start: u32,
    (layout, layout_len): (&[u8], i64),
    (hashes, hashes_len): (&[u8], i64),
) -> Result<XorbPart, Inconsistent> {
    // Whole chunks: 8 bytes of layout and 32 of hash each.
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
