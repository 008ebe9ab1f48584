//! The part of a body that waits for a worker.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

/// Pieces shorter than this are copied together. A piece keeps its whole receive buffer alive: 64
/// KiB at most, or 512 KiB with few uploads. So a client that sends single bytes would otherwise
/// hold a buffer for each of them.
const SMALL_LEN: usize = 32 << 10;

/// Pieces of a body, in order. They hold little more memory than their bytes.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pieces: Vec<Bytes>,
    /// The last pieces of the batch, if they are small.
    small: BytesMut,
    len: usize,
}

impl Batch {
    /// Bytes in it.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds the next piece.
    pub(super) fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if piece.len() < SMALL_LEN {
            self.small.extend_from_slice(&piece);
        } else {
            self.close_small();
            self.pieces.push(piece);
        }
    }

    /// Takes the collected pieces, in order; the batch is empty afterwards.
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

/// The batch that fills while a worker verifies the previous one. The worker takes it directly: if
/// the receiving task handed it over, the worker would idle for two context switches.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    batch: Mutex<Batch>,
    taken: Notify,
}

impl Inbox {
    /// Bytes in it.
    pub(super) fn len(&self) -> usize {
        self.batch().len()
    }

    /// Adds the next piece.
    pub(super) fn push(&self, piece: Bytes) {
        self.batch().push(piece);
    }

    /// Takes the collected pieces, if they have at least `min_len` bytes.
    pub(super) fn take(&self, min_len: usize) -> Option<Vec<Bytes>> {
        let mut batch = self.batch();
        let pieces = (batch.len() >= min_len).then(|| batch.take())?;
        drop(batch);
        self.taken.notify_one();
        Some(pieces)
    }

    /// Waits until the worker takes pieces; returns at once if it did since the last call.
    pub(super) async fn taken(&self) {
        self.taken.notified().await;
    }

    fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn inbox_yields_enough_bytes_and_signals_space_once() {
        let inbox = Inbox::default();
        inbox.push(Bytes::from(vec![1; 10]));
        assert_eq!((inbox.take(11), inbox.len()), (None, 10));
        assert!(inbox.taken().now_or_never().is_none());
        assert_eq!(inbox.take(10).unwrap().concat(), [1; 10]);
        assert_eq!(inbox.len(), 0);
        assert!(inbox.taken().now_or_never().is_some());
        assert!(inbox.taken().now_or_never().is_none());
    }

    #[test]
    fn pieces_keep_their_order_and_small_ones_share_a_buffer() {
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
