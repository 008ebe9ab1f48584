//! The permit of the piece that a connection is sending, or of the body that it receives: held,
//! given back while the client does nothing, and got again.

use std::fmt;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::runtime::fair::{Paused, Permit};

/// Where the permit of a piece is. Only its connection takes the lock.
#[derive(Debug, Default)]
pub(super) struct PiecePermit(Mutex<Held>);

#[derive(Default)]
enum Held {
    /// There is no piece, or it is out.
    #[default]
    Nothing,
    Permit(Permit),
    /// Given back while the client takes nothing.
    Paused(Paused),
    /// The client does something, and the permit is waited for, since then, by this task.
    Resuming(BoxFuture<'static, Permit>, Instant, Waker),
}

impl PiecePermit {
    /// Keeps the permit of a piece.
    pub(super) fn hold(&self, permit: Permit) {
        *self.held() = Held::Permit(permit);
    }

    /// Stores a paused permit that was not needed yet.
    pub(super) fn put_off(&self, permit: Paused) {
        *self.held() = Held::Paused(permit);
    }

    /// The piece is out.
    pub(super) fn release(&self) {
        // A task that waits for a permit waits for nothing else: the socket is ready.
        let held = mem::take(&mut *self.held());
        if let Held::Resuming(_, _, waiting) = held {
            waiting.wake();
        }
    }

    /// Gives the permit back of a piece that is not out yet.
    pub(super) fn pause(&self) {
        let mut held = self.held();
        *held = match mem::take(&mut *held) {
            Held::Permit(permit) => Held::Paused(permit.pause()),
            other => other,
        };
    }

    /// Whether the permit was returned, and is not being re-acquired yet.
    pub(super) fn is_paused(&self) -> bool {
        matches!(*self.held(), Held::Paused(_))
    }

    /// Re-acquires a returned permit, and returns the time that it took; ready at once if none was
    /// returned.
    pub(super) fn poll_resume(&self, context: &mut Context<'_>) -> Poll<Duration> {
        let mut held = self.held();
        *held = match mem::take(&mut *held) {
            Held::Paused(paused) => {
                Held::Resuming(paused.resume().then(yield_to_ready).boxed(), Instant::now(), context.waker().clone())
            }
            other => other,
        };
        let Held::Resuming(resuming, since, waiting) = &mut *held else { return Poll::Ready(Duration::ZERO) };
        waiting.clone_from(context.waker());
        let permit = ready!(resuming.poll_unpin(context));
        let took = since.elapsed();
        *held = Held::Permit(permit);
        Poll::Ready(took)
    }

    /// For how long the permit is being waited for just now.
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

/// Continues with a permit after all ready tasks: most of them only need to enter the queue.
pub(in crate::http) async fn yield_to_ready(permit: Permit) -> Permit {
    yield_now().await;
    permit
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Permit(_) => "Permit",
            Self::Paused(_) => "Paused",
            Self::Resuming(..) => "Resuming",
        })
    }
}
