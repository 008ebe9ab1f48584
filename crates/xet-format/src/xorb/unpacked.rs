//! The unpacked form of a xorb: LZ4 undone, the rest unchanged. Backups store xorbs in this form.
//!
//! The archive of a backup compresses xorbs again, with zstd. LZ4 would hide redundancy from it, so
//! a xorb is unpacked before. Byte grouping is not undone, because it makes floats compressible.
//! The form is a table with one entry per chunk, `scheme u8, raw length u24 little-endian`, and the
//! contents of the chunks in order: raw bytes, or grouped bytes if the scheme is 2.
//!
//! Repacking gives a xorb with the same hash, because the hash is over raw bytes. The serialization
//! may differ, because LZ4 compressors differ.

use std::fmt;

use thiserror::Error;

use super::error::XorbError;
use super::layout::LayoutError;
use super::verified::{Seen, VerifiedXorb};
use super::verify::Verifier;
use crate::chunk::ChunkHeader;
use crate::compression::Scheme;
use crate::limits::{MAX_CHUNK_RAW_LEN, MAX_XORB_BODY_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN};
use crate::{bg4, lz4_frame};

/// Bytes of one entry of the table.
pub const UNPACKED_ENTRY_LEN: usize = 4;

/// A xorb in its unpacked form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// One entry per chunk.
    pub table: Vec<u8>,
    /// The contents of the chunks.
    pub contents: Vec<u8>,
}

/// One entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackedChunk {
    /// How the chunk was compressed.
    pub scheme: Scheme,
    /// Length in bytes of its contents, raw or grouped.
    pub raw_len: u32,
}

/// Why bytes are not the table of an unpacked xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UnpackedError {
    /// The table is empty, ends within an entry, or has more entries than a xorb may have chunks.
    #[error("a table of {len} bytes is not that of a xorb")]
    TableLen {
        /// Bytes of the table.
        len: usize,
    },
    /// An entry has a scheme that does not exist or a length that no chunk has.
    #[error("entry {index} of the table is not that of a chunk")]
    Entry {
        /// Which entry, from 0.
        index: usize,
    },
    /// The chunks have more raw bytes than a xorb may have.
    #[error("the table has {len} raw bytes, more than a xorb")]
    TooLong {
        /// Bytes of all chunks.
        len: u64,
    },
}

/// Verifies a serialized xorb that arrives in pieces, and unpacks it.
#[derive(Debug)]
pub struct Unpacker {
    verifier: Verifier,
    unpacked: Unpacked,
}

impl Unpacker {
    /// An unpacker that has seen no bytes. It reserves memory for `raw_len` raw bytes,
    /// but for no more than a xorb may have.
    #[must_use]
    pub fn new(raw_len: u64) -> Self {
        let reserved = usize::try_from(raw_len.min(MAX_XORB_RAW_LEN)).unwrap_or_default();
        let unpacked = Unpacked { table: Vec::new(), contents: Vec::with_capacity(reserved) };
        Self { verifier: Verifier::new(MAX_XORB_BODY_LEN), unpacked }
    }

    /// Takes a piece of any size.
    ///
    /// # Errors
    ///
    /// The bytes are not those of a xorb.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), XorbError> {
        let mut rest = piece;
        while let Some(chunk) = self.verifier.next_chunk(&mut rest)? {
            let scheme = chunk.frame.header.scheme;
            let [a, b, c, _] = chunk.frame.header.raw_len.to_le_bytes();
            self.unpacked.table.extend_from_slice(&[scheme.as_byte(), a, b, c]);
            let contents = &mut self.unpacked.contents;
            let before = contents.len();
            if scheme == Scheme::ByteGroupedLz4 {
                contents.resize(before.saturating_add(chunk.raw.len()), 0);
                bg4::split(chunk.raw, contents.get_mut(before..).unwrap_or_default());
            } else {
                contents.extend_from_slice(chunk.raw);
            }
        }
        Ok(())
    }

    /// The verified xorb, and its unpacked form. The caller compares the hash of the xorb with the
    /// expected one.
    ///
    /// # Errors
    ///
    /// See [`Verifier::finish`].
    pub fn finish(self) -> Result<(VerifiedXorb, Unpacked), XorbError> {
        Ok((self.verifier.finish()?, self.unpacked))
    }
}

/// Reads a table. The lengths that it returns are within the limits of a chunk and of a xorb, so a
/// caller may allocate that many bytes.
///
/// # Errors
///
/// The length is wrong, an entry is invalid, or the chunks together exceed a xorb.
pub fn parse_unpacked_table(table: &[u8]) -> Result<Vec<UnpackedChunk>, UnpackedError> {
    let (entries, rest) = table.as_chunks::<UNPACKED_ENTRY_LEN>();
    if entries.is_empty() || !rest.is_empty() || entries.len() > MAX_XORB_CHUNK_COUNT as usize {
        return Err(UnpackedError::TableLen { len: table.len() });
    }
    let parse = |(index, [scheme, a, b, c]): (usize, &[u8; UNPACKED_ENTRY_LEN])| {
        let (scheme, raw_len) = (Scheme::from_byte(*scheme), u32::from_le_bytes([*a, *b, *c, 0]));
        let scheme = scheme.filter(|_| (1..=MAX_CHUNK_RAW_LEN).contains(&raw_len));
        scheme.map(|scheme| UnpackedChunk { scheme, raw_len }).ok_or(UnpackedError::Entry { index })
    };
    let chunks: Vec<UnpackedChunk> = entries.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    let len = chunks.iter().map(|chunk| u64::from(chunk.raw_len)).fold(0, u64::saturating_add);
    if len > MAX_XORB_RAW_LEN { Err(UnpackedError::TooLong { len }) } else { Ok(chunks) }
}

/// Whether repacking compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepackMode {
    /// Each chunk is compressed with the scheme of its entry.
    Compressed,
    /// No chunk is compressed. This is faster, and enough to verify the xorb.
    Uncompressed,
}

/// Rebuilds a serialized xorb from the unpacked form, chunk by chunk.
pub struct Repacker {
    mode: RepackMode,
    seen: Seen,
    raw: Vec<u8>,
    payload: Vec<u8>,
}

impl Repacker {
    /// A repacker without chunks.
    #[must_use]
    pub fn new(mode: RepackMode) -> Self {
        Self { mode, seen: Seen::default(), raw: Vec::new(), payload: Vec::new() }
    }

    /// Appends the next chunk to `out`, header and payload. It is compressed as its entry says, or
    /// uncompressed if compression does not make it shorter. `contents` are the bytes of the chunk
    /// in the unpacked form. Their length is the raw length: `chunk.raw_len` is not used.
    ///
    /// # Errors
    ///
    /// The chunk, or all chunks together, are beyond the limits. Nothing was appended.
    pub fn push(&mut self, chunk: UnpackedChunk, contents: &[u8], out: &mut Vec<u8>) -> Result<(), LayoutError> {
        let raw = if chunk.scheme == Scheme::ByteGroupedLz4 {
            self.raw.resize(contents.len(), 0);
            bg4::join(contents, &mut self.raw);
            &self.raw
        } else {
            contents
        };
        self.payload.clear();
        let may_compress = chunk.scheme != Scheme::None && self.mode == RepackMode::Compressed;
        let packed_len = if may_compress { lz4_frame::encode(contents, &mut self.payload) } else { None };
        let (scheme, payload) = match packed_len {
            Some(len) if len < raw.len() => (chunk.scheme, self.payload.as_slice()),
            _ => (Scheme::None, raw),
        };
        let too_long = LayoutError::ChunkLen { index: self.seen.chunk_count() };
        let lens = (u32::try_from(payload.len()), u32::try_from(raw.len()));
        let (Ok(payload_len), Ok(raw_len)) = lens else { return Err(too_long) };
        let header = ChunkHeader { payload_len, scheme, raw_len };
        self.seen.push(raw, header.record_len(), scheme)?;
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(payload);
        Ok(())
    }

    /// The xorb of the chunks that were pushed; `None` without chunks.
    #[must_use]
    pub fn finish(self) -> Option<VerifiedXorb> {
        self.seen.seal()
    }
}

impl fmt::Debug for Repacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repacker").field("mode", &self.mode).finish_non_exhaustive()
    }
}
