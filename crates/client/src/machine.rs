//! The only module of the client that starts blocking work, reads the clock and writes the files of
//! its cache. In all other modules the functions of tokio and std for this are banned
//! (`.clippy.toml`).

use std::fs;
use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Runs blocking closures, at most a fixed number at once. Further ones are queued, first come,
/// first served. A clone shares the number with the original.
///
/// The number bounds memory, because each closure holds its buffers. A closure that has begun runs
/// to its end, even if its result is no longer awaited, and counts until then.
#[derive(Clone, Debug)]
pub struct Workers {
    permits: Arc<Semaphore>,
}

/// Work that was started; dropping it does not stop the work.
#[derive(Debug)]
#[must_use = "the result of the work is here"]
pub struct Running<T> {
    handle: JoinHandle<T>,
}

impl Workers {
    /// Workers for `count` closures at once, at least one.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS))) }
    }

    /// Waits until fewer closures than the number run, then starts the closure on a blocking
    /// thread. Returns once it was started.
    #[expect(clippy::disallowed_methods, reason = "only this module may call it")]
    pub async fn start<T, F>(&self, work: F) -> Running<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
        let handle = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(permit);
            result
        });
        Running { handle }
    }

    /// As [`start`](Self::start), but waits for the result and returns it.
    pub async fn run<T, F>(&self, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.start(work).await.await
    }
}

impl<T> Future for Running<T> {
    type Output = T;

    /// Waits for the end of the work. A panic of the closure continues here.
    ///
    /// Work that was started is never cancelled. Only if the whole runtime is dropped, tokio drops
    /// closures, and then nothing polls this future.
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

/// The time of day. It can jump, also backwards.
#[expect(clippy::disallowed_methods, reason = "only this module may call it")]
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}

/// Replaces a file, and creates its directory if missing. Another process reads either the old or
/// the new contents. Nothing is synced, so after a power cut the file may be missing or damaged.
#[expect(clippy::disallowed_methods, reason = "only this module may call it, and a cache may lose files")]
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let draft = path.with_added_extension(format!("{:016x}", rand::random::<u64>()));
    let replaced = fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, path));
    if replaced.is_err() {
        let _ = fs::remove_file(&draft);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn no_more_closures_run_at_once_than_there_are_workers() {
        let workers = Workers::new(1);
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let first = workers.start(move || may_go_on.recv()).await;
        let mut second = Box::pin(workers.start(|| 2));
        assert!((&mut second).now_or_never().is_none());
        drop(go_on);
        assert!(first.await.is_err());
        assert_eq!(second.await.await, 2);
    }

    #[tokio::test]
    async fn panic_continues_where_a_closure_is_awaited() {
        let workers = Workers::new(1);
        let failing = workers.start(|| panic!("as asked")).await;
        let awaited = AssertUnwindSafe(failing).catch_unwind().await;
        assert!(awaited.is_err());
        assert_eq!(workers.run(|| 1).await, 1);
    }

    #[test]
    fn file_is_replaced_as_a_whole_and_nothing_else_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new").join("file.shard");
        for bytes in [&b"one"[..], b"other"] {
            replace_file(&path, bytes).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        let below_a_file = path.join("file");
        assert!(replace_file(&below_a_file, b"").is_err());
        assert!(replace_file(path.parent().unwrap(), b"").is_err());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
