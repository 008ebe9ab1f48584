//! Reusable buffers, for pieces of blobs that are read, and for blocks of drafts. Buffers are
//! reused because the kernel maps and clears fresh memory page by page, which costs more CPU time
//! than to copy the bytes into a buffer.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Bytes of a buffer for a piece, and so the maximum length of a piece. Several such buffers fit
/// into the CPU's cache, so the bytes are still in this cache when they are sent.
pub(super) const PIECE_LEN: usize = 256 << 10;

/// Maximum number of unused buffers for pieces. They have 8 MiB.
const MAX_FREE_COUNT: usize = 32;

/// A list of unused buffers, the most recently used one last. Their lengths may differ.
pub(super) struct FreeList {
    max_count: usize,
    buffers: Mutex<Vec<Buffer>>,
}

pub(super) type Buffer = Box<[u8]>;

impl FreeList {
    /// A list of at most `max_count` buffers.
    pub(super) fn new(max_count: usize) -> Self {
        Self { max_count, buffers: Mutex::default() }
    }

    /// A buffer of exactly `len` bytes: the most recently used one, or else a new one. A used
    /// buffer still contains the bytes of its last use.
    pub(super) fn take(&self, len: usize) -> Buffer {
        let mut buffers = self.buffers();
        let at = buffers.iter().rposition(|buffer| buffer.len() == len);
        let unused = at.map(|at| buffers.remove(at));
        drop(buffers);
        unused.unwrap_or_else(|| vec![0; len].into_boxed_slice())
    }

    /// Adds a buffer to the list, unless the list is full.
    pub(super) fn give_back(&self, buffer: Buffer) {
        let mut buffers = self.buffers();
        if buffers.len() < self.max_count {
            buffers.push(buffer);
        }
    }

    /// The number of unused buffers.
    pub(super) fn count(&self) -> usize {
        self.buffers().len()
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Omits the contents, which are bytes of blobs.
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

/// A piece of a blob in a buffer, which returns to its list on drop.
pub(super) struct Piece {
    bytes: Buffer,
    /// The length of the piece. The buffer may be longer.
    len: usize,
    home: Buffers,
}

impl Buffers {
    /// A buffer for a piece of `len` bytes, or of [`PIECE_LEN`] bytes if `len` is greater. The
    /// bytes may be those of an earlier piece, so the caller must overwrite all of them.
    pub(super) fn take(&self, len: usize) -> Piece {
        Piece { bytes: self.free.take(PIECE_LEN), len: len.min(PIECE_LEN), home: self.clone() }
    }
}

impl Piece {
    /// The bytes of the piece.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// The piece as [`Bytes`]. The buffer returns to its list when the last clone is dropped.
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
