//! An open index, in SQLite or in PostgreSQL.

use std::sync::Arc;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::format::StoreId;
use crate::index::sqlite::SqliteIndex;
use crate::index::{Index, IndexError};
use crate::runtime::telemetry::chain;

/// The open index of a store.
#[derive(Clone, Debug)]
pub(in crate::cli) enum StoreIndex {
    /// In the data directory.
    Sqlite(SqliteIndex),
    /// In a database, which other machines can reach.
    #[cfg(feature = "postgres")]
    Postgres(crate::index::postgres::PostgresIndex),
}

impl StoreIndex {
    /// The index as the service uses it.
    pub(in crate::cli) fn shared(&self) -> Arc<dyn Index> {
        match self {
            Self::Sqlite(index) => Arc::new(index.clone()),
            #[cfg(feature = "postgres")]
            Self::Postgres(index) => Arc::new(index.clone()),
        }
    }

    /// A number for a record that is used once, by all processes of a store in a bucket: at least
    /// `min`, and greater than those before.
    #[cfg(feature = "s3")]
    pub(in crate::cli) async fn next_record_number(&self, min: u64) -> Result<u64, IndexError> {
        match self {
            Self::Sqlite(_) => unreachable!("the settings s3_… require database_url"),
            #[cfg(feature = "postgres")]
            Self::Postgres(index) => index.next_record_number(min).await,
        }
    }

    /// Begins a restore into a new index.
    pub(in crate::cli) async fn begin_restore(&self, id: StoreId, place: &str) -> Result<(), IndexError> {
        match self {
            Self::Sqlite(_) => unreachable!("store {id} with SQLite is restored into a directory, not to {place}"),
            #[cfg(feature = "postgres")]
            Self::Postgres(index) => index.begin_restore(id, place).await,
        }
    }

    /// The id of an index whose restore to this place was interrupted. Only its xorbs are left
    /// then.
    pub(in crate::cli) async fn continue_restore(&self, place: &str) -> Result<Option<StoreId>, IndexError> {
        match self {
            Self::Sqlite(_) => unreachable!("a store with SQLite is restored into a directory, not to {place}"),
            #[cfg(feature = "postgres")]
            Self::Postgres(index) => index.continue_restore(place).await,
        }
    }

    /// Ends a restore.
    pub(in crate::cli) async fn end_restore(&self) -> Result<(), IndexError> {
        match self {
            Self::Sqlite(_) => unreachable!("a restore into SQLite ends in a new directory"),
            #[cfg(feature = "postgres")]
            Self::Postgres(index) => index.end_restore().await,
        }
    }

    /// The kind of the database, for the log.
    pub(in crate::cli) fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "postgresql",
        }
    }

    /// Closes every connection.
    pub(in crate::cli) async fn close(&self) {
        match self {
            Self::Sqlite(index) => index.close().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(index) => index.close().await,
        }
    }

    /// Reads and checks every page of an SQLite file. PostgreSQL has its own tools for that, such
    /// as `pg_amcheck`.
    pub(in crate::cli) async fn check_pages(&self) -> Result<(), IndexError> {
        match self {
            Self::Sqlite(index) => index.check_pages().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Ok(()),
        }
    }

    /// Checkpoints an SQLite database outside of commits, until `stop`. PostgreSQL needs nothing.
    pub(in crate::cli) async fn maintain(self, stop: CancellationToken) {
        match self {
            Self::Sqlite(index) => checkpoint_wal(index, stop).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {}
        }
    }
}

/// Checkpoints the WAL of the index at intervals, until `stop`. Of several failures in a row, logs
/// only the first.
async fn checkpoint_wal(index: SqliteIndex, stop: CancellationToken) {
    let mut is_failing = false;
    while stop.run_until_cancelled(sleep(SqliteIndex::CHECKPOINT_INTERVAL)).await.is_some() {
        let done = index.checkpoint_wal().await;
        if let (Err(error), false) = (&done, is_failing) {
            tracing::warn!(error = %chain(error), "WAL checkpoint failed; the WAL grows: check the disk, then \
                restart the server");
        }
        is_failing = done.is_err();
    }
}
