//! Locks of files and of Hub repositories, in this process and among all servers of the store.
//!
//! While the index cannot tell whether an earlier change was made, no locks are given. After `Ok`
//! of [`Store::lock_files`] and [`Server::lock_hub_repo`], no other task of any server appends a
//! record of these files or of this repository, or applies one, until the result is dropped.
//! Registrations of the same file in two servers do not exclude each other. A crash releases all
//! locks of the process.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::error::StoreError;
use super::file_locks::FileLock;
use super::permits::PATIENCE;
use super::upload::KeyLock;
use super::{Server, Store};
use crate::format::FileHash;
use crate::index::{StoreLock, StoreLockKeys};
use crate::runtime::fair::Busy;

/// Pauses between two attempts to take a lock that another server has. Records take some ten
/// milliseconds to be stored, registrations of many files seconds.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How long a change of a Hub repository waits for another one, in this process and then in other
/// servers: it may be storing a commit of many files.
const HUB_PATIENCE: Duration = Duration::from_secs(60);

/// How long the purge of a deleted repository waits, before that of the next one. A stop of the
/// server waits for it.
const PURGE_PATIENCE: Duration = Duration::from_secs(5);

/// What is done with locked files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileChange {
    /// They are registered. Other servers may register them, too.
    Register,
    /// Anything else.
    Other,
}

/// Locked files.
#[derive(Debug)]
pub(super) struct LockedFiles {
    // Released first: who waits for the lock in this process can ask for it then.
    _store_lock: Option<StoreLock>,
    _lock: FileLock,
}

/// A locked Hub repository.
#[derive(Debug)]
pub(in crate::service) struct RepoLock {
    _store_lock: Option<StoreLock>,
    _lock: KeyLock<String>,
}

impl Store {
    /// Waits for the locks of these files, for at most about `patience` in this process and as long
    /// for other servers.
    pub(super) async fn lock_files(
        &self,
        files: impl IntoIterator<Item = FileHash>,
        change: FileChange,
        patience: Duration,
    ) -> Result<LockedFiles, StoreError> {
        self.unknown_outcomes.check()?;
        let files: Vec<FileHash> = files.into_iter().collect();
        let lock = self.file_locks.lock_within(patience, files.iter().copied()).await?;
        let keys = || match change {
            FileChange::Register => StoreLockKeys::to_register(files),
            FileChange::Other => StoreLockKeys::to_change(files),
        };
        Ok(LockedFiles { _store_lock: self.lock_store(keys, patience).await?, _lock: lock })
    }

    /// Takes the lock of registrations under the storage name of a Hub repository, which they
    /// share. `None` if no other server can use the store.
    pub(super) async fn share_registrations(&self, storage_name: &str) -> Result<Option<StoreLock>, StoreError> {
        let keys = || StoreLockKeys::to_register_for_hub_repo(registrations_number_of(storage_name));
        self.lock_store(keys, PATIENCE).await
    }

    /// Excludes registrations under this storage name on other servers, as long as the result is
    /// not dropped; `None` if there is one now.
    pub(super) async fn stop_registrations(&self, storage_name: &str) -> Result<Option<StoreLock>, StoreError> {
        Ok(self.index.try_lock_store(StoreLockKeys::to_change_hub_repo(registrations_number_of(storage_name))).await?)
    }

    /// Waits for store locks, for at most `patience`. `None` if no other server can use the store.
    async fn lock_store(
        &self,
        keys: impl FnOnce() -> StoreLockKeys + Send,
        patience: Duration,
    ) -> Result<Option<StoreLock>, StoreError> {
        if !self.index.is_shared() {
            return Ok(None);
        }
        let (keys, until, mut pause) = (keys(), Instant::now() + patience, FIRST_PAUSE);
        loop {
            if let Some(lock) = self.index.try_lock_store(keys.clone()).await? {
                return Ok(Some(lock));
            }
            if Instant::now() + pause > until {
                return Err(Busy { is_above_share: false }.into());
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The number of the store lock of a Hub repository with this storage name in small letters.
fn number_of(lower_name: &str) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(lower_name.as_bytes()).as_bytes();
    i64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The number of the store lock of registrations under this storage name. A `:` is in no storage
/// name, so it is the number of no repository.
fn registrations_number_of(storage_name: &str) -> i64 {
    number_of(&format!("registrations:{storage_name}"))
}

impl Server {
    /// Waits for the lock of a Hub repository.
    ///
    /// # Errors
    ///
    /// Another change has it for too long, also one whose outcome is unknown; or the index does not
    /// respond.
    pub(in crate::service) async fn lock_hub_repo(&self, storage_name: &str) -> Result<RepoLock, StoreError> {
        self.lock_hub_repo_within(HUB_PATIENCE, storage_name).await
    }

    /// Waits for the lock of a Hub repository for a shorter time, to purge it.
    ///
    /// # Errors
    ///
    /// As for [`lock_hub_repo`](Self::lock_hub_repo).
    pub(in crate::service) async fn lock_hub_repo_to_purge(&self, storage_name: &str) -> Result<RepoLock, StoreError> {
        self.lock_hub_repo_within(PURGE_PATIENCE, storage_name).await
    }

    async fn lock_hub_repo_within(&self, patience: Duration, storage_name: &str) -> Result<RepoLock, StoreError> {
        self.store.unknown_outcomes.check()?;
        let name = storage_name.to_ascii_lowercase();
        let lock = timeout(patience, self.branch_locks.lock(name.clone()));
        let lock = lock.await.map_err(|_| Busy { is_above_share: false })?;
        let store_lock =
            self.store.lock_store(|| StoreLockKeys::to_change_hub_repo(number_of(&name)), patience).await?;
        Ok(RepoLock { _store_lock: store_lock, _lock: lock })
    }
}
