//! Which parts of a file a client must chunk again to edit it, and summaries of the rest
//! (spec 5.9).
//!
//! The client names the bytes that it will change. Every chunk with such a byte is in a *window*.
//! The window goes on until the chunker is sure to cut as before the change. That is so after two
//! consecutive chunks whose length was forced neither by the lower nor by the upper limit. The
//! window then continues to the end of the segment (term) with the second of these chunks, because
//! clients reuse whole segments only: after a shorter window they would lose the rest of this
//! segment (spec 9, row 43). The parts outside the windows are *gaps*. They do not change, and the
//! client gets a summary of each.

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
    /// The parts to chunk again: at least one, ascending, not adjacent to each other.
    pub windows: Vec<ByteRange>,
    /// The summaries of the parts that stay: before the first window, between each two, and after
    /// the last. `None` for an empty gap.
    pub gaps: Vec<Option<Subtree>>,
    /// The range hashes of the segments that no window touches, in order.
    pub gap_verification: Vec<RangeHash>,
}

/// Makes [`ChunkWindows`] from the segments of a file, given in order.
#[derive(Clone, Debug)]
pub struct WindowBuilder {
    /// The bytes that change: ascending, not adjacent ranges.
    dirty: Vec<ByteRange>,
    /// Index in `dirty`. All ranges before it end at or before the start of the last chunk.
    next_dirty: usize,
    file_len: u64,
    /// Where the next chunk begins.
    offset: u64,
    chunk_count: u64,
    place: Place,
    /// The chunks since the last window.
    gap: SubtreeBuilder,
    windows: Vec<ByteRange>,
    gaps: Vec<Option<Subtree>>,
    gap_verification: Vec<RangeHash>,
}

/// Whether the last chunk is in a gap or in a window, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a gap.
    Gap,
    /// In a window, touched by a change.
    Dirty,
    /// In a window after the last change, where the chunker may still cut differently.
    Settling { last_is_stable: bool },
    /// In a window, but after its end the chunker cuts as before. Later chunks are in the window
    /// only if they are in the same segment.
    Settled,
}

impl WindowBuilder {
    /// A builder for a file of this length in which these bytes change. The ranges may be in any
    /// order and may overlap. `None` if no range has a byte within the file.
    #[must_use]
    pub fn new(dirty: &[ByteRange], file_len: u64) -> Option<Self> {
        let within = dirty.iter().filter_map(|range| ByteRange::new(range.start(), range.end().min(file_len)));
        let mut sorted: Vec<ByteRange> = within.collect();
        sorted.sort_unstable_by_key(|range| (range.start(), range.end()));
        let mut dirty: Vec<ByteRange> = Vec::new();
        // Merges ranges that overlap or touch each other.
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

    /// Takes the next segment: its range hash, and for each of its chunks the hash and the raw
    /// length in bytes.
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

    /// The nodes that the summaries have so far, at most.
    #[must_use]
    pub fn node_count(&self) -> usize {
        let gaps = self.gaps.iter().flatten().flat_map(Subtree::levels);
        gaps.map(|(left, right)| left.saturating_add(right)).fold(self.gap.node_count(), usize::saturating_add)
    }

    /// The response; `None` if the segments do not add up to the file's length.
    #[must_use]
    pub fn finish(mut self) -> Option<ChunkWindows> {
        if self.offset != self.file_len {
            return None;
        }
        self.gaps.push(self.gap.finish(/* at_end */ true));
        Some(ChunkWindows {
            total_chunks: self.chunk_count,
            file_len: self.file_len,
            windows: self.windows,
            gaps: self.gaps,
            gap_verification: self.gap_verification,
        })
    }

    /// Takes the next chunk: decides its place, then adds it to the gap or to the window.
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

    /// Whether one of these bytes changes. Calls must be in ascending order of the bytes.
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
            // A new window ends the gap before it.
            let gap = std::mem::replace(&mut self.gap, SubtreeBuilder::new(/* at_start */ false));
            self.gaps.push(gap.finish(/* at_end */ false));
        }
        self.windows.extend(ByteRange::new(touching.map_or(start, ByteRange::start), end));
    }
}

/// Whether the content alone decided where this chunk ends: 16 384 to 122 879 bytes, as in the
/// reference. After two such chunks in a row the chunker cuts as before the change (spec 2).
const fn is_stable_len(raw_len: u32) -> bool {
    const START: u32 = 2 * MIN_CHUNK_RAW_LEN;
    const END: u32 = MAX_CHUNK_RAW_LEN - MIN_CHUNK_RAW_LEN;
    START <= raw_len && raw_len < END
}
