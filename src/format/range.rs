//! Half-open, non-empty ranges of chunks and of bytes.
//!
//! The inclusive form of HTTP exists only at the edge, where headers are parsed and printed; in here `end` is always
//! the first one that does *not* belong to the range.

use std::fmt;

/// Chunks `[start, end)` of one xorb; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRange {
    start: u32,
    end: u32,
}

impl ChunkRange {
    /// The chunks `[start, end)`, or `None` where that is empty or runs backwards.
    #[must_use]
    pub const fn new(start: u32, end: u32) -> Option<Self> {
        if start < end { Some(Self { start, end }) } else { None }
    }

    /// Index of the first chunk.
    #[must_use]
    pub const fn start(self) -> u32 {
        self.start
    }

    /// Index after the last chunk.
    #[must_use]
    pub const fn end(self) -> u32 {
        self.end
    }

    /// Number of chunks, at least 1.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}

impl fmt::Display for ChunkRange {
    /// `start-end`, half-open, as in `?range=`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

/// Bytes `[start, end)` of something; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// The bytes `[start, end)`, or `None` where that is empty or runs backwards.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Option<Self> {
        if start < end { Some(Self { start, end }) } else { None }
    }

    /// Offset of the first byte.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Offset after the last byte.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Number of bytes, at least 1. (Not `len`: there is no empty range to ask `is_empty` of.)
    #[must_use]
    pub const fn byte_len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// The last byte, for the inclusive notation of HTTP.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.end.saturating_sub(1)
    }
}

impl fmt::Display for ByteRange {
    /// `start-end`, half-open.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}
