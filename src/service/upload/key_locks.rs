//! Locks by key: one holder at a time for each key. With xorbs as keys, for publishing a xorb or
//! confirming its row; with Hub repositories as keys, for moving a branch.
//!
//! Each key has its own lock. If keys shared a fixed number of locks, an upload would wait for disk
//! writes of other xorbs, and clients could choose hashes that collide.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::format::XorbHash;

/// The locks of xorbs.
pub(in crate::service) type PublishLocks = KeyLocks<XorbHash>;

/// What a key can be.
pub(in crate::service) trait Key: Clone + Debug + Eq + Hash {}

impl<K: Clone + Debug + Eq + Hash> Key for K {}

/// The locks that are held or waited for.
#[derive(Clone, Debug)]
pub(in crate::service) struct KeyLocks<K: Key> {
    locks: Arc<Mutex<HashMap<K, Lock>>>,
}

impl<K: Key> Default for KeyLocks<K> {
    fn default() -> Self {
        Self { locks: Arc::default() }
    }
}

type Lock = Arc<tokio::sync::Mutex<()>>;

/// Holds the lock of this key.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub(in crate::service) struct KeyLock<K: Key> {
    guard: Option<OwnedMutexGuard<()>>,
    key: K,
    home: KeyLocks<K>,
}

impl<K: Key> KeyLocks<K> {
    /// Waits for the lock of this key, in the order of requests.
    pub(in crate::service) async fn lock(&self, key: K) -> KeyLock<K> {
        // Created before the wait, so that dropping a cancelled wait removes the lock, too.
        let mut held = KeyLock { guard: None, key: key.clone(), home: self.clone() };
        let lock = Arc::clone(self.locks().entry(key).or_default());
        held.guard = Some(lock.lock_owned().await);
        held
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<K, Lock>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Key> Drop for KeyLock<K> {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut locks = self.home.locks();
        // Each holder or waiter has one reference, and takes it under this mutex. So a count of one
        // means that only the map has a reference.
        if locks.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn hash(byte: u8) -> XorbHash {
        // The hashes differ only in the last byte: a lock must use the whole hash.
        let mut bytes = [7; 32];
        bytes[31] = byte;
        XorbHash::from_bytes(bytes)
    }

    #[test]
    fn publishers_of_one_xorb_queue_in_order_others_do_not_wait() {
        let locks = PublishLocks::default();
        let first = locks.lock(hash(1)).now_or_never().unwrap();
        let mut second = Box::pin(locks.lock(hash(1)));
        let mut third = Box::pin(locks.lock(hash(1)));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(locks.lock(hash(2)).now_or_never().is_some());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none());
        let second = second.now_or_never().unwrap();
        assert!(third.as_mut().now_or_never().is_none());
        drop(second);
        assert!(third.now_or_never().is_some());
    }

    #[test]
    fn released_and_abandoned_locks_leave_nothing_behind() {
        let locks = PublishLocks::default();
        let first = locks.lock(hash(1)).now_or_never().unwrap();
        let mut waiting = Box::pin(locks.lock(hash(1)));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(waiting);
        // `first` still holds this lock.
        assert!(locks.lock(hash(1)).now_or_never().is_none());
        drop(first);
        let mut late = Box::pin(locks.lock(hash(1)));
        let held = locks.lock(hash(1)).now_or_never().unwrap();
        assert!(late.as_mut().now_or_never().is_none());
        drop(held);
        // `late` has received the lock, and is dropped without a poll.
        drop(late);
        assert!(locks.locks().is_empty());
    }
}
