//! Reading a shard that a client uploads.

use super::error::ParseError;
use super::header::{self, FooterMode};
use super::{Shard, cas_info, file_info, footer};
use crate::format::reader::Reader;

/// Reads a shard from the first byte to the last.
///
/// The one budget for all of it is the length of `bytes`: what a record announces is taken from that before anything is
/// allocated for it (spec 4.10), and the values returned are a small multiple of it.
///
/// Lookup tables and a footer may follow the second section where the header announces them; they are skipped. Flags
/// and reserved fields that have no meaning are ignored, but for unknown flags of a file: those could announce records.
///
/// # Errors
///
/// The bytes are not a well-formed shard of version 2, or there are fewer or more of them than it has.
pub fn parse(bytes: &[u8]) -> Result<Shard, ParseError> {
    let mut reader = Reader::new(bytes);
    let footer = header::parse(&mut reader)?;
    let files = file_info::parse_section(&mut reader)?;
    let xorbs = cas_info::parse_section(&mut reader)?;
    match footer {
        FooterMode::Absent => reader.finish()?,
        FooterMode::Present => footer::skip(reader)?,
    }
    Ok(Shard { files, xorbs })
}
