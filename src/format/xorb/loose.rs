//! The loose form of a xorb: LZ4 undone, the rest as it was. Archives keep xorbs in it.
//!
//! LZ4 hides from a stronger compressor what it could find, so a xorb that is to be compressed again is unpacked first.
//! Byte grouping stays: it is what makes floats compress, whoever compresses. The form is a table with one entry per
//! chunk, `scheme u8, raw length u24 little-endian`, and the contents of the chunks one after the other: raw bytes, or
//! grouped ones where the scheme says so.
//!
//! Tightening it again gives the same xorb: its hash is over raw bytes. Its serialization may be another one, since no
//! two LZ4 compressors agree on theirs.

use std::fmt;

use thiserror::Error;

use super::error::XorbError;
use super::layout::LayoutError;
use super::verify::{Seen, VerifiedXorb, Verifier};
use crate::format::chunk::ChunkHeader;
use crate::format::compression::Scheme;
use crate::format::limits::{MAX_CHUNK_RAW_LEN, MAX_XORB_BODY_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN};
use crate::format::{bg4, lz4_frame};

/// Bytes of one entry of the table.
pub const LOOSE_ENTRY_LEN: usize = 4;

/// A xorb in its loose form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loose {
    /// One entry per chunk.
    pub table: Vec<u8>,
    /// The contents of the chunks.
    pub contents: Vec<u8>,
}

/// One entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LooseChunk {
    /// How the chunk was compressed.
    pub scheme: Scheme,
    /// Its raw bytes, of which the contents have as many.
    pub raw_len: u32,
}

/// Why bytes are not the table of a loose xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LooseError {
    /// No whole number of entries, none at all, or more than a xorb has chunks.
    #[error("a table of {len} bytes is not that of a xorb")]
    TableLen {
        /// Bytes that there are.
        len: usize,
    },
    /// An entry has a scheme that does not exist or a length that no chunk has.
    #[error("entry {index} of the table is not that of a chunk")]
    Entry {
        /// Which entry, from 0.
        index: usize,
    },
    /// The chunks are longer than a xorb may be.
    #[error("the table has {len} raw bytes, more than a xorb")]
    TooLong {
        /// Bytes of all chunks.
        len: u64,
    },
}

/// Verifies a serialized xorb that arrives in pieces, and loosens it.
#[derive(Debug)]
pub struct Loosener {
    verifier: Verifier,
    loose: Loose,
}

impl Loosener {
    /// One that has seen nothing, for a xorb of about so many raw bytes, which are reserved.
    #[must_use]
    pub fn new(raw_len: u64) -> Self {
        let reserved = usize::try_from(raw_len.min(MAX_XORB_RAW_LEN)).unwrap_or_default();
        let loose = Loose { table: Vec::new(), contents: Vec::with_capacity(reserved) };
        Self { verifier: Verifier::new(MAX_XORB_BODY_LEN), loose }
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
            self.loose.table.extend_from_slice(&[scheme.as_byte(), a, b, c]);
            let contents = &mut self.loose.contents;
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

    /// What the bytes were, and their loose form. Whether it is the xorb that was wanted is the caller's to compare.
    ///
    /// # Errors
    ///
    /// See [`Verifier::finish`].
    pub fn finish(self) -> Result<(VerifiedXorb, Loose), XorbError> {
        Ok((self.verifier.finish()?, self.loose))
    }
}

/// Reads a table.
///
/// # Errors
///
/// It is not one, or of chunks that no xorb has: the lengths of a table that was read may be allocated.
pub fn parse_loose_table(table: &[u8]) -> Result<Vec<LooseChunk>, LooseError> {
    let (entries, rest) = table.as_chunks::<LOOSE_ENTRY_LEN>();
    if entries.is_empty() || !rest.is_empty() || entries.len() > MAX_XORB_CHUNK_COUNT as usize {
        return Err(LooseError::TableLen { len: table.len() });
    }
    let parse = |(index, [scheme, a, b, c]): (usize, &[u8; LOOSE_ENTRY_LEN])| {
        let (scheme, raw_len) = (Scheme::from_byte(*scheme), u32::from_le_bytes([*a, *b, *c, 0]));
        let scheme = scheme.filter(|_| (1..=MAX_CHUNK_RAW_LEN).contains(&raw_len));
        scheme.map(|scheme| LooseChunk { scheme, raw_len }).ok_or(LooseError::Entry { index })
    };
    let chunks: Vec<LooseChunk> = entries.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    let len = chunks.iter().map(|chunk| u64::from(chunk.raw_len)).fold(0, u64::saturating_add);
    if len > MAX_XORB_RAW_LEN { Err(LooseError::TooLong { len }) } else { Ok(chunks) }
}

/// Whether tightening compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tightening {
    /// Each chunk as its entry says.
    Compressed,
    /// Not at all: for whoever wants to know what the xorb is, and not keep it.
    Stored,
}

/// Makes a serialized xorb of the loose form again, chunk by chunk.
pub struct Tightener {
    tightening: Tightening,
    seen: Seen,
    raw: Vec<u8>,
    payload: Vec<u8>,
}

impl Tightener {
    /// One that has seen nothing.
    #[must_use]
    pub fn new(tightening: Tightening) -> Self {
        Self { tightening, seen: Seen::default(), raw: Vec::new(), payload: Vec::new() }
    }

    /// Appends the record of the next chunk to `out`: compressed as its entry says, or stored where that is no shorter.
    ///
    /// # Errors
    ///
    /// A chunk, or all of them together, is beyond the limits; nothing was appended.
    pub fn push(&mut self, chunk: LooseChunk, contents: &[u8], out: &mut Vec<u8>) -> Result<(), LayoutError> {
        let raw = if chunk.scheme == Scheme::ByteGroupedLz4 {
            self.raw.resize(contents.len(), 0);
            bg4::join(contents, &mut self.raw);
            &self.raw
        } else {
            contents
        };
        self.payload.clear();
        let may_compress = chunk.scheme != Scheme::None && self.tightening == Tightening::Compressed;
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

    /// What the records are together; `None` where there was no chunk.
    #[must_use]
    pub fn finish(self) -> Option<VerifiedXorb> {
        self.seen.seal()
    }
}

impl fmt::Debug for Tightener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tightener").field("tightening", &self.tightening).finish_non_exhaustive()
    }
}
