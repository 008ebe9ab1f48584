//! The file section of a shard: files and their terms (spec 4.2).

use std::collections::HashSet;

use super::error::{Kind, ParseError};
use super::{BOOKEND, RECORD_LEN, Sha256};
use crate::limits::{MAX_CHUNK_RAW_LEN, MAX_SHARD_TERM_CHUNK_COUNT, MAX_XORB_CHUNK_COUNT};
use crate::reader::Reader;
use crate::{ChunkRange, FileHash, RangeHash, XorbHash};

/// Flag of a file: range hashes follow the terms, one per term.
const WITH_RANGE_HASHES: u32 = 1 << 31;

/// Flag of a file: a record with the sha256 comes last.
const WITH_SHA256: u32 = 1 << 30;

/// A file: its hash, its terms, and optionally its range hashes and its sha256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// The file's hash as the client states it.
    pub hash: FileHash,
    /// Its contents, in order. The empty file has no terms.
    pub terms: Vec<Term>,
    /// One range hash per term, which proves that the client knows the chunks of the term. Present
    /// for all files of a shard or for none.
    pub range_hashes: Option<Vec<RangeHash>>,
    /// The sha256 that the client states, if any.
    pub sha256: Option<Sha256>,
}

/// Consecutive chunks of one xorb that are consecutive in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The xorb.
    pub xorb: XorbHash,
    /// Raw bytes of these chunks together, as the client states them.
    pub raw_len: u32,
    /// Which chunks of the xorb.
    pub chunks: ChunkRange,
}

impl FileInfo {
    /// Raw bytes of all terms: the length of the file, if the terms are true.
    #[must_use]
    pub fn raw_len(&self) -> u64 {
        self.terms.iter().map(|term| u64::from(term.raw_len)).fold(0, u64::saturating_add)
    }
}

impl Term {
    /// Checks that a xorb can have these chunks, and that so many chunks can have this length. The
    /// term is not compared with the xorb, whose chunks only the server knows that stores it.
    /// Parser and writer both use this check.
    fn check(&self) -> Result<(), Kind> {
        let count = self.chunks.count();
        if self.chunks.end() > MAX_XORB_CHUNK_COUNT {
            return Err(Kind::TermChunks { start: self.chunks.start(), end: self.chunks.end() });
        }
        // 8192 chunks of 128 KiB are 2^30 bytes, so this product stays within 32 bits.
        if self.raw_len < count || self.raw_len > count.saturating_mul(MAX_CHUNK_RAW_LEN) {
            return Err(Kind::TermLen { count, raw_len: self.raw_len });
        }
        Ok(())
    }
}

/// Reads the file section up to and including its bookend, with at most `limit` files. A second
/// entry of a file is checked like any other and then dropped.
pub(super) fn parse_section(reader: &mut Reader<'_>, limit: usize) -> Result<Vec<FileInfo>, ParseError> {
    let mut files: Vec<FileInfo> = Vec::new();
    let mut seen = HashSet::new();
    // Whether the first file has range hashes: then all must have them, else none may.
    let mut with_range_hashes = None;
    let mut chunks_left = MAX_SHARD_TERM_CHUNK_COUNT;
    loop {
        let start = reader.offset();
        let mut header = reader.sub(RECORD_LEN)?;
        let hash = header.array()?;
        if hash == BOOKEND {
            return Ok(files);
        }
        if files.len() == limit {
            return Err(Kind::TooManyFiles { limit }.at(start));
        }
        let flags = header.u32()?;
        let term_count = header.u32()?;
        if flags & !(WITH_RANGE_HASHES | WITH_SHA256) != 0 {
            return Err(Kind::FileFlags { found: flags }.at(start));
        }
        let has_range_hashes = flags & WITH_RANGE_HASHES != 0;
        if *with_range_hashes.get_or_insert(has_range_hashes) != has_range_hashes {
            return Err(Kind::MixedVerification.at(start));
        }
        let hash = FileHash::from_bytes(hash);
        check_count(hash, term_count).map_err(|kind| kind.at(start))?;
        let terms = parse_terms(reader, term_count, &mut chunks_left)?;
        let range_hashes = if has_range_hashes { Some(parse_range_hashes(reader, term_count)?) } else { None };
        let sha256 = if flags & WITH_SHA256 == 0 { None } else { Some(parse_sha256(reader)?) };
        if seen.insert(hash) {
            files.push(FileInfo { hash, terms, range_hashes, sha256 });
        }
    }
}

/// Checks the number of terms against the hash of the file. Only the empty file has no terms. With
/// another hash and no terms the hash is false, so the file is refused before it takes memory.
fn check_count(hash: FileHash, term_count: u32) -> Result<(), Kind> {
    if term_count == 0 && hash != FileHash::EMPTY { Err(Kind::TermsAbsent) } else { Ok(()) }
}

/// Takes `count` records at once. So if the shard is too short for them, the caller fails before it
/// allocates memory for them.
fn records<'a>(reader: &mut Reader<'a>, count: u32) -> Result<Reader<'a>, ParseError> {
    Ok(reader.sub(u64::from(count).saturating_mul(RECORD_LEN))?)
}

/// Reads the terms of one file. `chunks_left` is the number of chunks that further terms of the
/// shard may name.
fn parse_terms(reader: &mut Reader<'_>, count: u32, chunks_left: &mut u64) -> Result<Vec<Term>, ParseError> {
    let mut records = records(reader, count)?;
    let mut terms = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    while !records.is_at_end() {
        let offset = records.offset();
        let xorb = XorbHash::from_bytes(records.array()?);
        let _flags = records.u32()?;
        let raw_len = records.u32()?;
        let (start, end) = (records.u32()?, records.u32()?);
        let chunks = ChunkRange::new(start, end).ok_or(Kind::TermChunks { start, end }.at(offset))?;
        let term = Term { xorb, raw_len, chunks };
        term.check().map_err(|kind| kind.at(offset))?;
        *chunks_left = chunks_left.checked_sub(chunks.count().into()).ok_or(Kind::TooManyTermChunks.at(offset))?;
        terms.push(term);
    }
    Ok(terms)
}

fn parse_range_hashes(reader: &mut Reader<'_>, count: u32) -> Result<Vec<RangeHash>, ParseError> {
    let mut records = records(reader, count)?;
    let mut hashes = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    while !records.is_at_end() {
        hashes.push(RangeHash::from_bytes(records.array()?));
        let _unused: [u8; 16] = records.array()?;
    }
    Ok(hashes)
}

fn parse_sha256(reader: &mut Reader<'_>) -> Result<Sha256, ParseError> {
    Ok(Sha256::from_swapped(reader.sub(RECORD_LEN)?.array()?))
}

/// Writes the file section with its bookend. Returns an error for files that the parser would
/// refuse or drop, except for the limits of a whole shard: their number, and that of the chunks
/// that their terms name.
pub(super) fn write_section(out: &mut Vec<u8>, files: &[FileInfo]) -> Result<(), ParseError> {
    let mut seen = HashSet::new();
    let with_range_hashes = files.first().is_some_and(|file| file.range_hashes.is_some());
    for file in files {
        let offset = out.len() as u64;
        if *file.hash.as_bytes() == BOOKEND {
            return Err(Kind::BookendHash.at(offset));
        }
        if !seen.insert(file.hash) {
            return Err(Kind::DuplicateFile.at(offset));
        }
        if file.range_hashes.is_some() != with_range_hashes {
            return Err(Kind::MixedVerification.at(offset));
        }
        write_file(out, file)?;
    }
    write_bookend(out);
    Ok(())
}

fn write_file(out: &mut Vec<u8>, file: &FileInfo) -> Result<(), ParseError> {
    let range_hashes = file.range_hashes.as_deref().unwrap_or_default();
    let counts = Kind::RangeHashCount { terms: file.terms.len(), range_hashes: range_hashes.len() };
    if file.range_hashes.is_some() && range_hashes.len() != file.terms.len() {
        return Err(counts.at(out.len() as u64));
    }
    let count = u32::try_from(file.terms.len()).map_err(|_| counts.at(out.len() as u64))?;
    check_count(file.hash, count).map_err(|kind| kind.at(out.len() as u64))?;
    let range_hash_flag = if file.range_hashes.is_some() { WITH_RANGE_HASHES } else { 0 };
    let sha256_flag = if file.sha256.is_some() { WITH_SHA256 } else { 0 };
    write_record(out, file.hash.as_bytes(), [range_hash_flag | sha256_flag, count, 0, 0]);
    for term in &file.terms {
        term.check().map_err(|kind| kind.at(out.len() as u64))?;
        let fields = [0, term.raw_len, term.chunks.start(), term.chunks.end()];
        write_record(out, term.xorb.as_bytes(), fields);
    }
    for hash in range_hashes {
        write_record(out, hash.as_bytes(), [0; 4]);
    }
    if let Some(sha256) = file.sha256 {
        write_record(out, &sha256.to_swapped(), [0; 4]);
    }
    Ok(())
}

/// Writes the record that ends a section.
pub(super) fn write_bookend(out: &mut Vec<u8>) {
    write_record(out, &BOOKEND, [0; 4]);
}

/// Writes one record: a hash, and 16 bytes of numbers.
pub(super) fn write_record(out: &mut Vec<u8>, hash: &[u8; 32], fields: [u32; 4]) {
    out.extend_from_slice(hash);
    for field in fields {
        out.extend_from_slice(&field.to_le_bytes());
    }
}
