//! The receive gate: a request body that is read with permits.
//!
//! If a hundred clients send at once, a hundred sockets are readable at the same time, and each
//! read takes some 20 µs in which no other task runs on that thread. With permits, a small request
//! waits only for the few reads in progress. A permit is for one read, since what follows a read
//! may wait for anything.
//!
//! With few uploads, each read takes as much as possible: the kernel sends a window update after
//! each read, and that is half the cost of receiving. All other bodies are read in small pieces,
//! because a piece holds the memory that it was read into.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::piece::PiecePermit;
use super::{ConnState, Socket};
use crate::runtime::fair::Paused;

/// Bytes of a read, at most, but for those of few bodies. One less than a power of two: hyper
/// doubles a buffer that was filled, and the bytes in it would keep twice as many.
pub(super) const READ_LEN: u64 = (64 << 10) - 1;

/// Maximum bytes of a read with few uploads. Half of it costs 10 % more CPU with four uploads;
/// twice as much gains nothing.
pub(super) const AMPLE_READ_LEN: u64 = 512 << 10;

/// The last bytes of a body, which are read in small pieces again, so that its connection does not
/// hold a large buffer for its lifetime. Two large reads may already have begun, because hyper
/// reads one piece ahead. Then hyper halves its buffer with every second short read, three times,
/// and reuses a buffer of at most 1 MiB until it is full.
pub(super) const TAPER_LEN: u64 = 5 << 19;

/// The permit in which a body is read; none where nothing is received in permits.
#[derive(Debug, Default)]
pub(super) struct ReceiveGate {
    /// As much as there is is read at once.
    is_ample: AtomicBool,
    permit: PiecePermit,
    /// Microseconds for which permits were waited for, those that came.
    lost: AtomicU64,
}

impl ReceiveGate {
    /// Bytes of the next read, at most.
    pub(super) fn max_len(&self) -> u64 {
        if self.is_ample.load(Ordering::Relaxed) { AMPLE_READ_LEN } else { READ_LEN }
    }

    /// Gets the permit for a read when there is something to be read.
    pub(super) fn poll_begin(&self, socket: &impl Socket, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Polled instead of tried, as for responses.
        if self.permit.is_paused() {
            ready!(socket.poll_read_ready(context))?;
        }
        let lost = ready!(self.permit.poll_resume(context));
        if !lost.is_zero() {
            self.lost.fetch_add(u64::try_from(lost.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    /// Something was read, or there was nothing.
    pub(super) fn end(&self) {
        self.permit.pause();
    }

    /// Nothing more arrives.
    pub(super) fn forget(&self) {
        self.is_ample.store(false, Ordering::Relaxed);
        self.permit.release();
    }
}

/// A body is read in permits, or amply, until this is dropped.
#[derive(Debug)]
pub(in crate::http) struct Receiving {
    conn: Arc<ConnState>,
    is_paced: bool,
}

impl Receiving {
    /// In permits like this one, or amply without one.
    pub(super) fn new(conn: Arc<ConnState>, permit: Option<Paused>) -> Self {
        let is_paced = permit.is_some();
        if let Some(permit) = permit {
            conn.receive_gate.permit.put_off(permit);
        }
        Self { conn, is_paced }
    }

    /// So many bytes are still to come, as far as that is known: to be said before each read.
    /// Returns whether these are the last ones of what was read amply.
    pub(in crate::http) fn expect(&self, left: Option<u64>) -> bool {
        let is_ample = !self.is_paced && left.is_some_and(|left| left >= TAPER_LEN);
        self.conn.receive_gate.is_ample.store(is_ample, Ordering::Relaxed);
        !self.is_paced && !is_ample
    }

    /// For how long what the client has sent has waited for its permits, on this connection.
    pub(in crate::http) fn lost(&self) -> Duration {
        let receive_gate = &self.conn.receive_gate;
        Duration::from_micros(receive_gate.lost.load(Ordering::Relaxed)) + receive_gate.permit.waiting()
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.conn.receive_gate.forget();
    }
}
