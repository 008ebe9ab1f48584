//! A body that arrives on a connection, and is read in turns.
//!
//! Where a hundred clients send at once, a hundred sockets have something at the same moment, and each read of one is some
//! 20 microseconds in which nobody else is served. In turns, who asks for a little waits for those few that are being read.
//! A turn is for one read, since what comes after it may wait for anything.
//!
//! Where there are few, what has arrived is read as far as possible at once: each read is answered by the kernel with a packet to
//! the sender, and that is half of what it costs to receive. All others read little at once, for what was read keeps the memory
//! that it was read into.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::piece::PieceTurn;
use super::{Outlet, Socket};
use crate::runtime::fair::Paused;

/// Bytes of a read, at most, but for those of few bodies. One less than a power of two: hyper doubles a buffer that was filled, and
/// the bytes in it would keep twice as many.
pub(super) const READ_LEN: u64 = (64 << 10) - 1;

/// Bytes of a read of few bodies, at most. With half of it four uploads took 1.1 times the processor, and twice as much gained nothing.
pub(super) const AMPLE_READ_LEN: u64 = 512 << 10;

/// Bytes at the end of a body of which no more is read at once than of others, so that its connection does not keep half a MiB for as
/// long as it lives. Two long reads may have begun before, since hyper is one ahead of who takes the pieces. Then it halves what it
/// makes room for with every second short read, thrice, and goes on with the room that there is, a MiB at most, until that is full.
pub(super) const TAPER_LEN: u64 = 5 << 19;

/// The turn in which a body is read; none where nothing is received in turns.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    /// As much as there is is read at once.
    is_ample: AtomicBool,
    turn: PieceTurn,
    /// Microseconds for which turns were waited for, those that came.
    lost: AtomicU64,
}

impl Arrival {
    /// Bytes of the next read, at most.
    pub(super) fn max_len(&self) -> u64 {
        if self.is_ample.load(Ordering::Relaxed) { AMPLE_READ_LEN } else { READ_LEN }
    }

    /// Gets the turn for a read when there is something to be read.
    pub(super) fn poll_begin(&self, socket: &impl Socket, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Asked, and not tried, as for answers.
        if self.turn.is_paused() {
            ready!(socket.poll_read_ready(context))?;
        }
        let lost = ready!(self.turn.poll_resume(context));
        if !lost.is_zero() {
            self.lost.fetch_add(u64::try_from(lost.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    /// Something was read, or there was nothing.
    pub(super) fn end(&self) {
        self.turn.pause();
    }

    /// Nothing more arrives.
    pub(super) fn forget(&self) {
        self.is_ample.store(false, Ordering::Relaxed);
        self.turn.release();
    }
}

/// A body is read in turns, or amply, until this is dropped.
#[derive(Debug)]
pub(in crate::http) struct Arriving {
    outlet: Arc<Outlet>,
    is_in_turns: bool,
}

impl Arriving {
    /// In turns like this one, or amply without one.
    pub(super) fn new(outlet: Arc<Outlet>, turn: Option<Paused>) -> Self {
        let is_in_turns = turn.is_some();
        if let Some(turn) = turn {
            outlet.arrival.turn.put_off(turn);
        }
        Self { outlet, is_in_turns }
    }

    /// So many bytes are still to come, as far as that is known: to be said before each read. Returns whether these are the last
    /// ones of what was read amply.
    pub(in crate::http) fn expect(&self, left: Option<u64>) -> bool {
        let is_ample = !self.is_in_turns && left.is_some_and(|left| left >= TAPER_LEN);
        self.outlet.arrival.is_ample.store(is_ample, Ordering::Relaxed);
        !self.is_in_turns && !is_ample
    }

    /// For how long what the client has sent has waited for its turns, on this connection.
    pub(in crate::http) fn lost(&self) -> Duration {
        let arrival = &self.outlet.arrival;
        Duration::from_micros(arrival.lost.load(Ordering::Relaxed)) + arrival.turn.waiting()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.outlet.arrival.forget();
    }
}
