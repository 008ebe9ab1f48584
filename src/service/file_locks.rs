//! Locks of files, held for every change of a file's rows or records.
//!
//! Each file has a lock of its own, which exists while it is held: a registration of 300 000 files
//! does not block other files. Locks of several files are taken in ascending order, which excludes
//! deadlocks. Each lock is granted in the order of requests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::coop::consume_budget;

use crate::format::FileHash;

/// Locks that are taken or released at once, while others wait.
const PORTION_COUNT: usize = 1024;

/// The locks of all files. Cloning it is cheap and gives the same locks.
#[derive(Clone, Debug, Default)]
pub(super) struct FileLocks {
    held: Arc<Mutex<Held>>,
}

/// The held locks, each with its waiters. A lock without a waiter allocates nothing.
type Held = HashMap<FileHash, VecDeque<oneshot::Sender<FileLock>>>;

/// The locks of some files, released when this is dropped.
#[derive(Debug)]
pub(super) struct FileLock {
    held: Arc<Mutex<Held>>,
    files: Vec<FileHash>,
}

impl FileLocks {
    /// Waits for the locks of these files.
    pub(super) async fn lock(&self, files: impl IntoIterator<Item = FileHash>) -> FileLock {
        let mut files: Vec<[u8; 32]> = files.into_iter().map(|file| *file.as_bytes()).collect();
        files.sort_unstable();
        files.dedup();
        let mut lock = FileLock { held: Arc::clone(&self.held), files: Vec::with_capacity(files.len()) };
        for some in files.chunks(PORTION_COUNT) {
            let mut rest = some.iter().copied().map(FileHash::from_bytes);
            while let Some(waiting) = self.take_free(&mut rest, &mut lock) {
                // An error is impossible: a released lock goes to its next waiter.
                if let Ok(mut given) = waiting.await {
                    lock.files.append(&mut given.files);
                }
            }
            consume_budget().await;
        }
        lock
    }

    /// Takes the locks of these files up to the first one that is held, and queues for that one.
    fn take_free(
        &self,
        files: &mut impl Iterator<Item = FileHash>,
        lock: &mut FileLock,
    ) -> Option<oneshot::Receiver<FileLock>> {
        let mut held = locked(&self.held);
        for file in files {
            if let Some(queue) = held.get_mut(&file) {
                let (give, waiting) = oneshot::channel();
                queue.push_back(give);
                return Some(waiting);
            }
            held.insert(file, VecDeque::new());
            lock.files.push(file);
        }
        None
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        for some in std::mem::take(&mut self.files).chunks(PORTION_COUNT) {
            self.give_back(some);
        }
    }
}

impl FileLock {
    fn give_back(&self, files: &[FileHash]) {
        let mut refused = Vec::new();
        let mut held = locked(&self.held);
        for file in files.iter().copied() {
            // A cancelled waiter refuses it.
            let given = held.get_mut(&file).is_some_and(|queue| {
                std::iter::from_fn(|| queue.pop_front()).any(|give| {
                    let lock = Self { held: Arc::clone(&self.held), files: vec![file] };
                    give.send(lock).map_err(|lock| refused.push(lock)).is_ok()
                })
            });
            if !given {
                held.remove(&file);
            }
        }
        drop(held);
        for mut lock in refused {
            // It was passed on, or the lock no longer exists.
            lock.files.clear();
        }
    }
}

fn locked(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    // No code under this lock can panic.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn file(byte: u8) -> FileHash {
        FileHash::from_bytes([byte; 32])
    }

    fn files(bytes: &[u8]) -> Vec<FileHash> {
        bytes.iter().copied().map(file).collect()
    }

    #[tokio::test]
    async fn held_file_lock_is_waited_for_and_others_are_free() {
        let locks = FileLocks::default();
        let first = locks.lock(files(&[3, 1, 2, 1])).await;
        let other = locks.lock(files(&[0, 4])).now_or_never().expect("these locks are free");
        let mut second = Box::pin(locks.lock(files(&[2, 5])));
        let mut third = Box::pin(locks.lock(files(&[2])));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(first);
        let second = second.await;
        assert!(third.as_mut().now_or_never().is_none(), "the second one has it");
        drop((second, other));
        drop(third.await);
        assert!(locked(&locks.held).is_empty());
    }

    #[tokio::test]
    async fn a_lock_goes_past_those_who_do_not_wait_any_more() {
        let locks = FileLocks::default();
        let first = locks.lock(files(&[1])).await;
        let mut left = Box::pin(locks.lock(files(&[0, 1, 2])));
        let mut given = Box::pin(locks.lock(files(&[1])));
        let mut last = Box::pin(locks.lock(files(&[1])));
        for waiting in [&mut left, &mut given, &mut last] {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        drop(left);
        drop(first);
        // It was given the lock, and is dropped without a poll.
        drop(given);
        drop(last.now_or_never().expect("the lock has come to it"));
        assert!(locked(&locks.held).is_empty());
    }
}
