//! Locks of files. A registration or removal holds the locks of its files while it appends its
//! record and changes their rows. So the records of a file are in the order in which the index
//! applies them.
//!
//! Each file has its own lock, so a registration of 300 000 files does not block other files. A
//! lock takes memory only while it is held. Locks of several files are taken in ascending order,
//! which excludes deadlocks. The waiters for a lock get it in the order in which they began to
//! wait.
//!
//! The locks exist only in the memory of this process.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use crate::format::FileHash;
use crate::runtime::fair::Busy;

/// Number of locks that are taken or released while the mutex is held. Between two portions, other
/// tasks can take locks.
const PORTION_COUNT: usize = 1024;

/// The locks of all files. Clones share the same locks.
#[derive(Clone, Debug, Default)]
pub(super) struct FileLocks {
    held: Arc<Mutex<Held>>,
}

/// The held locks, each with the queue of its waiters. An empty queue allocates nothing.
type Held = HashMap<FileHash, VecDeque<oneshot::Sender<FileLock>>>;

/// Held locks of some files. Dropping it releases the locks.
#[derive(Debug)]
pub(super) struct FileLock {
    held: Arc<Mutex<Held>>,
    /// The files whose locks this holds.
    files: Vec<FileHash>,
}

impl FileLocks {
    /// Waits for the locks of these files, for at most `patience`. The wait is bounded, because a
    /// registration may hold locks for many seconds, and meanwhile a waiting request holds a
    /// connection and a parsed shard in memory.
    pub(super) async fn lock_within(
        &self,
        patience: Duration,
        files: impl IntoIterator<Item = FileHash>,
    ) -> Result<FileLock, Busy> {
        timeout(patience, self.lock(files)).await.map_err(|_| Busy { is_above_share: false })
    }

    /// Waits for the locks of these files.
    pub(super) async fn lock(&self, files: impl IntoIterator<Item = FileHash>) -> FileLock {
        let mut files: Vec<[u8; 32]> = files.into_iter().map(|file| *file.as_bytes()).collect();
        files.sort_unstable();
        files.dedup();
        let mut lock = FileLock { held: Arc::clone(&self.held), files: Vec::with_capacity(files.len()) };
        for some in files.chunks(PORTION_COUNT) {
            let mut rest = some.iter().copied().map(FileHash::from_bytes);
            while let Some(waiting) = self.take_free(&mut rest, &mut lock) {
                // `waiting` cannot fail: the sender stays in the queue until a lock is sent.
                if let Ok(mut given) = waiting.await {
                    lock.files.append(&mut given.files);
                }
            }
            consume_budget().await;
        }
        lock
    }

    /// Takes the locks of these files, until one of them is held by another task. Then joins the
    /// queue of this lock, and returns the receiver that will get it. `None` if all were taken.
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
    /// Passes each of these locks to its next waiter, or releases the lock if there is none.
    fn give_back(&self, files: &[FileHash]) {
        let mut refused = Vec::new();
        let mut held = locked(&self.held);
        for file in files.iter().copied() {
            // If a waiter was cancelled, `send` returns the lock, and the next waiter gets it.
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
            // This lock was passed to another waiter or released above. So dropping this `FileLock`
            // must not release it again.
            lock.files.clear();
        }
    }
}

fn locked(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    // A poisoned mutex is no problem, because no code that holds it can panic.
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

    #[tokio::test(start_paused = true)]
    async fn wait_for_a_file_lock_ends_and_leaves_no_lock_behind() {
        let locks = FileLocks::default();
        let first = locks.lock(files(&[2])).await;
        let second = locks.lock_within(Duration::from_secs(10), files(&[1, 2, 3])).await;
        assert_eq!(second.err(), Some(Busy { is_above_share: false }));
        assert_eq!(locked(&locks.held).keys().copied().collect::<Vec<_>>(), files(&[2]));
        drop(first);
        assert!(locked(&locks.held).is_empty());
        drop(locks.lock_within(Duration::from_secs(10), files(&[1, 2, 3])).await.unwrap());
    }

    #[tokio::test]
    async fn released_lock_skips_cancelled_waiters() {
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
        // `given` has received the lock, and is dropped before it is polled.
        drop(given);
        drop(last.now_or_never().expect("the last waiter has the lock"));
        assert!(locked(&locks.held).is_empty());
    }
}
