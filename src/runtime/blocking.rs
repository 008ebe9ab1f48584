//! The one door to blocking work: a counted share of tokio's blocking threads.
//!
//! A [`Pool`] lets so many closures run at once and makes the others wait, which is what bounds memory (each closure
//! holds its buffers) and keeps a slow disk from taking every thread. Those who wait are served in turn
//! ([`FairGate`]), so that the work of one tenant does not stand before that of all others. The turn travels *into* the
//! closure: when a client hangs up, the future that waits is dropped, but the closure runs to its end and pays until then.

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

/// A number of blocking closures that may run at once.
#[derive(Clone, Debug)]
pub struct Pool {
    turns: FairGate,
}

/// Work that was started; dropping it does not stop the work.
#[derive(Debug)]
#[must_use = "the result of the work is here"]
pub struct Running<T> {
    handle: JoinHandle<T>,
}

/// Work beside that of a thread, which will wait for it.
#[must_use = "the result of the work is here"]
pub struct Beside<T> {
    /// What has not begun yet.
    work: Arc<Unbegun>,
    result: Receiver<T>,
}

type Unbegun = Mutex<Option<Box<dyn FnOnce() + Send>>>;

impl Pool {
    /// A pool in which `count` closures may run at once, at least one.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { turns: FairGate::patient(u32::try_from(count).unwrap_or(u32::MAX)) }
    }

    /// Waits for its turn, in the line of the [current](Tenant::current) tenant, then runs the closure on a blocking thread.
    /// Returns once the closure was started.
    pub async fn start<T, F>(&self, work: F) -> Running<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.start_for(Tenant::current(), work).await
    }

    /// The same in the line of this tenant.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub async fn start_for<T, F>(&self, tenant: Tenant, work: F) -> Running<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let turn = self.turns.wait(tenant, 1).await;
        let span = tracing::Span::current();
        let handle = tokio::task::spawn_blocking(move || {
            let result = span.in_scope(work);
            drop(turn);
            result
        });
        Running { handle }
    }

    /// Whether anybody waits for a turn.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.turns.load().1 > 0
    }

    /// Runs the closure on a blocking thread when its turn comes, and waits for it.
    pub async fn run<T, F>(&self, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.start(work).await.await
    }

    /// The same in the line of this tenant.
    pub async fn run_for<T, F>(&self, tenant: Tenant, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.start_for(tenant, work).await.await
    }
}

impl Pool {
    /// Drops a value whose end may block, on a blocking thread, and does not wait for it. It takes no permit: what ends
    /// gives memory and files back, and must not wait behind what takes them. Without a runtime it is dropped here.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub fn dispose<T: Send + 'static>(&self, value: T) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(value))),
            Err(_) => drop(value),
        }
    }
}

impl Pool {
    /// Runs the closure on another blocking thread, beside the one that asks, which has its turn already and is to
    /// [wait](Beside::wait) for the end. It takes no turn of its own: two that wait for each other's would wait for ever. Without a
    /// runtime it runs when it is waited for.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub fn beside<T, F>(&self, work: F) -> Beside<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (done, result) = mpsc::sync_channel(1);
        // Who does not wait does not want it.
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
    /// Waits for the end of the work. Blocks. What no other thread has begun runs here: where the system gives no more threads,
    /// it would be in line behind the one that waits. `None` where it has panicked on another thread.
    pub fn wait(self) -> Option<T> {
        begin(&self.work);
        self.result.recv().ok()
    }
}

fn begin(work: &Unbegun) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_runs_beside_a_closure_takes_no_turn_and_a_panic_in_it_is_no_result() {
        let pool = Pool::new(1);
        let within = pool.clone();
        let results = pool.run(move || {
            let sum = within.beside(|| 1 + 1).wait();
            let (begun, has_begun) = mpsc::channel();
            let nothing = within.beside(move || {
                begun.send(()).unwrap();
                panic!("as asked");
            });
            // Not before another thread has it: here it would panic here.
            has_begun.recv().unwrap();
            (sum, nothing.wait())
        });
        assert_eq!(results.await, (Some(2), None::<()>));
    }

    #[test]
    fn where_there_is_no_other_thread_what_runs_beside_a_closure_runs_when_it_is_waited_for() {
        assert_eq!(Pool::new(1).beside(|| 3).wait(), Some(3));
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let pool = Pool::new(1);
        let within = pool.clone();
        assert_eq!(runtime.block_on(pool.run(move || within.beside(|| 4).wait())), Some(4));
    }
}
