//! Content-defined chunking: where a file is cut into chunks (spec 2).
//!
//! A rolling hash over the last 64 bytes decides where to cut, between a minimum and a maximum
//! length of the chunk. So an insertion changes only the chunks near it: later cuts fall between
//! the same bytes as before. The server accepts any cuts; a client that cuts elsewhere finds fewer
//! duplicates.

use super::gear_table::GEAR_TABLE;
use super::limits::{MAX_CHUNK_RAW_LEN, MIN_CHUNK_RAW_LEN};

/// A chunk ends where these bits of the hash are zero: 16 bits, for a mean of 64 KiB.
const MASK: u64 = 0xFFFF_0000_0000_0000;

/// Bytes at the start of a chunk that need no hashing.
///
/// The hash is shifted by one bit per byte, so it depends only on the last 64 bytes. The first
/// possible cut is after [`MIN_LEN`] bytes. To hash only the 65 bytes before this cut gives the
/// same hash there as to hash from the chunk's start.
const SKIP_LEN: usize = MIN_CHUNK_RAW_LEN as usize - 64 - 1;

/// A chunk shorter than this is not cut.
const MIN_LEN: usize = MIN_CHUNK_RAW_LEN as usize;

/// A chunk of this length is cut whatever its bytes.
const MAX_LEN: usize = MAX_CHUNK_RAW_LEN as usize;

/// Finds the ends of chunks in a stream that arrives in pieces of any size.
///
/// The last chunk of a stream has no boundary of its own: it consists of the bytes after the last
/// boundary.
///
/// ```
/// use xet_format::chunker::Chunker;
///
/// let data = vec![59; 300_000];
/// let mut chunker = Chunker::new();
/// assert_eq!(chunker.next_boundary(&data), Some(131_072)); // constant bytes: cut at the maximum
/// assert_eq!(chunker.next_boundary(&data[131_072..]), Some(131_072));
/// assert_eq!(chunker.next_boundary(&data[262_144..]), None); // the rest is the last chunk
/// ```
#[derive(Clone, Debug, Default)]
pub struct Chunker {
    hash: u64,
    /// Bytes of the current chunk so far; below [`MAX_LEN`] between calls.
    len: usize,
}

impl Chunker {
    /// A chunker at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a piece of the stream up to the next boundary.
    ///
    /// Returns how many bytes of `data` belong to the chunk that ends there, at least 1. Pass the
    /// bytes after them to the next call. Returns `None` if no chunk ends in `data`: then all of
    /// `data` was taken and belongs to the unfinished chunk.
    pub fn next_boundary(&mut self, data: &[u8]) -> Option<usize> {
        let mut offset = SKIP_LEN.saturating_sub(self.len);
        if offset >= data.len() {
            self.len = self.len.saturating_add(data.len());
            return None;
        }
        // The chunk would be too short if it ended among these bytes: they only update the hash.
        let warm_up = MIN_LEN.saturating_sub(1).saturating_sub(self.len.max(SKIP_LEN));
        for byte in data.iter().skip(offset).take(warm_up) {
            self.hash = roll(self.hash, *byte);
            offset = offset.saturating_add(1);
        }
        let limit = MAX_LEN.saturating_sub(self.len);
        let searched = data.get(offset..limit.min(data.len())).unwrap_or_default();
        if let Some(count) = self.find_cut(searched) {
            *self = Self::new();
            return Some(offset.saturating_add(count));
        }
        if data.len() >= limit {
            *self = Self::new();
            return Some(limit);
        }
        self.len = self.len.saturating_add(data.len());
        None
    }

    /// Hashes `bytes` until the mask matches. Returns how many bytes it hashed, or `None` if the
    /// mask does not match after any of them.
    fn find_cut(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut hash = self.hash;
        for (index, byte) in bytes.iter().enumerate() {
            hash = roll(hash, *byte);
            if hash & MASK == 0 {
                return Some(index.saturating_add(1));
            }
        }
        self.hash = hash;
        None
    }
}

/// Cuts a slice into its chunks; none for an empty slice.
pub fn chunks(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = data;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        // A chunker resets its state after each boundary, so a new one per chunk gives the same
        // cuts.
        let end = Chunker::new().next_boundary(rest).unwrap_or(rest.len());
        let (chunk, after) = rest.split_at_checked(end)?;
        rest = after;
        Some(chunk)
    })
}

/// One step of the rolling hash.
#[inline]
fn roll(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR_TABLE.get(usize::from(byte)).copied().unwrap_or_default())
}
