//! Buffers that pieces of blobs are read into, and blocks of drafts collected in, used again and again: fresh memory has to
//! be cleared and mapped page by page, which costs more than the bytes that come into it.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Bytes of a buffer, and of a piece at most. The processor's own cache holds some of these, so that the bytes are still
/// there when they are sent; and who reads slowly holds no more than one.
pub(super) const PIECE_LEN: usize = 256 << 10;

/// Buffers that are kept for the next piece, at most: 8 MiB.
const MAX_FREE_COUNT: usize = 32;

/// Buffers that nobody uses at the moment, the latest used one on top.
#[derive(Debug, Default)]
pub(super) struct Free(Mutex<Vec<Buffer>>);

impl Free {
    /// A buffer of so many bytes. What is in it is what was in it before.
    pub(super) fn take(&self, len: usize) -> Buffer {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.iter().rposition(|buffer| buffer.len() == len);
        let kept = at.map(|at| free.remove(at));
        drop(free);
        kept.unwrap_or_else(|| vec![0; len].into_boxed_slice())
    }

    /// Keeps a buffer, unless so many are kept.
    pub(super) fn give_back(&self, buffer: Buffer, max_count: usize) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < max_count {
            free.push(buffer);
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Buffers for pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers {
    free: Arc<Free>,
}

/// Room for a piece; goes back to where it came from.
pub(super) struct Piece {
    bytes: Buffer,
    len: usize,
    home: Buffers,
}

pub(super) type Buffer = Box<[u8]>;

impl Buffers {
    /// Room for a piece of `len` bytes, at most [`PIECE_LEN`]. What is in it is what was in it before.
    pub(super) fn take(&self, len: usize) -> Piece {
        Piece { bytes: self.free.take(PIECE_LEN), len: len.min(PIECE_LEN), home: self.clone() }
    }
}

impl Piece {
    /// Its bytes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// The piece, as it is to be handed on. The buffer comes back when the last copy of this is dropped.
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
        self.home.free.give_back(mem::take(&mut self.bytes), MAX_FREE_COUNT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_the_last_piece_of_it_is_dropped_and_not_before() {
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
