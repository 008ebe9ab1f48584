//! Opens the database with its writing and reading connections, and closes it.
//!
//! After `Ok` of [`SqliteIndex::open`] the schema is current and the name of the file is durable.

use std::path::Path;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::connect::{LongestWrite, pool_options, sync_parent};
use super::failure::can_write;
use super::{READER_COUNT, SqliteIndex, map, wal};
use crate::index::error::IndexError;
use crate::index::migrate;

/// Cache of the connection that writes: 32 MiB, in KiB as SQLite takes it. Small files are inserted
/// at random places of two indexes. With SQLite's 2 MiB each page is read from the system again in
/// a store of some 100 000 files.
const WRITER_CACHE_KIB: &str = "-32768";

impl SqliteIndex {
    /// Opens the file, creates it if missing, and migrates its schema.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, is no index, or is one of a newer program.
    pub async fn open(path: &Path) -> Result<Self, IndexError> {
        Self::open_with(path, SqliteSynchronous::Full).await
    }

    /// Opens the file like `open`, but not durably before
    /// [`Replacement::publish`](super::Replacement::publish). For a database that is discarded
    /// unless it is completed.
    ///
    /// # Errors
    ///
    /// See [`SqliteIndex::open`].
    pub async fn open_unsynced(path: &Path) -> Result<Self, IndexError> {
        Self::open_with(path, SqliteSynchronous::Off).await
    }

    async fn open_with(path: &Path, synchronous: SqliteSynchronous) -> Result<Self, IndexError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .pragma("wal_autocheckpoint", wal::MAX_PAGE_COUNT)
            // For macOS, where a plain fsync leaves bytes in the cache of the disk. Others ignore
            // them.
            .pragma("fullfsync", "ON")
            .pragma("checkpoint_fullfsync", "ON")
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5));
        let op = "open the database";
        let longest_write = LongestWrite::default();
        let (begins, ends) = (longest_write.clone(), longest_write.clone());
        let writer = pool_options(1).before_acquire(move |connection, _| {
            let begins = begins.clone();
            Box::pin(async move {
                let is_fit = can_write(connection).await;
                begins.begin();
                Ok(is_fit)
            })
        });
        // `before_acquire` is not called for a new connection.
        let begins_fresh = longest_write.clone();
        let writer = writer.after_connect(move |_, _| {
            begins_fresh.begin();
            Box::pin(async { Ok(()) })
        });
        let writer = writer.after_release(move |_, _| {
            ends.end();
            Box::pin(async { Ok(true) })
        });
        let caching = options.clone().pragma("cache_size", WRITER_CACHE_KIB);
        let writer = writer.connect_with(caching).await.map_err(|error| map(op, error))?;
        migrate::run(&writer).await?;
        sync_parent(path)?;
        let readers = pool_options(READER_COUNT);
        let readers = readers.connect_with(options.create_if_missing(false)).await.map_err(|error| map(op, error))?;
        Ok(Self::of(writer, readers, longest_write))
    }

    pub(super) const fn of(writer: SqlitePool, readers: SqlitePool, longest_write: LongestWrite) -> Self {
        Self {
            writer,
            readers,
            longest_write,
            #[cfg(test)]
            registers_in_steps: false,
        }
    }

    /// Closes every connection; the last one checkpoints the WAL.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}
