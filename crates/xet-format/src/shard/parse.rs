//! Reading shards: uploads of clients, and responses to deduplication queries.

use super::cas_info::DuplicatePolicy;
use super::error::{Kind, ParseError};
use super::header::{self, FooterMode};
use super::{CasInfo, RECORD_LEN, Shard, cas_info, file_info, footer};
use crate::HmacKey;
use crate::limits::{MAX_SHARD_FILE_COUNT, MAX_STORED_SHARD_FILE_COUNT};
use crate::reader::Reader;

/// Reads a shard from the first byte to the last.
///
/// The length of `bytes` bounds the memory: the records that a header announces must be present
/// before memory for them is allocated (spec 4.10). The result takes a small multiple of this
/// length.
///
/// If the header announces a footer, everything after the second section is skipped unchecked. This
/// may be lookup tables and a footer, or nothing, which hf_xet 1.1.6 to 1.1.10 and 1.2.0 send
/// (spec 4.8). Unknown flags and reserved fields are ignored. Unknown flags of a file are an error,
/// because they could announce further records.
///
/// # Errors
///
/// The bytes are not a well-formed shard of version 2, or end before the shard does. Without an
/// announced footer, bytes after the second section are an error, too.
pub fn parse(bytes: &[u8]) -> Result<Shard, ParseError> {
    parse_with(bytes, MAX_SHARD_FILE_COUNT, DuplicatePolicy::Refused)
}

/// Like [`parse`], for a shard that is stored already. Earlier versions of zorb accepted and stored
/// shards that list a xorb twice, so this function accepts them, too, and drops the second entry.
///
/// # Errors
///
/// Those of [`parse`], except for a xorb that is listed twice, and with a limit of files of its
/// own.
pub fn parse_stored(bytes: &[u8]) -> Result<Shard, ParseError> {
    parse_with(bytes, MAX_STORED_SHARD_FILE_COUNT, DuplicatePolicy::Dropped)
}

pub(super) fn parse_with(bytes: &[u8], file_limit: usize, duplicates: DuplicatePolicy) -> Result<Shard, ParseError> {
    let mut reader = Reader::new(bytes);
    let footer = header::parse(&mut reader)?;
    let files = file_info::parse_section(&mut reader, file_limit)?;
    let xorbs = cas_info::parse_section(&mut reader, duplicates)?;
    match footer {
        FooterMode::Absent => reader.finish()?,
        FooterMode::Present => {}
    }
    Ok(Shard { files, xorbs })
}

/// The response to a chunk query, as the client reads it. The server writes the response from a
/// [`DedupResponse`](super::DedupResponse).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupShard {
    /// Xorbs with all their chunks. Their chunk hashes are blinded with `key`.
    pub xorbs: Vec<CasInfo>,
    /// The key with which a client blinds its own chunk hashes to find them in `xorbs`.
    pub key: HmacKey,
    /// When the response was made, in seconds since 1970.
    pub created_unix_secs: u64,
    /// Until when a client may cache the response, in seconds since 1970; 0: do not cache.
    pub key_expires_unix_secs: u64,
}

/// Reads the shard of a deduplication response, from the first byte to the last (spec 4.9).
///
/// As in [`parse`], the length of `bytes` bounds the memory. A response should list no files, but
/// the reference server responds with the shard as it was uploaded, so files are read and dropped.
/// The listed xorbs are not proven: if an entry is false and a client relies on it, the server
/// rejects the shard that the client sends later.
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
    file_info::parse_section(&mut reader, MAX_STORED_SHARD_FILE_COUNT)?;
    let xorbs = cas_info::parse_section(&mut reader, DuplicatePolicy::Dropped)?;
    let footer::FooterFields { key, created_unix_secs, key_expires_unix_secs } = footer::parse(reader)?;
    Ok(DedupShard { xorbs, key, created_unix_secs, key_expires_unix_secs })
}
