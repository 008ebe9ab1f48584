//! Store locks with SQLite: one process serves the index, so the locks of that process are enough.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::SqliteIndex;
use crate::index::error::IndexError;
use crate::index::{StoreLock, StoreLockIndex, StoreLockKeys};

impl StoreLockIndex for SqliteIndex {
    fn has_other_clocks(&self) -> bool {
        false
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn try_lock_store(&self, _: StoreLockKeys) -> BoxFuture<'_, Result<Option<StoreLock>, IndexError>> {
        async { Ok(Some(StoreLock::of_one_process())) }.boxed()
    }
}
