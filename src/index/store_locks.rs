//! Store locks: locks of files and of Hub repositories that all servers of a store share. With the
//! lock of some files, a server appends a record and then changes the index. So the records of a
//! file or of a repository are in the order of its changes, whichever server makes them.
//!
//! An index of one process has no such locks, because the locks of that process are enough.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use crate::format::FileHash;

/// Number of classes of files. Files of one class have a lock in common. A registration of many
/// files takes up to this many locks of PostgreSQL, which by default has memory for 6400 of all
/// servers.
const CLASS_COUNT: u8 = 64;

/// Which store locks to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLockKeys {
    pub(super) space: LockSpace,
    pub(super) numbers: BTreeSet<i64>,
    pub(super) is_exclusive: bool,
}

/// What the numbers of store locks stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockSpace {
    /// Classes of files.
    Files,
    /// Hub repositories.
    HubRepos,
}

impl StoreLockKeys {
    /// To register these files. Several servers can have these locks at once, because the order of
    /// registrations does not matter.
    #[must_use]
    pub fn to_register(files: impl IntoIterator<Item = FileHash>) -> Self {
        let class = |file: FileHash| i64::from(file.as_bytes()[0] % CLASS_COUNT);
        let numbers = files.into_iter().map(class).collect();
        Self { space: LockSpace::Files, numbers, is_exclusive: false }
    }

    /// To change these files in another way: one server at a time, and no registration.
    #[must_use]
    pub fn to_change(files: impl IntoIterator<Item = FileHash>) -> Self {
        Self { is_exclusive: true, ..Self::to_register(files) }
    }

    /// For any change of the Hub repository with this number. It must be a hash of its name for
    /// which clients cannot find another name with the same number: otherwise they could lock
    /// repositories of others.
    #[must_use]
    pub fn to_change_hub_repo(number: i64) -> Self {
        Self { space: LockSpace::HubRepos, numbers: BTreeSet::from([number]), is_exclusive: true }
    }

    /// To register files of the Hub repository with this number. Several servers can have this lock
    /// at once.
    #[must_use]
    pub fn to_register_for_hub_repo(number: i64) -> Self {
        Self { is_exclusive: false, ..Self::to_change_hub_repo(number) }
    }
}

/// Store locks that this process has. Dropping it releases them.
#[derive(Debug)]
#[must_use = "dropping it releases the locks"]
pub struct StoreLock {
    _held: Option<Box<dyn Debug + Send + Sync>>,
}

impl StoreLock {
    /// Those of an index of one process: none.
    pub(super) const fn of_one_process() -> Self {
        Self { _held: None }
    }

    /// Locks that are released when `held` is dropped.
    #[cfg(feature = "postgres")]
    pub(super) fn new(held: impl Debug + Send + Sync + 'static) -> Self {
        Self { _held: Some(Box::new(held)) }
    }
}

/// By how much the clock of a server may differ from that of the database, so that those of two
/// servers differ by a minute at most. Tokens and data URLs that one of them signs are checked by
/// the others, which accept them for 60 seconds after their expiry.
pub const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(30);

/// How far the clock of another server may be ahead: two servers whose clocks differ as much as a
/// start allows, in opposite directions, and half as much for the time since. Whatever looks at
/// times of others measures hours and weeks.
pub const MAX_CLOCK_LEAD: Duration = MAX_CLOCK_DIFFERENCE.saturating_mul(3);

/// The methods of [`Index`](super::Index) for several servers of one index.
pub trait StoreLockIndex {
    /// Whether servers in other processes may use the index at the same time.
    fn is_shared(&self) -> bool;

    /// Whether other machines may have written times into the index, by their clocks. A command
    /// beside servers does not share the index, but reads their times.
    fn has_other_clocks(&self) -> bool;

    /// Takes these locks, all or none; `None` if another server has one of them. After `Ok(Some)`,
    /// the transactions of all servers that had them before are visible or will never be committed.
    /// This holds even for a server that has lost its locks without noticing: it can write no more.
    ///
    /// They exclude other servers only. A server takes them with the locks of its own process for
    /// the same files or repository.
    fn try_lock_store(&self, keys: StoreLockKeys) -> BoxFuture<'_, Result<Option<StoreLock>, IndexError>>;
}
