//! Locks of files: whoever changes what is known of a file holds its lock.
//!
//! One lock for each file, which exists while it is held: a registration of 300 000 files keeps nobody
//! from other files. Locks of several files are taken in ascending order, so that no two callers wait
//! for each other, and each lock is given in the order in which it was asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::task::coop::consume_budget;

use crate::format::FileHash;

/// Locks that are taken or given back at once, while others wait.
const PORTION_COUNT: usize = 1024;

/// The locks of all files. Cloning it is cheap and gives the same locks.
#[derive(Clone, Debug, Default)]
pub(super) struct FileLocks {
    held: Arc<Mutex<Held>>,
}

/// The locks that are held, each with those who wait for it. Nothing is allocated for a lock that
/// nobody waits for.
type Held = HashMap<FileHash, VecDeque<oneshot::Sender<FileLock>>>;

/// The locks of some files. They are given back when this is dropped.
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
                // An error is impossible: a lock that is given back goes to the next one who waits.
                if let Ok(mut given) = waiting.await {
                    lock.files.append(&mut given.files);
                }
            }
            consume_budget().await;
        }
        lock
    }

    /// Takes the locks of these files up to the first one that is held, and waits for that one in line.
    fn take_free(
        &self,
        files: &mut impl Iterator<Item = FileHash>,
        lock: &mut FileLock,
    ) -> Option<oneshot::Receiver<FileLock>> {
        let mut held = locked(&self.held);
        for file in files {
            if let Some(line) = held.get_mut(&file) {
                let (give, waiting) = oneshot::channel();
                line.push_back(give);
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
            // Who does not wait any more refuses it.
            let given = held.get_mut(&file).is_some_and(|line| {
                std::iter::from_fn(|| line.pop_front()).any(|give| {
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
            // It was passed on, or the lock is gone.
            lock.files.clear();
        }
    }
}

fn locked(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    // No code that could panic runs under it.
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
        let other = locks.lock(files(&[0, 4])).now_or_never().expect("nobody has these");
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
        // It was given the lock, and goes without having looked.
        drop(given);
        drop(last.now_or_never().expect("the lock has come to it"));
        assert!(locked(&locks.held).is_empty());
    }
}
