//! The part of a body that waits for a worker.

use std::mem;

use bytes::{Bytes, BytesMut};

/// Pieces below this are copied together. A piece keeps the whole buffer alive that it was received into (64 KiB at
/// most), so a client that sends single bytes would otherwise hold a buffer for each of them.
const SMALL_LEN: usize = 32 << 10;

/// Pieces of a body, in order, that take little more memory than they have bytes.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pieces: Vec<Bytes>,
    /// The end of the batch, as far as it came in small pieces.
    small: BytesMut,
    len: usize,
}

impl Batch {
    /// Bytes in it.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Takes the next piece.
    pub(super) fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if piece.len() < SMALL_LEN {
            self.small.extend_from_slice(&piece);
        } else {
            self.close_small();
            self.pieces.push(piece);
        }
    }

    /// What was collected, in pieces that are to be taken in order; the batch is empty afterwards.
    pub(super) fn take(&mut self) -> Vec<Bytes> {
        self.close_small();
        self.len = 0;
        mem::take(&mut self.pieces)
    }

    fn close_small(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push(mem::take(&mut self.small).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_pieces_keep_their_order_and_small_ones_share_a_buffer() {
        let mut batch = Batch::default();
        let mut expected = Vec::new();
        for (len, byte) in [(1, 1), (2, 2), (SMALL_LEN, 3), (5, 4), (SMALL_LEN - 1, 5), (SMALL_LEN + 1, 6)] {
            batch.push(Bytes::from(vec![byte; len]));
            expected.extend(vec![byte; len]);
        }
        assert_eq!(batch.len(), expected.len());
        let pieces = batch.take();
        assert_eq!(pieces.len(), 4);
        assert_eq!(pieces.concat(), expected);
        assert_eq!((batch.len(), batch.take().len()), (0, 0));
    }
}
