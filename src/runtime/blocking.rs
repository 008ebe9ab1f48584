//! The only way to run blocking work: on a limited number of tokio's blocking threads.
//!
//! A [`Pool`] runs a limited number of closures at once and queues the others. This bounds memory,
//! because each closure holds its buffers. It also prevents closures that wait for a slow disk
//! from occupying every thread. The queue is fair ([`FairGate`]), so that the work of one tenant
//! does not block the work of others.
//!
//! The permit moves *into* the closure. When a client disconnects, the waiting future is dropped,
//! but the closure runs to its end and holds its permit until then.

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::fair::{FairGate, Tenant};

/// Runs a limited number of blocking closures at once. Clones share the limit.
#[derive(Clone, Debug)]
pub struct Pool {
    permits: FairGate,
}

/// Work that was started. If this is dropped, the work still runs to its end.
#[derive(Debug)]
#[must_use = "the result of the work is here"]
pub struct Running<T> {
    /// `None` if the runtime has dropped the work.
    handle: Option<JoinHandle<T>>,
}

/// Work that was started by a closure on a blocking thread, which will wait for it.
#[must_use = "the result of the work is here"]
pub struct Beside<T> {
    /// The closure, until a thread takes it.
    work: Arc<PendingWork>,
    result: Receiver<T>,
}

type PendingWork = Mutex<Option<Box<dyn FnOnce() + Send>>>;

impl Pool {
    /// A pool in which `count` closures may run at once, at least one.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { permits: FairGate::unbounded(u32::try_from(count).unwrap_or(u32::MAX)) }
    }

    /// Waits for a permit, in the queue of the [current](Tenant::current) tenant, and then passes
    /// the closure to a blocking thread. Does not wait for the end of the closure.
    pub async fn start<T, F>(&self, work: F) -> Running<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.start_for(Tenant::current(), work).await
    }

    /// Like [`start`](Self::start), in the queue of this tenant.
    #[expect(clippy::disallowed_methods, reason = "the only module that spawns blocking work")]
    pub async fn start_for<T, F>(&self, tenant: Tenant, work: F) -> Running<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let permit = self.permits.wait(tenant, 1).await;
        let span = tracing::Span::current();
        let handle = tokio::task::spawn_blocking(move || {
            let result = span.in_scope(work);
            drop(permit);
            result
        });
        Running { handle: Some(handle) }
    }

    /// Whether a closure waits for a permit.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.permits.load().1 > 0
    }

    /// Runs the closure on a blocking thread with a permit, and waits for it.
    pub async fn run<T, F>(&self, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.start(work).await.await
    }

    /// Like [`run`](Self::run), in the queue of this tenant.
    pub async fn run_for<T, F>(&self, tenant: Tenant, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.start_for(tenant, work).await.await
    }
}

impl Pool {
    /// Drops a value on a blocking thread, because its drop may block, and does not wait for the
    /// end. The drop takes no permit: it releases memory and files, and must not wait for closures
    /// that use more of them. Outside of a runtime the value is dropped on this thread.
    #[expect(clippy::disallowed_methods, reason = "the only module that spawns blocking work")]
    pub fn dispose<T: Send + 'static>(&self, value: T) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(value))),
            Err(_) => drop(value),
        }
    }
}

impl Pool {
    /// Runs the closure on another blocking thread. The caller is itself a closure with a permit,
    /// and must [wait](Beside::wait) for the end. The new closure takes no permit: if callers like
    /// this held all permits, each would wait for a permit forever. Outside of a runtime the
    /// closure runs in `wait`.
    #[expect(clippy::disallowed_methods, reason = "the only module that spawns blocking work")]
    pub fn beside<T, F>(&self, work: F) -> Beside<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (done, result) = mpsc::sync_channel(1);
        // The send fails if the `Beside` was dropped. Then the result is not needed.
        let work: Box<dyn FnOnce() + Send> = Box::new(move || drop(done.send(work())));
        let work = Arc::new(Mutex::new(Some(work)));
        if let Ok(runtime) = Handle::try_current() {
            let work = Arc::clone(&work);
            drop(runtime.spawn_blocking(move || begin(&work)));
        }
        Beside { work, result }
    }
}

impl<T> Beside<T> {
    /// Waits for the end of the work. Blocks. If no other thread has begun the work, it runs on
    /// this thread, because all other threads may wait in the same way. `None` if the work panicked
    /// on another thread.
    pub fn wait(self) -> Option<T> {
        begin(&self.work);
        self.result.recv().ok()
    }
}

/// Runs the work, unless another thread has taken it.
fn begin(work: &PendingWork) {
    let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(work) = work {
        work();
    }
}

impl<T> fmt::Debug for Beside<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

impl<T> Future for Running<T> {
    type Output = T;

    /// Waits for the end of the work. A panic of the closure continues here.
    ///
    /// The work is never cancelled. Tokio drops queued closures only when the whole runtime is
    /// dropped. This future may be polled a few more times then, and never completes.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(handle) = &mut self.handle else { return Poll::Pending };
        match ready!(Pin::new(handle).poll(context)) {
            Ok(result) => Poll::Ready(result),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => {
                    self.handle = None;
                    Poll::Pending
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the work panics on another thread, `wait` returns `None`.
    #[tokio::test]
    async fn work_beside_a_closure_takes_no_permit_and_panic_is_none() {
        let pool = Pool::new(1);
        let within = pool.clone();
        let results = pool.run(move || {
            let sum = within.beside(|| 1 + 1).wait();
            let (begun, has_begun) = mpsc::channel();
            let nothing = within.beside(move || {
                begun.send(()).unwrap();
                panic!("as asked");
            });
            // Wait until another thread has begun the work. Otherwise it would run in `wait` and
            // panic on this thread.
            has_begun.recv().unwrap();
            (sum, nothing.wait())
        });
        assert_eq!(results.await, (Some(2), None::<()>));
    }

    #[test]
    fn without_spare_threads_work_beside_runs_when_awaited() {
        assert_eq!(Pool::new(1).beside(|| 3).wait(), Some(3));
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let pool = Pool::new(1);
        let within = pool.clone();
        assert_eq!(runtime.block_on(pool.run(move || within.beside(|| 4).wait())), Some(4));
    }
}
