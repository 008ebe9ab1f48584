//! The one door to blocking work: a counted share of tokio's blocking threads.
//!
//! A [`Pool`] lets so many closures run at once and makes the others wait, which is what bounds memory (each closure
//! holds its buffers) and keeps a slow disk from taking every thread. The permit travels *into* the closure: when a
//! client hangs up, the future that waits is dropped, but the closure runs to its end and pays until then.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A number of blocking closures that may run at once.
#[derive(Clone, Debug)]
pub struct Pool {
    permits: Arc<Semaphore>,
}

/// Work that was started; dropping it does not stop the work.
#[derive(Debug)]
#[must_use = "the result of the work is here"]
pub struct Running<T> {
    handle: JoinHandle<T>,
}

impl Pool {
    /// A pool in which `count` closures may run at once, at least one.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(count.max(1))) }
    }

    /// Waits for its turn, then runs the closure on a blocking thread. Returns once the closure was started.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub async fn start<T, F>(&self, work: F) -> Running<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("nobody closes this semaphore");
        let span = tracing::Span::current();
        let handle = tokio::task::spawn_blocking(move || {
            let result = span.in_scope(work);
            drop(permit);
            result
        });
        Running { handle }
    }

    /// Runs the closure on a blocking thread when its turn comes, and waits for it.
    pub async fn run<T, F>(&self, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.start(work).await.await
    }
}

impl Pool {
    /// Drops a value whose end may block, on a blocking thread, and does not wait for it. It takes no permit: what ends
    /// gives memory and files back, and must not wait behind what takes them. Without a runtime it is dropped here.
    pub fn dispose<T: Send + 'static>(&self, value: T) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(value))),
            Err(_) => drop(value),
        }
    }
}

impl<T> Future for Running<T> {
    type Output = T;

    /// Waits for the end of the work. A panic in there continues here.
    ///
    /// The work is never cancelled: tokio drops closures only when the whole runtime goes away, and then nobody
    /// polls this.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match ready!(Pin::new(&mut self.handle).poll(context)) {
            Ok(result) => Poll::Ready(result),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Poll::Pending,
            },
        }
    }
}
