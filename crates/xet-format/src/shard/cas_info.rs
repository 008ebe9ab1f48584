//! The xorb section of a shard: xorbs and their chunks (spec 4.4, 4.5).

use std::collections::HashSet;

use super::error::{Kind, ParseError};
use super::file_info::{write_bookend, write_record};
use super::{BOOKEND, RECORD_LEN};
use crate::limits::{MAX_CHUNK_RAW_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN};
use crate::reader::Reader;
use crate::{ChunkHash, HmacKey, XorbHash};

/// Flag of a chunk: clients may query it for global deduplication, whatever its hash is.
const DEDUP_ELIGIBLE: u32 = 1 << 31;

/// A xorb and all its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CasInfo {
    /// The xorb's hash.
    pub hash: XorbHash,
    /// Its chunks in order, 1 to 8192.
    pub chunks: Vec<CasChunk>,
    /// Raw bytes of the xorb: the sum over its chunks.
    pub raw_len: u32,
}

/// One chunk of a xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CasChunk {
    /// The chunk's hash; in a deduplication response it is blinded with the key of the response.
    pub hash: ChunkHash,
    /// Where the chunk begins in the raw contents of the xorb: at the end of the chunk before it.
    pub raw_offset: u32,
    /// How many raw bytes it has.
    pub raw_len: u32,
    /// Whether clients may query it for global deduplication, whatever its hash is (spec 1.8, rule
    /// c).
    pub dedup_eligible: bool,
}

impl CasInfo {
    /// Checks the xorb against the limits. `offset` is where its block begins in the shard. The
    /// parser and the writer both use this check.
    fn check(&self, offset: u64) -> Result<(), ParseError> {
        if u64::from(self.raw_len) > MAX_XORB_RAW_LEN {
            return Err(Kind::XorbTooLarge { raw_len: self.raw_len }.at(offset));
        }
        let mut raw_end: u32 = 0;
        for (chunk, index) in self.chunks.iter().zip(1_u64..) {
            let place = offset.saturating_add(index.saturating_mul(RECORD_LEN));
            if !(1..=MAX_CHUNK_RAW_LEN).contains(&chunk.raw_len) {
                return Err(Kind::ChunkLen { raw_len: chunk.raw_len }.at(place));
            }
            if chunk.raw_offset != raw_end {
                return Err(Kind::ChunkOffset { stated: chunk.raw_offset, expected: raw_end }.at(place));
            }
            // At most 8192 chunks of 128 KiB are 2^30 bytes, so this does not saturate.
            raw_end = raw_end.saturating_add(chunk.raw_len);
        }
        if self.raw_len != raw_end {
            return Err(Kind::XorbLen { stated: self.raw_len, actual: raw_end }.at(offset));
        }
        Ok(())
    }
}

/// Whether a xorb can have that many chunks.
const fn check_count(count: u32) -> Result<(), Kind> {
    match count {
        0 => Err(Kind::XorbEmpty),
        1..=MAX_XORB_CHUNK_COUNT => Ok(()),
        _ => Err(Kind::XorbChunkCount { count }),
    }
}

/// What the parser does with a second entry of the same xorb. Clients list each xorb once. A
/// duplicate adds no information, but costs memory for up to 8192 chunks and work to prove them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DuplicatePolicy {
    /// The parser refuses the shard.
    Refused,
    /// The parser checks the entry like any other and then drops it.
    Dropped,
}

/// Reads the xorb section up to and including its bookend, the record that ends it.
pub(super) fn parse_section(reader: &mut Reader<'_>, duplicates: DuplicatePolicy) -> Result<Vec<CasInfo>, ParseError> {
    let mut xorbs = Vec::new();
    let mut seen = HashSet::new();
    loop {
        let start = reader.offset();
        let mut header = reader.sub(RECORD_LEN)?;
        let hash = header.array()?;
        if hash == BOOKEND {
            return Ok(xorbs);
        }
        let _flags = header.u32()?;
        let chunk_count = header.u32()?;
        let raw_len = header.u32()?;
        // The length on disk. Today's clients write 0, and no other client writes the true length
        // (spec 9, row 15).
        let _serialized_len = header.u32()?;
        check_count(chunk_count).map_err(|kind| kind.at(start))?;
        let is_new = seen.insert(hash);
        if !is_new && duplicates == DuplicatePolicy::Refused {
            return Err(Kind::DuplicateXorb.at(start));
        }
        let chunks = parse_chunks(reader, chunk_count)?;
        let xorb = CasInfo { hash: XorbHash::from_bytes(hash), chunks, raw_len };
        xorb.check(start)?;
        if is_new {
            xorbs.push(xorb);
        }
    }
}

fn parse_chunks(reader: &mut Reader<'_>, count: u32) -> Result<Vec<CasChunk>, ParseError> {
    // Takes all records before it allocates: if the shard is too short for them, this fails first.
    let mut records = reader.sub(u64::from(count).saturating_mul(RECORD_LEN))?;
    let mut chunks = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    while !records.is_at_end() {
        let hash = ChunkHash::from_bytes(records.array()?);
        let raw_offset = records.u32()?;
        let raw_len = records.u32()?;
        let flags = records.u32()?;
        let _unused = records.u32()?;
        chunks.push(CasChunk { hash, raw_offset, raw_len, dedup_eligible: flags & DEDUP_ELIGIBLE != 0 });
    }
    Ok(chunks)
}

/// Writes the xorb section with its bookend and blinds the chunk hashes with `key`. Returns an
/// error for xorbs that the parser would refuse.
pub(super) fn write_section(out: &mut Vec<u8>, xorbs: &[CasInfo], key: &HmacKey) -> Result<(), ParseError> {
    let mut seen = HashSet::new();
    for xorb in xorbs {
        let offset = out.len() as u64;
        if !seen.insert(xorb.hash) {
            return Err(Kind::DuplicateXorb.at(offset));
        }
        if *xorb.hash.as_bytes() == BOOKEND {
            return Err(Kind::BookendHash.at(offset));
        }
        let count = u32::try_from(xorb.chunks.len()).unwrap_or(u32::MAX);
        check_count(count).map_err(|kind| kind.at(offset))?;
        xorb.check(offset)?;
        write_record(out, xorb.hash.as_bytes(), [0, count, xorb.raw_len, 0]);
        for chunk in &xorb.chunks {
            let flags = if chunk.dedup_eligible { DEDUP_ELIGIBLE } else { 0 };
            write_record(out, key.blind(&chunk.hash).as_bytes(), [chunk.raw_offset, chunk.raw_len, flags, 0]);
        }
    }
    write_bookend(out);
    Ok(())
}
