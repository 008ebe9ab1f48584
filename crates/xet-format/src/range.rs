//! Half-open, non-empty ranges of chunks and of bytes.
//!
//! In all types of this module `end` is the first index or offset that does *not* belong to the
//! range. Only the code that parses and prints HTTP headers uses the inclusive form of HTTP.
//!
//! [`ChunkRangeSpec`] and [`ByteRangeSpec`] are ranges as users and clients write them, before they
//! know how many chunks or bytes there are.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Chunks `[start, end)` of one xorb; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRange {
    start: u32,
    end: u32,
}

impl ChunkRange {
    /// The chunks `[start, end)`; `None` if the range is empty or runs backwards.
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
    /// The bytes `[start, end)`; `None` if the range is empty or runs backwards.
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

    /// Number of bytes, at least 1. (The name is not `len`: a type with `len` should have
    /// `is_empty`, but no range is empty.)
    #[must_use]
    pub const fn byte_len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Offset of the last byte, for the inclusive notation of HTTP.
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

/// A requested range of chunks of a xorb whose number of chunks is not known yet.
///
/// `A-B` is \[A,B), `A-` all chunks from A on, `-N` the last N, `A` only chunk A. Nothing is
/// clamped: a range that names a missing chunk resolves to `None`.
///
/// ```
/// use xet_format::{ChunkRange, ChunkRangeSpec};
///
/// let last_two: ChunkRangeSpec = "-2".parse()?;
/// assert_eq!(last_two.resolve(10), ChunkRange::new(8, 10));
/// assert_eq!(last_two.resolve(1), None);
/// assert!("2-2".parse::<ChunkRangeSpec>().is_err());
/// # Ok::<(), xet_format::ParseRangeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRangeSpec(Requested);

/// A range as it was written. A number beyond 64 bits is replaced by the largest 64-bit number,
/// which is beyond every xorb and file, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requested {
    One(u64),
    From(u64),
    Last(u64),
    Between(u64, u64),
}

/// A text that is no range of chunks or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a range is `A-B` for [A,B), `A-`, `-N` for the last N, or `A`, and is not empty")]
pub struct ParseRangeError;

impl ChunkRangeSpec {
    /// These chunks of a xorb with `count` chunks; `None` if one of them does not exist.
    #[must_use]
    pub fn resolve(self, count: u32) -> Option<ChunkRange> {
        let (start, end) = self.0.resolve(count.into())?;
        ChunkRange::new(u32::try_from(start).ok()?, u32::try_from(end).ok()?)
    }
}

/// A requested range of bytes, written like a [`ChunkRangeSpec`] and not clamped either.
///
/// ```
/// use xet_format::{ByteRange, ByteRangeSpec};
///
/// let tail: ByteRangeSpec = "100-".parse()?;
/// assert_eq!(tail.resolve(300), ByteRange::new(100, 300));
/// assert_eq!(tail.resolve(100), None);
/// # Ok::<(), xet_format::ParseRangeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRangeSpec(Requested);

impl ByteRangeSpec {
    /// These bytes of something that is `len` bytes long; `None` if one of them does not exist.
    #[must_use]
    pub fn resolve(self, len: u64) -> Option<ByteRange> {
        let (start, end) = self.0.resolve(len)?;
        ByteRange::new(start, end)
    }
}

impl FromStr for ByteRangeSpec {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<Self, ParseRangeError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for ByteRangeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Requested {
    /// Start and end of this range among `count` items; `None` if it names an item that does not
    /// exist.
    fn resolve(self, count: u64) -> Option<(u64, u64)> {
        let (start, end) = match self {
            Self::One(index) => (index, index.checked_add(1)?),
            Self::From(start) => (start, count),
            Self::Last(number) => (count.checked_sub(number)?, count),
            Self::Between(start, end) => (start, end),
        };
        (end <= count).then_some((start, end))
    }
}

impl FromStr for ChunkRangeSpec {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<Self, ParseRangeError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for ChunkRangeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Requested {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<Self, ParseRangeError> {
        let requested = match text.split_once('-') {
            None => Self::One(parse_number(text)?),
            Some(("", number)) => Self::Last(parse_number(number)?),
            Some((start, "")) => Self::From(parse_number(start)?),
            Some((start, end)) => Self::Between(parse_number(start)?, parse_number(end)?),
        };
        match requested {
            Self::Last(0) => Err(ParseRangeError),
            Self::Between(start, end) if start >= end => Err(ParseRangeError),
            requested => Ok(requested),
        }
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(index) => write!(f, "{index}"),
            Self::From(start) => write!(f, "{start}-"),
            Self::Last(number) => write!(f, "-{number}"),
            Self::Between(start, end) => write!(f, "{start}-{end}"),
        }
    }
}

/// Reads a number of any positive number of digits, and nothing else; see [`Requested`].
fn parse_number(text: &str) -> Result<u64, ParseRangeError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseRangeError);
    }
    Ok(text.parse().unwrap_or(u64::MAX))
}
