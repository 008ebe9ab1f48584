//! The receive gate decides how the socket of a connection is read.
//!
//! With many uploads under way, their bodies are read with permits. If a hundred clients send at
//! the same time, a hundred sockets are readable, and each read takes some 20 µs in which no other
//! task runs on that thread. With permits, a small request waits only for the few reads in
//! progress. Each read acquires its own permit, because the task may wait for anything between two
//! reads.
//!
//! With few uploads, their bodies are read without permits and in large reads. After each read the
//! kernel sends a TCP window update, which is half the cost of receiving.
//!
//! Everything else is read in small reads, because a received piece keeps its whole read buffer
//! alive.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::piece::PiecePermit;
use super::{ConnState, Socket};
use crate::runtime::fair::Paused;

/// Maximum bytes of a small read. It is one byte less than a power of two, so that a read does not
/// fill hyper's buffer. hyper doubles a buffer that was filled, and the received bytes would then
/// hold twice the memory.
pub(super) const READ_LEN: u64 = (64 << 10) - 1;

/// Maximum bytes of a large read. Half of this costs 10 % more CPU with four uploads; twice as much
/// gains nothing.
pub(super) const AMPLE_READ_LEN: u64 = 512 << 10;

/// The last bytes of a body are read in small reads again: this many. So the connection does not
/// hold a large buffer until it is closed.
///
/// hyper needs so many bytes to shrink its buffer. Up to two large reads may have begun already,
/// because hyper reads one piece ahead. Then hyper halves its buffer with every second short read,
/// three times. Meanwhile it fills a buffer of up to 1 MiB that it reuses.
pub(super) const TAPER_LEN: u64 = 5 << 19;

/// How the socket of a connection is read now.
#[derive(Debug, Default)]
pub(super) struct ReceiveGate {
    /// Whether reads are large: up to `AMPLE_READ_LEN`.
    is_ample: AtomicBool,
    /// The permit for a read; none while the socket is read without permits.
    permit: PiecePermit,
    /// Microseconds of completed waits for permits.
    lost: AtomicU64,
}

impl ReceiveGate {
    /// Maximum bytes of the next read.
    pub(super) fn max_len(&self) -> u64 {
        if self.is_ample.load(Ordering::Relaxed) { AMPLE_READ_LEN } else { READ_LEN }
    }

    /// Before a read: waits until bytes have arrived, and then for the permit, if one is needed.
    pub(super) fn poll_begin(&self, socket: &impl Socket, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Readiness is polled before the permit is acquired, as for responses: see
        // `PacedStream::poll_permit`.
        if self.permit.is_paused() {
            ready!(socket.poll_read_ready(context))?;
        }
        let lost = ready!(self.permit.poll_resume(context));
        if !lost.is_zero() {
            self.lost.fetch_add(u64::try_from(lost.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    /// After a read: releases the permit until the next read.
    pub(super) fn end(&self) {
        self.permit.pause();
    }

    /// Returns to small reads without permits, because the body has ended.
    pub(super) fn forget(&self) {
        self.is_ample.store(false, Ordering::Relaxed);
        self.permit.release();
    }
}

/// While this exists, the socket is read for the body of an upload: with permits, or without them
/// in large reads.
#[derive(Debug)]
pub(in crate::http) struct Receiving {
    conn: Arc<ConnState>,
    /// Whether reads need permits.
    is_paced: bool,
}

impl Receiving {
    /// Begins a body: with this permit for each read, or with `None` in large reads.
    pub(super) fn new(conn: Arc<ConnState>, permit: Option<Paused>) -> Self {
        let is_paced = permit.is_some();
        if let Some(permit) = permit {
            conn.receive_gate.permit.put_off(permit);
        }
        Self { conn, is_paced }
    }

    /// Chooses the size of the next read. To be called before each read, with the number of bytes
    /// that are still to come, if known. Returns whether these are the last bytes of a body without
    /// permits, which are read in small reads.
    pub(in crate::http) fn expect(&self, left: Option<u64>) -> bool {
        let is_ample = !self.is_paced && left.is_some_and(|left| left >= TAPER_LEN);
        self.conn.receive_gate.is_ample.store(is_ample, Ordering::Relaxed);
        !self.is_paced && !is_ample
    }

    /// Total time that received bytes have waited for permits on this connection.
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
