//! Which parts of a file a client must chunk anew to edit it, and what it must know of the rest
//! (spec 5.9).
//!
//! The client says which bytes it will change. Every chunk that they touch is in a *window*, and so
//! are the chunks after it, until the chunker would cut as before: two chunks in a row of a length
//! that neither the lower nor the upper limit has forced. A window goes on to the end of the
//! segment (term) in which that happens, since the client keeps segments as a whole or not at all;
//! one that ended earlier would make it lose the rest of the segment (spec 9, row 43). What is
//! between the windows is a *gap*: it stays, and the client gets its summary.

#[cfg(test)]
mod tests;

use super::limits::{MAX_CHUNK_RAW_LEN, MIN_CHUNK_RAW_LEN};
use super::merkle::subtree::{Subtree, SubtreeBuilder};
use super::{ByteRange, ChunkHash, RangeHash};

/// The response to a client that wants to edit a file.
#[derive(Clone, Debug)]
pub struct ChunkWindows {
    /// Chunks of the file.
    pub total_chunks: u64,
    /// Bytes of the file.
    pub file_len: u64,
    /// What is to be chunked anew: at least one window, ascending, no two of them touching.
    pub windows: Vec<ByteRange>,
    /// What stays: before the first window, between every two, after the last. `None` where that is
    /// nothing.
    pub gaps: Vec<Option<Subtree>>,
    /// The range hashes of the segments that no window touches, in order.
    pub gap_verification: Vec<RangeHash>,
}

/// Makes [`ChunkWindows`] from the segments of a file, given in order.
#[derive(Clone, Debug)]
pub struct WindowBuilder {
    /// Ascending, no two of them touching.
    dirty: Vec<ByteRange>,
    /// The first range of `dirty` that ends behind the start of the next chunk.
    next_dirty: usize,
    file_len: u64,
    /// Where the next chunk begins.
    offset: u64,
    chunk_count: u64,
    place: Place,
    gap: SubtreeBuilder,
    windows: Vec<ByteRange>,
    gaps: Vec<Option<Subtree>>,
    gap_verification: Vec<RangeHash>,
}

/// What the last chunk was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a gap.
    Gap,
    /// In a window, touched by a change.
    Dirty,
    /// In a window behind all changes, where the chunker may still cut otherwise.
    Settling { last_is_stable: bool },
    /// In a window only because its segment is.
    Settled,
}

impl WindowBuilder {
    /// A builder for a file of this length in which these bytes change. The ranges may come in any
    /// order and overlap; `None` where nothing of them is within the file.
    #[must_use]
    pub fn new(dirty: &[ByteRange], file_len: u64) -> Option<Self> {
        let within = dirty.iter().filter_map(|range| ByteRange::new(range.start(), range.end().min(file_len)));
        let mut sorted: Vec<ByteRange> = within.collect();
        sorted.sort_unstable_by_key(|range| (range.start(), range.end()));
        let mut dirty: Vec<ByteRange> = Vec::new();
        for range in sorted {
            let last = dirty.pop_if(|last| last.end() >= range.start());
            let start = last.map_or(range.start(), ByteRange::start);
            dirty.extend(ByteRange::new(start, last.map_or(0, ByteRange::end).max(range.end())));
        }
        if dirty.is_empty() {
            return None;
        }
        Some(Self {
            dirty,
            next_dirty: 0,
            file_len,
            offset: 0,
            chunk_count: 0,
            place: Place::Gap,
            gap: SubtreeBuilder::new(/* at_start */ true),
            windows: Vec::new(),
            gaps: Vec::new(),
            gap_verification: Vec::new(),
        })
    }

    /// Takes the next segment: its range hash, and hash and raw length in bytes of each of its
    /// chunks.
    pub fn push_segment<'a>(&mut self, range_hash: RangeHash, chunks: impl IntoIterator<Item = (&'a ChunkHash, u32)>) {
        let mut is_touched = false;
        for (hash, raw_len) in chunks {
            self.push_chunk(hash, raw_len);
            is_touched |= self.place != Place::Gap;
        }
        if !is_touched {
            self.gap_verification.push(range_hash);
        }
        if self.place == Place::Settled {
            self.place = Place::Gap;
        }
    }

    /// The response; `None` if the segments do not add up to the file's length.
    #[must_use]
    pub fn finish(mut self) -> Option<ChunkWindows> {
        if self.offset != self.file_len {
            return None;
        }
        self.gaps.push(self.gap.finish(true));
        Some(ChunkWindows {
            total_chunks: self.chunk_count,
            file_len: self.file_len,
            windows: self.windows,
            gaps: self.gaps,
            gap_verification: self.gap_verification,
        })
    }

    fn push_chunk(&mut self, hash: &ChunkHash, raw_len: u32) {
        let start = self.offset;
        let end = start.saturating_add(raw_len.into());
        let is_stable = is_stable_len(raw_len);
        self.place = if self.is_dirty(start, end) {
            Place::Dirty
        } else {
            match self.place {
                Place::Gap => Place::Gap,
                Place::Dirty => Place::Settling { last_is_stable: is_stable },
                Place::Settling { last_is_stable: true } if is_stable => Place::Settled,
                Place::Settling { .. } => Place::Settling { last_is_stable: is_stable },
                Place::Settled => Place::Settled,
            }
        };
        if self.place == Place::Gap {
            self.gap.push(hash, raw_len.into());
        } else {
            self.widen(start, end);
        }
        self.offset = end;
        self.chunk_count = self.chunk_count.saturating_add(1);
    }

    /// Whether a change touches these bytes, which are behind all those asked for before.
    fn is_dirty(&mut self, start: u64, end: u64) -> bool {
        while let Some(range) = self.dirty.get(self.next_dirty) {
            if range.end() > start {
                return range.start() < end;
            }
            self.next_dirty = self.next_dirty.saturating_add(1);
        }
        false
    }

    /// Adds these bytes to the window that ends where they begin, or opens one.
    fn widen(&mut self, start: u64, end: u64) {
        let touching = self.windows.pop_if(|window| window.end() == start);
        if touching.is_none() {
            let gap = std::mem::replace(&mut self.gap, SubtreeBuilder::new(/* at_start */ false));
            self.gaps.push(gap.finish(/* at_end */ false));
        }
        self.windows.extend(ByteRange::new(touching.map_or(start, ByteRange::start), end));
    }
}

/// Whether neither limit had a part in the cut: 16 384 to 122 879 bytes, as in the reference. After
/// two such chunks in a row the chunker cuts as before the change (spec 2).
const fn is_stable_len(raw_len: u32) -> bool {
    const START: u32 = 2 * MIN_CHUNK_RAW_LEN;
    const END: u32 = MAX_CHUNK_RAW_LEN - MIN_CHUNK_RAW_LEN;
    START <= raw_len && raw_len < END
}
