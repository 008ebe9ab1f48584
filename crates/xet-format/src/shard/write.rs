//! Writing shards: uploads of clients, and responses to deduplication queries.

use super::error::WriteError;
use super::footer::{self, Footer};
use super::header::{self, FooterMode};
use super::{CasInfo, FileInfo, RECORD_LEN, Shard, cas_info, file_info};
use crate::HmacKey;

/// The shard as a client uploads it: without lookup tables and footer (spec 4.8).
///
/// [`parse`](super::parse()) gives the same value back.
///
/// # Errors
///
/// `parse` would refuse or drop a part of the written shard. The error says which record that is.
pub fn write_upload(shard: &Shard) -> Result<Vec<u8>, WriteError> {
    let mut out = Vec::with_capacity(upload_len(shard));
    header::write(&mut out, FooterMode::Absent);
    file_info::write_section(&mut out, &shard.files)?;
    cas_info::write_section(&mut out, &shard.xorbs, &HmacKey::NONE)?;
    Ok(out)
}

/// Length in bytes of the uploaded shard, so that the buffer gets exactly this capacity. A buffer
/// that grows would take up to three times the memory, because growing copies it to a larger one.
fn upload_len(shard: &Shard) -> usize {
    let records_of = |file: &FileInfo| {
        let range_hashes = file.range_hashes.as_ref().map_or(0, Vec::len);
        file.terms
            .len()
            .saturating_add(range_hashes)
            .saturating_add(usize::from(file.sha256.is_some()))
            .saturating_add(1)
    };
    let files = shard.files.iter().map(records_of).fold(0, usize::saturating_add);
    let xorbs = shard.xorbs.iter().map(|xorb| xorb.chunks.len().saturating_add(1)).fold(0, usize::saturating_add);
    // Three more records: the header and two bookends.
    let record_count = files.saturating_add(xorbs).saturating_add(3);
    usize::try_from(RECORD_LEN).unwrap_or(usize::MAX).saturating_mul(record_count)
}

/// The response to a chunk query (spec 4.9).
#[derive(Clone, Copy, Debug)]
pub struct DedupResponse<'a> {
    /// The xorb with the queried chunk, and optionally others. Their chunk hashes are not blinded
    /// yet.
    ///
    /// A xorb of one chunk has that chunk's hash, and xorb hashes are not blinded: such a xorb may
    /// only be listed if it holds the queried chunk (spec 6.2, rule 9).
    pub xorbs: &'a [CasInfo],
    /// The key that blinds the chunk hashes. Use a fresh key for each response, or use one key only
    /// for a short time.
    pub key: HmacKey,
    /// When the response was made, in seconds since 1970.
    pub created_unix_secs: u64,
    /// Expiry in seconds since 1970. Clients discard expired shards, so 0 is invalid.
    pub key_expires_unix_secs: u64,
}

/// Writes the shard of a deduplication response: xorbs with blinded chunk hashes, no files, and the
/// footer that clients require.
///
/// # Errors
///
/// A xorb is not well-formed, as for [`write_upload`].
pub fn write_dedup_response(response: &DedupResponse<'_>) -> Result<Vec<u8>, WriteError> {
    let mut out = Vec::new();
    header::write(&mut out, FooterMode::Present);
    file_info::write_section(&mut out, &[])?;
    let xorb_info_offset = out.len() as u64;
    cas_info::write_section(&mut out, response.xorbs, &response.key)?;
    let footer = Footer {
        xorb_info_offset,
        footer_offset: out.len() as u64,
        key: response.key,
        created_unix_secs: response.created_unix_secs,
        key_expires_unix_secs: response.key_expires_unix_secs,
        stored_bytes: response.xorbs.iter().map(|xorb| u64::from(xorb.raw_len)).fold(0, u64::saturating_add),
    };
    footer::write(&mut out, &footer);
    Ok(out)
}
