//! The turn of the piece that a connection is sending, or of the body that it receives: held, given back while the client
//! does nothing, and got again.

use std::fmt;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::http::sending::in_line;
use crate::runtime::fair::{Paused, Turn};

/// Where the turn of a piece is. Only its connection takes the lock.
#[derive(Debug, Default)]
pub(super) struct PieceTurn(Mutex<Held>);

#[derive(Default)]
enum Held {
    /// There is no piece, or it is out.
    #[default]
    Nothing,
    Turn(Turn),
    /// Given back while the client takes nothing.
    Paused(Paused),
    /// The client does something, and the turn is waited for, since then, by this task.
    Resuming(BoxFuture<'static, Turn>, Instant, Waker),
}

impl PieceTurn {
    /// Keeps the turn of a piece.
    pub(super) fn hold(&self, turn: Turn) {
        *self.held() = Held::Turn(turn);
    }

    /// Keeps a turn that nobody has needed yet.
    pub(super) fn put_off(&self, turn: Paused) {
        *self.held() = Held::Paused(turn);
    }

    /// The piece is out.
    pub(super) fn release(&self) {
        // Who waits for a turn waits for nothing else: not for the socket, which is ready.
        let held = mem::take(&mut *self.held());
        if let Held::Resuming(_, _, waiting) = held {
            waiting.wake();
        }
    }

    /// Gives the turn back of a piece that is not out yet.
    pub(super) fn pause(&self) {
        let mut held = self.held();
        *held = match mem::take(&mut *held) {
            Held::Turn(turn) => Held::Paused(turn.pause()),
            other => other,
        };
    }

    /// Whether the turn was given back, and nobody waits for it yet.
    pub(super) fn is_paused(&self) -> bool {
        matches!(*self.held(), Held::Paused(_))
    }

    /// Gets a turn again that was given back, and says how long that took; at once where none was.
    pub(super) fn poll_resume(&self, context: &mut Context<'_>) -> Poll<Duration> {
        let mut held = self.held();
        *held = match mem::take(&mut *held) {
            Held::Paused(paused) => {
                Held::Resuming(paused.resume().then(in_line).boxed(), Instant::now(), context.waker().clone())
            }
            other => other,
        };
        let Held::Resuming(resuming, since, waiting) = &mut *held else { return Poll::Ready(Duration::ZERO) };
        waiting.clone_from(context.waker());
        let turn = ready!(resuming.poll_unpin(context));
        let took = since.elapsed();
        *held = Held::Turn(turn);
        Poll::Ready(took)
    }

    /// For how long the turn is being waited for just now.
    pub(super) fn waiting(&self) -> Duration {
        match &*self.held() {
            Held::Resuming(_, since, _) => since.elapsed(),
            _ => Duration::ZERO,
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Turn(_) => "Turn",
            Self::Paused(_) => "Paused",
            Self::Resuming(..) => "Resuming",
        })
    }
}
