//! Buffers that pieces of blobs are read into, and blocks of drafts collected in, used again and
//! again: fresh memory has to be cleared and mapped page by page, which costs more than the bytes
//! that come into it.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Bytes of a buffer, and the maximum length of a piece. Several fit into the CPU's cache, so the
/// bytes are still cached when they are sent, and a slow reader holds only one.
pub(super) const PIECE_LEN: usize = 256 << 10;

/// Buffers that are kept for the next piece, at most: 8 MiB.
const MAX_FREE_COUNT: usize = 32;

/// Unused buffers, the most recently used on top. Their lengths may differ.
pub(super) struct FreeList {
    max_count: usize,
    buffers: Mutex<Vec<Buffer>>,
}

pub(super) type Buffer = Box<[u8]>;

impl FreeList {
    /// A list that keeps so many, at most.
    pub(super) fn new(max_count: usize) -> Self {
        Self { max_count, buffers: Mutex::default() }
    }

    /// A buffer of so many bytes. What is in it is what was in it before.
    pub(super) fn take(&self, len: usize) -> Buffer {
        let mut buffers = self.buffers();
        let at = buffers.iter().rposition(|buffer| buffer.len() == len);
        let kept = at.map(|at| buffers.remove(at));
        drop(buffers);
        kept.unwrap_or_else(|| vec![0; len].into_boxed_slice())
    }

    /// Keeps a buffer, unless there are enough.
    pub(super) fn give_back(&self, buffer: Buffer) {
        let mut buffers = self.buffers();
        if buffers.len() < self.max_count {
            buffers.push(buffer);
        }
    }

    /// Buffers that are kept.
    pub(super) fn count(&self) -> usize {
        self.buffers().len()
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without what is in them, which is of blobs.
impl fmt::Debug for FreeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreeList").field("count", &self.count()).finish_non_exhaustive()
    }
}

/// Buffers for pieces.
#[derive(Clone, Debug)]
pub(super) struct Buffers {
    free: Arc<FreeList>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { free: Arc::new(FreeList::new(MAX_FREE_COUNT)) }
    }
}

/// A buffer for a piece; returned to its list on drop.
pub(super) struct Piece {
    bytes: Buffer,
    len: usize,
    home: Buffers,
}

impl Buffers {
    /// A buffer for a piece of `len` bytes, at most [`PIECE_LEN`]. Its contents are those of its
    /// last use.
    pub(super) fn take(&self, len: usize) -> Piece {
        Piece { bytes: self.free.take(PIECE_LEN), len: len.min(PIECE_LEN), home: self.clone() }
    }
}

impl Piece {
    /// Its bytes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// The piece, as it is to be handed on. The buffer comes back when the last copy of this is
    /// dropped.
    pub(super) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.home.free.give_back(mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_buffer_of_the_length_is_reused_and_surplus_freed() {
        let free = FreeList::new(3);
        for (len, byte) in [(2, 1), (5, 2), (2, 3), (5, 4)] {
            free.give_back(vec![byte; len].into_boxed_slice());
        }
        assert_eq!(free.count(), 3);
        let taken = [2, 2, 2, 5].map(|len| free.take(len).into_vec());
        assert_eq!(taken, [vec![3; 2], vec![1; 2], vec![0; 2], vec![2; 5]]);
        assert_eq!(free.count(), 0);
    }

    #[test]
    fn buffer_is_returned_when_its_last_slice_is_dropped() {
        let buffers = Buffers::default();
        let free_count = || buffers.free.count();
        let mut piece = buffers.take(3);
        piece.bytes_mut().copy_from_slice(b"abc");
        let whole = piece.freeze();
        let part = whole.slice(1..2);
        drop(whole);
        assert_eq!((free_count(), &part[..]), (0, &b"b"[..]));
        drop(part);
        assert_eq!(free_count(), 1);
        assert_eq!(buffers.take(2).bytes_mut().len(), 2);
    }

    #[test]
    fn no_more_buffers_are_kept_than_the_constant_says() {
        let buffers = Buffers::default();
        let pieces: Vec<Piece> = (0..2 * MAX_FREE_COUNT).map(|_| buffers.take(1)).collect();
        drop(pieces);
        assert_eq!(buffers.free.count(), MAX_FREE_COUNT);
    }
}
