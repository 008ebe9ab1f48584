//! Reading shards: uploads of clients, and responses to deduplication queries.

use super::cas_info::Doubled;
use super::error::{Kind, ParseError};
use super::header::{self, FooterMode};
use super::{CasInfo, RECORD_LEN, Shard, cas_info, file_info, footer};
use crate::HmacKey;
use crate::reader::Reader;

/// Reads a shard from the first byte to the last.
///
/// The one budget for all of it is the length of `bytes`: what a record announces is taken from
/// that before anything is allocated for it (spec 4.10), and the values returned are a small
/// multiple of it.
///
/// Where the header announces a footer, everything behind the second section is skipped and not
/// judged: lookup tables and a footer, or nothing at all, which hf_xet 1.1.6 to 1.1.10 and 1.2.0
/// send (spec 4.8). Flags and reserved fields that have no meaning are ignored, but for unknown
/// flags of a file: those could announce records.
///
/// # Errors
///
/// The bytes are not a well-formed shard of version 2, end before it does, or go on after it
/// although no footer is announced.
pub fn parse(bytes: &[u8]) -> Result<Shard, ParseError> {
    parse_with(bytes, Doubled::Refused)
}

/// Like [`parse`], for a shard that is stored already. Earlier versions accepted a shard that lists
/// a xorb twice; the second mention is ignored here.
///
/// # Errors
///
/// As [`parse`], except for a xorb that is listed twice.
pub fn parse_stored(bytes: &[u8]) -> Result<Shard, ParseError> {
    parse_with(bytes, Doubled::Dropped)
}

fn parse_with(bytes: &[u8], doubled: Doubled) -> Result<Shard, ParseError> {
    let mut reader = Reader::new(bytes);
    let footer = header::parse(&mut reader)?;
    let files = file_info::parse_section(&mut reader)?;
    let xorbs = cas_info::parse_section(&mut reader, doubled)?;
    match footer {
        FooterMode::Absent => reader.finish()?,
        FooterMode::Present => {}
    }
    Ok(Shard { files, xorbs })
}

/// The response to a chunk query, as the client reads it; the server writes
/// [`DedupResponse`](super::DedupResponse).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupShard {
    /// Xorbs with all their chunks. Their chunk hashes are blinded with `key`.
    pub xorbs: Vec<CasInfo>,
    /// What a client blinds its own chunk hashes with to find them among these.
    pub key: HmacKey,
    /// When this was made, in seconds since 1970.
    pub created_unix_secs: u64,
    /// Until when it may be kept, in seconds since 1970; 0 for "only now".
    pub key_expires_unix_secs: u64,
}

/// Reads the shard of a deduplication response, from the first byte to the last (spec 4.9).
///
/// Like [`parse`] it takes its only budget from the length of `bytes`. Files in it are read and
/// dropped: there should be none, but the reference server responds with the shard as it was
/// uploaded. The described xorbs are only claims; a client that relies on a false one makes a shard
/// that the server rejects.
///
/// # Errors
///
/// The bytes are not a well-formed shard of version 2 with a footer, or more bytes follow.
pub fn parse_dedup_response(bytes: &[u8]) -> Result<DedupShard, ParseError> {
    let mut reader = Reader::new(bytes);
    if header::parse(&mut reader)? == FooterMode::Absent {
        // The length of the footer is the last field of the header.
        return Err(Kind::FooterAbsent.at(RECORD_LEN.saturating_sub(8)));
    }
    file_info::parse_section(&mut reader)?;
    let xorbs = cas_info::parse_section(&mut reader, Doubled::Dropped)?;
    let footer::Told { key, created_unix_secs, key_expires_unix_secs } = footer::parse(reader)?;
    Ok(DedupShard { xorbs, key, created_unix_secs, key_expires_unix_secs })
}
