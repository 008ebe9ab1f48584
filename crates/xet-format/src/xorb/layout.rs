//! Where the chunks of a xorb are: the part of a verified xorb that range requests need.
//!
//! A layout holds, per chunk, the end of its record (header and payload) in the serialized xorb and
//! the end of its raw bytes. Each chunk starts where the one before it ends. Both ends grow from
//! chunk to chunk and stay within the limits, so a server can serve the ranges of a [`Layout`]
//! without further checks.

use thiserror::Error;

use crate::limits::{
    CHUNK_HEADER_LEN, MAX_CHUNK_PAYLOAD_LEN, MAX_CHUNK_RAW_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN,
};
use crate::range::{ByteRange, ChunkRange};

/// Bytes of one chunk in the packed form.
const PACKED_CHUNK_LEN: usize = 8;

/// Serialized and raw offsets of 1 to 8192 chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    ends: Vec<ChunkEnd>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChunkEnd {
    serialized: u32,
    raw: u32,
}

/// Why chunk lengths, or a packed form, are not a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The packed form is empty or ends within the entry of a chunk.
    #[error("a packed layout of {len} bytes is not a whole positive number of chunks")]
    PackedLen {
        /// Bytes of the packed form.
        len: usize,
    },
    /// More chunks than a xorb may have.
    #[error("more than {MAX_XORB_CHUNK_COUNT} chunks")]
    TooManyChunks,
    /// The raw bytes are more than a xorb may have.
    #[error("more than {MAX_XORB_RAW_LEN} raw bytes at chunk {index}")]
    TooLarge {
        /// The first chunk beyond the limit.
        index: u32,
    },
    /// A chunk is empty, runs backwards, or is longer than a chunk may be.
    #[error("chunk {index} has an impossible length")]
    ChunkLen {
        /// The invalid chunk.
        index: u32,
    },
}

/// Where one chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// Its index in the xorb.
    pub index: u32,
    /// Its record in the serialized xorb, header included.
    pub serialized: ByteRange,
    /// Its bytes in the raw contents of the xorb.
    pub raw: ByteRange,
}

/// Collects the lengths of a xorb's chunks, in order.
#[derive(Clone, Debug, Default)]
pub struct LayoutBuilder {
    ends: Vec<ChunkEnd>,
}

impl LayoutBuilder {
    /// A builder without chunks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of chunks pushed so far.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }

    /// Appends a chunk: the length of its record, header included, and of its raw bytes.
    ///
    /// # Errors
    ///
    /// The chunk, or the sum of all, is beyond the limits of spec 3.6. The builder is unchanged.
    pub fn push(&mut self, record_len: u32, raw_len: u32) -> Result<(), LayoutError> {
        let last = self.ends.last().copied().unwrap_or_default();
        let index = self.chunk_count();
        let too_large = LayoutError::TooLarge { index };
        let end = ChunkEnd {
            serialized: last.serialized.checked_add(record_len).ok_or(too_large)?,
            raw: last.raw.checked_add(raw_len).ok_or(too_large)?,
        };
        check_chunk(index, last, end)?;
        self.ends.push(end);
        Ok(())
    }

    /// The layout of the pushed chunks; `None` without chunks.
    #[must_use]
    pub fn finish(self) -> Option<Layout> {
        if self.ends.is_empty() { None } else { Some(Layout { ends: self.ends }) }
    }
}

impl Layout {
    /// Number of chunks, 1 to 8192.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }

    /// Bytes of all chunk records, that is, of the serialized xorb without footer.
    #[must_use]
    pub fn serialized_len(&self) -> u64 {
        self.ends.last().map_or(0, |end| u64::from(end.serialized))
    }

    /// Raw bytes of all chunks.
    #[must_use]
    pub fn raw_len(&self) -> u64 {
        self.ends.last().map_or(0, |end| u64::from(end.raw))
    }

    /// All chunks.
    #[must_use]
    pub fn whole(&self) -> ChunkRange {
        ChunkRange::new(0, self.chunk_count()).expect("a layout has at least one chunk")
    }

    /// Bytes of these chunks' records in the serialized xorb; `None` if the range goes past the
    /// last chunk.
    #[must_use]
    pub fn serialized_range(&self, chunks: ChunkRange) -> Option<ByteRange> {
        let (before, last) = self.bounds(chunks)?;
        ByteRange::new(before.serialized.into(), last.serialized.into())
    }

    /// These chunks' bytes in the raw contents; `None` if the range goes past the last chunk.
    #[must_use]
    pub fn raw_range(&self, chunks: ChunkRange) -> Option<ByteRange> {
        let (before, last) = self.bounds(chunks)?;
        ByteRange::new(before.raw.into(), last.raw.into())
    }

    /// The smallest range of chunks that contains these raw bytes; `None` if the bytes go past the
    /// end.
    #[must_use]
    pub fn chunks_of_raw(&self, bytes: ByteRange) -> Option<ChunkRange> {
        if bytes.end() > self.raw_len() {
            return None;
        }
        let first = self.ends.partition_point(|end| u64::from(end.raw) <= bytes.start());
        let last = self.ends.partition_point(|end| u64::from(end.raw) < bytes.end());
        ChunkRange::new(u32::try_from(first).ok()?, u32::try_from(last).ok()?.checked_add(1)?)
    }

    /// Every chunk, in order.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkPlace> + '_ {
        places(ChunkEnd::default(), &self.ends, 0)
    }

    /// These chunks, in order; `None` if the range goes past the last chunk. The chunks before them
    /// are not visited.
    pub fn chunks_in(&self, chunks: ChunkRange) -> Option<impl Iterator<Item = ChunkPlace> + '_> {
        let (before, _) = self.bounds(chunks)?;
        let ends = self.ends.get(usize::try_from(chunks.start()).ok()?..usize::try_from(chunks.end()).ok()?)?;
        Some(places(before, ends, chunks.start()))
    }

    /// The packed form: per chunk the serialized end, then the raw end, 4 bytes little-endian each.
    #[must_use]
    pub fn pack(&self) -> Vec<u8> {
        let mut packed = Vec::with_capacity(self.ends.len().saturating_mul(PACKED_CHUNK_LEN));
        for end in &self.ends {
            packed.extend_from_slice(&end.serialized.to_le_bytes());
            packed.extend_from_slice(&end.raw.to_le_bytes());
        }
        packed
    }

    /// Reads the packed form.
    ///
    /// # Errors
    ///
    /// The bytes are not what [`Layout::pack`] returns.
    pub fn parse(packed: &[u8]) -> Result<Self, LayoutError> {
        let (chunks, rest) = packed.as_chunks::<PACKED_CHUNK_LEN>();
        if !rest.is_empty() || chunks.is_empty() {
            return Err(LayoutError::PackedLen { len: packed.len() });
        }
        let mut ends: Vec<ChunkEnd> = Vec::with_capacity(chunks.len());
        let mut last = ChunkEnd::default();
        for (chunk, index) in chunks.iter().zip(0..) {
            let end = parse_end(chunk);
            check_chunk(index, last, end)?;
            ends.push(end);
            last = end;
        }
        Ok(Self { ends })
    }

    /// Raw lengths of the chunks from `first` on, from a slice of the packed form. The slice begins
    /// with the entry of the chunk before `first`, or if `first` is 0, with the entry of chunk 0.
    /// It may end after any entry.
    ///
    /// # Errors
    ///
    /// The bytes are not part of what [`Layout::pack`] returns.
    pub fn parse_raw_lens(packed: &[u8], first: u32) -> Result<Vec<u32>, LayoutError> {
        let (entries, rest) = packed.as_chunks::<PACKED_CHUNK_LEN>();
        if !rest.is_empty() {
            return Err(LayoutError::PackedLen { len: packed.len() });
        }
        let mut ends = entries.iter().map(parse_end);
        let mut last = if first == 0 { ChunkEnd::default() } else { ends.next().unwrap_or_default() };
        ends.zip(first..=u32::MAX)
            .map(|(end, index)| {
                check_chunk(index, last, end)?;
                let raw_len = end.raw.checked_sub(last.raw).ok_or(LayoutError::ChunkLen { index })?;
                last = end;
                Ok(raw_len)
            })
            .collect()
    }

    /// The end of the chunk before the range, and the end of the last chunk of the range.
    fn bounds(&self, chunks: ChunkRange) -> Option<(ChunkEnd, ChunkEnd)> {
        let end_of = |index: u32| self.ends.get(usize::try_from(index).ok()?).copied();
        let last = end_of(chunks.end().checked_sub(1)?)?;
        let before = match chunks.start().checked_sub(1) {
            None => ChunkEnd::default(),
            Some(index) => end_of(index)?,
        };
        Some((before, last))
    }
}

/// The places of chunks with these ends. The first has the index `first` and begins at `before`.
fn places(before: ChunkEnd, ends: &[ChunkEnd], first: u32) -> impl Iterator<Item = ChunkPlace> + '_ {
    let starts = std::iter::once(before).chain(ends.iter().copied());
    starts.zip(ends).zip(first..).filter_map(|((start, end), index)| {
        Some(ChunkPlace {
            index,
            serialized: ByteRange::new(start.serialized.into(), end.serialized.into())?,
            raw: ByteRange::new(start.raw.into(), end.raw.into())?,
        })
    })
}

fn parse_end(entry: &[u8; PACKED_CHUNK_LEN]) -> ChunkEnd {
    let [a, b, c, d, e, f, g, h] = *entry;
    ChunkEnd { serialized: u32::from_le_bytes([a, b, c, d]), raw: u32::from_le_bytes([e, f, g, h]) }
}

/// The rules that hold for every chunk of a layout, whether it is built or read back.
fn check_chunk(index: u32, last: ChunkEnd, end: ChunkEnd) -> Result<(), LayoutError> {
    if index >= MAX_XORB_CHUNK_COUNT {
        return Err(LayoutError::TooManyChunks);
    }
    let record_len = end.serialized.checked_sub(last.serialized);
    let payload_len = record_len.and_then(|len| len.checked_sub(CHUNK_HEADER_LEN));
    let raw_len = end.raw.checked_sub(last.raw);
    let possible =
        matches!(payload_len, Some(1..=MAX_CHUNK_PAYLOAD_LEN)) && matches!(raw_len, Some(1..=MAX_CHUNK_RAW_LEN));
    if !possible {
        return Err(LayoutError::ChunkLen { index });
    }
    if u64::from(end.raw) > MAX_XORB_RAW_LEN {
        return Err(LayoutError::TooLarge { index });
    }
    Ok(())
}
