//! Store locks in PostgreSQL: advisory locks of the session of this process. See
//! [`session`](super::session) for why a lock that was lost does no harm.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::PostgresIndex;
use super::session::AdvisoryLocks;
use crate::index::error::IndexError;
use crate::index::store_locks::LockSpace;
use crate::index::{StoreLock, StoreLockIndex, StoreLockKeys};

/// The number of the advisory lock of the first class of files. Those of Hub repositories are
/// hashes.
const FILES: i64 = i64::from_be_bytes(*b"zorb.fil");

impl StoreLockIndex for PostgresIndex {
    fn has_other_clocks(&self) -> bool {
        true
    }

    fn is_shared(&self) -> bool {
        self.session.is_some()
    }

    fn try_lock_store(&self, keys: StoreLockKeys) -> BoxFuture<'_, Result<Option<StoreLock>, IndexError>> {
        async move {
            let Some(session) = &self.session else { return Ok(Some(StoreLock::of_one_process())) };
            let StoreLockKeys { space, numbers, is_exclusive } = keys;
            let offset = match space {
                LockSpace::Files => FILES,
                LockSpace::HubRepos => 0,
            };
            let numbers = numbers.into_iter().map(|number| offset.wrapping_add(number)).collect();
            let locks = AdvisoryLocks { numbers, is_exclusive };
            let Some(held) = session.try_lock_store(locks).await? else { return Ok(None) };
            // A server that had the lock and died may have a transaction under way, which has
            // passed its check of the session. It holds the lock of the writers until it ends.
            self.wait_for_writer("lock files or a repository").await?;
            Ok(Some(StoreLock::new(held)))
        }
        .boxed()
    }
}
