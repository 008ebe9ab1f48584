//! A body that arrives on a connection, and is read in turns.
//!
//! Where a hundred clients send at once, a hundred sockets have something at the same moment, and each read of one is some
//! 20 microseconds in which nobody else is served. In turns, who asks for a little waits for those few that are being read.
//! A turn is for one read, since what comes after it may wait for anything.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::piece::PieceTurn;
use super::{Outlet, Socket};
use crate::runtime::fair::Paused;

/// The turn in which a body is read; none where nothing is received in turns.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    turn: PieceTurn,
    /// Microseconds for which turns were waited for, those that came.
    lost: AtomicU64,
}

impl Arrival {
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
        self.turn.release();
    }
}

/// A body is read in turns until this is dropped.
#[derive(Debug)]
pub(in crate::http) struct Arriving(Arc<Outlet>);

impl Arriving {
    pub(super) fn new(outlet: Arc<Outlet>, turn: Paused) -> Self {
        outlet.arrival.turn.put_off(turn);
        Self(outlet)
    }

    /// For how long what the client has sent has waited for its turns, on this connection.
    pub(in crate::http) fn lost(&self) -> Duration {
        Duration::from_micros(self.0.arrival.lost.load(Ordering::Relaxed)) + self.0.arrival.turn.waiting()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.arrival.forget();
    }
}
