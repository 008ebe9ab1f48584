//! Opens the database with its writing and reading connections, checks its pages, and closes it.
//!
//! After [`SqliteIndex::open`] has returned `Ok`, the schema is current and the name of the file is
//! durable. A crash before that leaves no file, or a database that the next `open` migrates.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::connect::{Connections, sync_parent};
use super::{READER_COUNT, SqliteIndex, map, wal};
use crate::index::error::{IndexError, IndexErrorKind};
use crate::index::migrate;
use crate::index::records::ClosedRecords;

/// Page cache of the connection that writes: 32 MiB. A negative number is in KiB for SQLite. Small
/// files are inserted at random places of two indexes. With SQLite's default of 2 MiB, a store of
/// some 100 000 files would read each of these pages from the kernel again.
const WRITER_CACHE_KIB: &str = "-32768";

impl SqliteIndex {
    /// Opens the file, creates it if missing, and migrates its schema.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, is no index, or was migrated by a newer program.
    pub async fn open(path: &Path) -> Result<Self, IndexError> {
        Self::open_with(path, SqliteSynchronous::Full).await
    }

    /// Opens the file like `open`, but without syncing commits. The contents are durable only after
    /// [`Replacement::publish`](super::Replacement::publish). For a new database that is discarded
    /// after a crash.
    ///
    /// # Errors
    ///
    /// See [`SqliteIndex::open`].
    pub async fn open_unsynced(path: &Path) -> Result<Self, IndexError> {
        Self::open_with(path, SqliteSynchronous::Off).await
    }

    async fn open_with(path: &Path, synchronous: SqliteSynchronous) -> Result<Self, IndexError> {
        #[cfg(test)]
        template::copy_to(path).await;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .pragma("wal_autocheckpoint", wal::MAX_PAGE_COUNT)
            // For macOS, where a plain fsync leaves bytes in the cache of the disk. Other systems
            // ignore these two pragmas.
            .pragma("fullfsync", "ON")
            .pragma("checkpoint_fullfsync", "ON")
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5));
        let op = "open the database";
        let writer = Connections::new(options.clone().pragma("cache_size", WRITER_CACHE_KIB), 1);
        migrate::run(writer.acquire().await.map_err(|error| map(op, error))?.parts().0).await?;
        sync_parent(path)?;
        let readers = Connections::new(options.create_if_missing(false), READER_COUNT);
        drop(readers.acquire().await.map_err(|error| map(op, error))?);
        let index = Self::of(writer, readers);
        // The schema of a new index is in the WAL only. While the file lacks it, a checkpoint needs
        // disk space, and on a disk that fills up at once the WAL could never be reused. A failure
        // loses nothing, and the server logs that of its next checkpoint.
        if let Err(error) = index.checkpoint_wal().await {
            tracing::debug!(%error, "no checkpoint of the WAL at the start");
        }
        Ok(index)
    }

    /// Opens the file for reading, whether or not a server runs. Neither writes nor migrates.
    /// Methods that change the index fail.
    ///
    /// # Errors
    ///
    /// The file is missing, unreadable, no index, or has another schema version than this program.
    pub async fn open_read_only(path: &Path) -> Result<Self, IndexError> {
        let op = "open the database for reading";
        let options = SqliteConnectOptions::new()
            .filename(path)
            .read_only(true)
            .create_if_missing(false)
            .busy_timeout(Duration::from_secs(5));
        let readers = Connections::new(options, READER_COUNT);
        migrate::check(op, readers.acquire().await.map_err(|error| map(op, error))?.parts().0).await?;
        Ok(Self::of(readers.clone(), readers))
    }

    fn of(writer: Connections, readers: Connections) -> Self {
        Self {
            writer,
            readers,
            closed: ClosedRecords::default(),
            #[cfg(test)]
            registers_in_steps: false,
        }
    }

    /// Closes every connection; the last one checkpoints the WAL.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    /// Reads and checks every page of the file.
    ///
    /// # Errors
    ///
    /// The error is of kind [`IndexErrorKind::Damaged`] if a page is invalid.
    pub async fn check_pages(&self) -> Result<(), IndexError> {
        let op = "check the pages of the database";
        let found: String = self.read(op).one(sqlx::query("PRAGMA quick_check(1)")).await?;
        if found == "ok" {
            return Ok(());
        }
        Err(IndexError { op, kind: IndexErrorKind::Damaged, source: found.into() })
    }
}

/// The schema of new databases in tests. SQLite parses the whole schema again for many migrations,
/// which was a third of the CPU of the tests of a store. So a test process migrates one database,
/// and copies it.
#[cfg(test)]
mod template {
    use std::io::Write as _;
    use std::path::Path;

    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
    use sqlx::{ConnectOptions, Connection};
    use tokio::sync::OnceCell;

    static TEMPLATE: OnceCell<Vec<u8>> = OnceCell::const_new();

    /// Copies the new database to this path, if there is no file. A failure is left to the caller,
    /// which opens the file.
    pub(super) async fn copy_to(path: &Path) {
        // SQLite would take pages of a log that is left, or discard it with an empty file.
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        if path.exists() || Path::new(&log).exists() {
            return;
        }
        let bytes = TEMPLATE.get_or_init(migrated).await;
        if let Ok(mut file) = std::fs::File::create_new(path) {
            let _ = file.write_all(bytes);
        }
    }

    async fn migrated() -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("template.sqlite");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let options = options.journal_mode(SqliteJournalMode::Wal).foreign_keys(true);
        let mut connection = options.connect().await.unwrap();
        crate::index::migrate::run(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        std::fs::read(&path).unwrap()
    }
}
