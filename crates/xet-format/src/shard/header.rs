//! The first 48 bytes of a shard (spec 4.1).

use super::error::{Kind, ParseError};
use super::{FOOTER_LEN, RECORD_LEN};
use crate::reader::Reader;

/// The first 32 bytes of every shard.
const TAG: [u8; 32] = *b"HFRepoMetaData\0\x55\x69\x67\x45\x6a\x7b\x81\x57\x83\xa5\xbd\xd9\x5c\xcd\xd1\x4a\xa9";

/// The only version.
const VERSION: u64 = 2;

/// Whether the header announces lookup tables and a footer after the second section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FooterMode {
    /// The shard ends with the second section.
    Absent,
    /// The header announces a footer. Some clients announce it and send none.
    Present,
}

/// Reads the header. It checks the version, as the specification requires, although the reference
/// client does not (spec 9, row 17).
pub(super) fn parse(reader: &mut Reader<'_>) -> Result<FooterMode, ParseError> {
    let start = reader.offset();
    let mut header = reader.sub(RECORD_LEN)?;
    if header.array()? != TAG {
        return Err(Kind::Tag.at(start));
    }
    let offset = header.offset();
    let version = header.u64()?;
    if version != VERSION {
        return Err(Kind::Version { found: version }.at(offset));
    }
    let offset = header.offset();
    let mode = match header.u64()? {
        0 => FooterMode::Absent,
        FOOTER_LEN => FooterMode::Present,
        found => return Err(Kind::FooterLen { found }.at(offset)),
    };
    header.finish()?;
    Ok(mode)
}

/// Writes the header.
pub(super) fn write(out: &mut Vec<u8>, footer: FooterMode) {
    let footer_len = match footer {
        FooterMode::Absent => 0,
        FooterMode::Present => FOOTER_LEN,
    };
    out.extend_from_slice(&TAG);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&footer_len.to_le_bytes());
}
