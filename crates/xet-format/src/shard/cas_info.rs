//! What a xorb is made of (spec 4.4, 4.5).

use std::collections::HashSet;

use super::error::{Kind, ParseError};
use super::file_info::{write_bookend, write_record};
use super::{BOOKEND, RECORD_LEN};
use crate::limits::{MAX_CHUNK_RAW_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN};
use crate::reader::Reader;
use crate::{ChunkHash, HmacKey, XorbHash};

/// Flag of a chunk: clients may ask for it in the global index, whatever its hash.
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
    /// The chunk's hash; in a deduplication response blinded with its key.
    pub hash: ChunkHash,
    /// Where the chunk begins in the raw contents of the xorb: the end of the one before.
    pub raw_offset: u32,
    /// Its raw bytes.
    pub raw_len: u32,
    /// Whether clients may ask for it in the global index, whatever its hash (spec 1.8, rule c).
    pub dedup_eligible: bool,
}

impl CasInfo {
    /// Whether a xorb can be like this at all; the offset is that of its block. Parsers and writers
    /// agree on it.
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
            // At most 8192 chunks of 128 KiB: 2^30 bytes.
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

/// Treatment of a duplicate xorb entry. Clients list each xorb once; a duplicate costs the memory
/// and the proof of up to 8192 chunks without new information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubled {
    /// The shard is refused.
    Refused,
    /// It is read like any, and then dropped.
    Dropped,
}

/// Reads the xorb section up to and with its bookend.
pub(super) fn parse_section(reader: &mut Reader<'_>, doubled: Doubled) -> Result<Vec<CasInfo>, ParseError> {
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
        // The length on disk: always 0 from today's clients, and never true from others (spec 9,
        // row 15).
        let _serialized_len = header.u32()?;
        check_count(chunk_count).map_err(|kind| kind.at(start))?;
        let is_new = seen.insert(hash);
        if !is_new && doubled == Doubled::Refused {
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
    // All records at once: the shard has that many bytes, or nothing is allocated.
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

/// Writes the xorb section with its bookend, chunk hashes blinded with `key`. What the parser would
/// refuse is an error.
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
