//! The write-ahead log, which is folded into the file between those who write.
//!
//! SQLite folds it within the commit that makes it long, so that one in some dozens of uploads, and every large
//! registration, waits for thousands of pages to be written and synced once more. Here that is done when the commit has been
//! answered. What is committed is in the log, durable, before and after. A commit folds only a log that has grown to
//! [`MAX_PAGE_COUNT`] pages meanwhile, as it does in a process that never calls this.
//!
//! By the connection that writes, and not beside it: SQLite syncs the file when it has folded the log to its end, and what it
//! has folded before that it does not fold again. With commits in between, pages would be left to a later sync.
//!
//! What this does not do: a reader that looks at an older state leaves pages to a later sync as well, here and within commits.
//! If the disk fails to write these, and that sync says so, the one after it is told nothing and lets go of the log. After
//! such an error a restart folds all of the log again.

use std::time::Duration;

use super::SqliteIndex;
use super::failure::map;
use crate::index::IndexError;

/// Pages of the log from which on every commit folds it: 16 MiB, which nothing but the largest registrations writes in a
/// [`FOLD_PERIOD`](SqliteIndex::FOLD_PERIOD). With 2048 every second one of 1000 terms, one after the other, folded it, and
/// took 45 ms longer.
pub(super) const MAX_PAGE_COUNT: &str = "4096";

impl SqliteIndex {
    /// Pause between two times that a process which serves folds the log. What a large registration has written, a thousand
    /// pages at random, takes 16 ms to fold, and 4096 of them 79, for which nobody is to wait who writes. Where nothing was
    /// written it costs some 20 microseconds.
    pub const FOLD_PERIOD: Duration = Duration::from_millis(100);

    /// Folds what is committed into the file, as far as no reader still looks at what was there before. Who writes waits
    /// meanwhile, some 20 ms per 1000 pages; who reads does not.
    ///
    /// # Errors
    ///
    /// The disk is full or fails. What was committed is in the log.
    pub async fn fold_log(&self) -> Result<(), IndexError> {
        // Of another process that folds it at this moment it says so, which is no error.
        let folded = sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").fetch_all(&self.writer).await;
        folded.map(drop).map_err(|error| map("checkpoint the WAL", error))
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    const MIB: u64 = 1 << 20;

    async fn open() -> (tempfile::TempDir, PathBuf, SqliteIndex) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index.sqlite");
        let index = SqliteIndex::open(&path).await.unwrap();
        sqlx::query("CREATE TABLE filler (bytes BLOB)").execute(&index.writer).await.unwrap();
        (folder, path, index)
    }

    async fn write_mib(index: &SqliteIndex, count: usize) {
        for _ in 0..count {
            sqlx::query("INSERT INTO filler VALUES (zeroblob(1 << 20))").execute(&index.writer).await.unwrap();
        }
    }

    async fn read_mib(index: &SqliteIndex) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM filler").fetch_one(&index.readers).await.unwrap()
    }

    fn len(path: &Path) -> u64 {
        path.metadata().unwrap().len()
    }

    #[tokio::test]
    async fn writes_reach_the_file_at_a_checkpoint_and_not_before() {
        let (_folder, path, index) = open().await;
        write_mib(&index, 6).await;
        let before = len(&path);
        assert!(before < 2 * MIB, "{before} bytes");
        index.fold_log().await.unwrap();
        assert!(len(&path) > 6 * MIB, "{} bytes", len(&path));
        assert_eq!(read_mib(&index).await, 6);
        index.fold_log().await.unwrap();
    }

    #[tokio::test]
    async fn a_log_that_nobody_folds_is_folded_by_who_writes() {
        let (_folder, path, index) = open().await;
        write_mib(&index, 64).await;
        let log = len(&path.with_file_name("index.sqlite-wal"));
        assert!((15 * MIB..19 * MIB).contains(&log), "{log} bytes");
        assert!(len(&path) > 40 * MIB, "{} bytes", len(&path));
        assert_eq!(read_mib(&index).await, 64);
    }

    #[tokio::test]
    async fn writes_follow_a_checkpoint_and_reads_see_the_state_before() {
        let (_folder, path, index) = open().await;
        let mut reading = index.readers.begin().await.unwrap();
        let seen = "SELECT count(*) FROM filler";
        assert_eq!(sqlx::query_scalar::<_, i64>(seen).fetch_one(&mut *reading).await.unwrap(), 0);
        write_mib(&index, 4).await;
        let (folded, ()) = tokio::join!(index.fold_log(), write_mib(&index, 1));
        folded.unwrap();
        assert!(len(&path) < 2 * MIB, "what a reader does not see yet is not put under it");
        assert_eq!(sqlx::query_scalar::<_, i64>(seen).fetch_one(&mut *reading).await.unwrap(), 0);
        // Not dropped: then it ends some time later.
        reading.rollback().await.unwrap();
        index.fold_log().await.unwrap();
        assert!(len(&path) > 5 * MIB, "{} bytes", len(&path));
        assert_eq!(read_mib(&index).await, 5);
    }
}
