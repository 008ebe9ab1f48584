//! The footer of a shard: its last 200 bytes, in deduplication responses and from some clients
//! (spec 4.7).

use super::error::{Kind, ParseError};
use super::{FOOTER_LEN, RECORD_LEN};
use crate::HmacKey;
use crate::reader::Reader;

/// The only version.
const VERSION: u64 = 1;

/// Bytes between the version and the key: the offsets of two sections, and the offsets and entry
/// counts of three lookup tables.
const OFFSETS_LEN: u64 = 64;

/// Bytes between the times and the footer's own offset: reserved bytes, and three sums of lengths.
const STATISTICS_LEN: u64 = 72;

const _: () = assert!(8 + OFFSETS_LEN + 32 + 16 + STATISTICS_LEN + 8 == FOOTER_LEN, "spec 4.7 states these places");

/// Footer fields of a deduplication response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) xorb_info_offset: u64,
    pub(super) footer_offset: u64,
    pub(super) key: HmacKey,
    pub(super) created_unix_secs: u64,
    pub(super) key_expires_unix_secs: u64,
    pub(super) stored_bytes: u64,
}

/// The fields of a footer that a reader uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FooterFields {
    pub(super) key: HmacKey,
    pub(super) created_unix_secs: u64,
    pub(super) key_expires_unix_secs: u64,
}

/// Reads the footer after the lookup tables, which are skipped.
///
/// The offsets of sections and tables are not used. The version and the footer's own offset are
/// checked, because they show whether the shard is complete: if it was truncated within its lookup
/// tables, other bytes stand in the places of these two fields.
pub(super) fn parse(mut reader: Reader<'_>) -> Result<FooterFields, ParseError> {
    let Some(tables_len) = reader.left().checked_sub(FOOTER_LEN) else {
        return Err(Kind::Truncated { wanted: FOOTER_LEN, left: reader.left() }.at(reader.offset()));
    };
    reader.take(tables_len)?;
    let start = reader.offset();
    let version = reader.u64()?;
    if version != VERSION {
        return Err(Kind::FooterVersion { found: version }.at(start));
    }
    reader.take(OFFSETS_LEN)?;
    let key = HmacKey::from_bytes(reader.array()?);
    let (created_unix_secs, key_expires_unix_secs) = (reader.u64()?, reader.u64()?);
    reader.take(STATISTICS_LEN)?;
    let offset = reader.offset();
    let found = reader.u64()?;
    if found != start {
        return Err(Kind::FooterOffset { found }.at(offset));
    }
    reader.finish()?;
    Ok(FooterFields { key, created_unix_secs, key_expires_unix_secs })
}

/// Writes a footer without lookup tables.
///
/// The three table offsets must be the offset of the footer, although the specification calls these
/// bytes a zero buffer. A client scans the xorb section up to the first table offset. If this
/// offset is 0, the client computes a negative length, which wraps to a huge one, and aborts when
/// it allocates this length (spec 4.9).
pub(super) fn write(out: &mut Vec<u8>, footer: &Footer) {
    let mut number = |value: u64| out.extend_from_slice(&value.to_le_bytes());
    number(VERSION);
    number(RECORD_LEN);
    number(footer.xorb_info_offset);
    for _table in ["files", "xorbs", "chunks"] {
        number(footer.footer_offset);
        number(0); // entries of the table
    }
    out.extend_from_slice(footer.key.as_bytes());
    // The same closure again: the first one cannot be used after `out` was borrowed for the key.
    let mut number = |value: u64| out.extend_from_slice(&value.to_le_bytes());
    number(footer.created_unix_secs);
    number(footer.key_expires_unix_secs);
    for _reserved in 0..6 {
        number(0);
    }
    number(0); // bytes on disk: clients write 0
    number(0); // bytes of the files in the shard: there are none
    number(footer.stored_bytes);
    number(footer.footer_offset);
}
