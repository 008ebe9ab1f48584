//! The permit of a piece that a connection sends, or of a body that it receives. The permit is held
//! during the work, released while the server waits for the client, and acquired again after it.

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

/// The state of the permit. The lock is never contended for long, because only the tasks of one
/// connection take it.
#[derive(Debug, Default)]
pub(super) struct PiecePermit(Mutex<Held>);

/// The states of the permit.
#[derive(Default)]
enum Held {
    /// There is no piece, or the kernel has taken it.
    #[default]
    Nothing,
    /// The permit is held.
    Permit(Permit),
    /// The permit is released while the server waits for the client.
    Paused(Paused),
    /// The permit is being acquired again, because the client continues. Contains the time at which
    /// that began, and the waker of the task that waits.
    Resuming(BoxFuture<'static, Permit>, Instant, Waker),
}

impl PiecePermit {
    /// Holds the permit of a new piece.
    pub(super) fn hold(&self, permit: Permit) {
        *self.held() = Held::Permit(permit);
    }

    /// Stores a permit that is acquired when it is needed.
    pub(super) fn put_off(&self, permit: Paused) {
        *self.held() = Held::Paused(permit);
    }

    /// Releases the permit, because the work on the piece has ended.
    pub(super) fn release(&self) {
        // Wake the task that waits for the permit. The socket is ready already, so that nothing
        // else would wake the task.
        let held = mem::take(&mut *self.held());
        if let Held::Resuming(_, _, waiting) = held {
            waiting.wake();
        }
    }

    /// Releases a permit that is held, until [`poll_resume`](Self::poll_resume).
    pub(super) fn pause(&self) {
        let mut held = self.held();
        *held = match mem::take(&mut *held) {
            Held::Permit(permit) => Held::Paused(permit.pause()),
            other => other,
        };
    }

    /// Whether the permit was released by a pause, and is not being acquired again yet.
    pub(super) fn is_paused(&self) -> bool {
        matches!(*self.held(), Held::Paused(_))
    }

    /// Acquires a paused permit again, and returns how long that took. Ready at once if no permit
    /// is paused.
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

    /// How long the current wait for the permit has lasted; 0 if there is none.
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

/// Lets all ready tasks run before the caller works with its permit. Most ready tasks only enter
/// the queue for a permit, and the queue is fair only among the tasks in it.
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
