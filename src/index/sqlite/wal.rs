//! Checkpoints of the write-ahead log (WAL) between transactions. A checkpoint copies committed
//! pages from the WAL into the database file.
//!
//! By default SQLite checkpoints a long WAL within a commit. Then some uploads, and every large
//! registration, would wait until thousands of pages are written and synced. So a background task
//! checkpoints the WAL outside of commits. A committed transaction is durable with or without a
//! checkpoint. If the WAL still grows to [`MAX_PAGE_COUNT`] pages, SQLite checkpoints it in a
//! commit as usual.
//!
//! The checkpoint runs on the writing connection, so that no commit happens during it. SQLite syncs
//! the database file only in a checkpoint that reaches the end of the WAL. A commit during the
//! checkpoint would move that end, and the copied pages would stay unsynced until a later
//! checkpoint.
//!
//! Limitation: a reader of an older snapshot also stops a checkpoint before the end of the WAL, so
//! pages stay unsynced. If the disk then fails to write these pages, the sync of a later checkpoint
//! reports the error. But the sync after that succeeds, and SQLite resets the WAL, although the
//! pages are not on the disk. A restart right after the error avoids the loss, because it
//! checkpoints the whole WAL again.

use std::time::Duration;

use super::SqliteIndex;
use crate::index::IndexError;

/// From this length of the WAL on, 16 MiB, every commit checkpoints it. Only the largest
/// registrations write that much within one
/// [`CHECKPOINT_INTERVAL`](SqliteIndex::CHECKPOINT_INTERVAL).
pub(super) const MAX_PAGE_COUNT: &str = "4096";

impl SqliteIndex {
    /// The pause between two checkpoints of a server. After a longer pause a checkpoint would take
    /// longer, and writers wait for it. A checkpoint of an unchanged WAL costs almost nothing.
    pub const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);

    /// Copies committed pages into the database file, unless a reader still needs an older
    /// snapshot. Writers wait meanwhile, readers do not.
    ///
    /// # Errors
    ///
    /// The disk is full or fails. Committed transactions are safe in the WAL.
    pub async fn checkpoint_wal(&self) -> Result<(), IndexError> {
        // If another process checkpoints the WAL at this moment, the resulting row says "busy",
        // which is no error.
        let checkpoint = sqlx::query("PRAGMA wal_checkpoint(PASSIVE)");
        self.write("checkpoint the WAL").all::<i64>(checkpoint).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use sqlx::Connection;

    use super::*;

    const MIB: u64 = 1 << 20;

    async fn open() -> (tempfile::TempDir, PathBuf, SqliteIndex) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index.sqlite");
        let index = SqliteIndex::open(&path).await.unwrap();
        index.write("create").execute(sqlx::query("CREATE TABLE filler (bytes BLOB)")).await.unwrap();
        (directory, path, index)
    }

    async fn write_mib(index: &SqliteIndex, count: usize) {
        for _ in 0..count {
            index.write("fill").execute(sqlx::query("INSERT INTO filler VALUES (zeroblob(1 << 20))")).await.unwrap();
        }
    }

    async fn read_mib(index: &SqliteIndex) -> i64 {
        index.read("count").one(sqlx::query("SELECT count(*) FROM filler")).await.unwrap()
    }

    fn len(path: &Path) -> u64 {
        path.metadata().unwrap().len()
    }

    #[tokio::test]
    async fn writes_reach_the_file_at_a_checkpoint_and_not_before() {
        let (_directory, path, index) = open().await;
        write_mib(&index, 6).await;
        let before = len(&path);
        assert!(before < 2 * MIB, "{before} bytes");
        index.checkpoint_wal().await.unwrap();
        assert!(len(&path) > 6 * MIB, "{} bytes", len(&path));
        assert_eq!(read_mib(&index).await, 6);
        index.checkpoint_wal().await.unwrap();
    }

    #[tokio::test]
    async fn long_wal_is_checkpointed_by_its_writer() {
        let (_directory, path, index) = open().await;
        write_mib(&index, 64).await;
        let log = len(&path.with_file_name("index.sqlite-wal"));
        assert!((15 * MIB..19 * MIB).contains(&log), "{log} bytes");
        assert!(len(&path) > 40 * MIB, "{} bytes", len(&path));
        assert_eq!(read_mib(&index).await, 64);
    }

    #[tokio::test]
    async fn writes_follow_a_checkpoint_and_reads_see_the_state_before() {
        let (_directory, path, index) = open().await;
        let mut reader = index.readers.acquire().await.unwrap();
        let mut reading = reader.parts().0.begin().await.unwrap();
        let seen = "SELECT count(*) FROM filler";
        assert_eq!(sqlx::query_scalar::<_, i64>(seen).fetch_one(&mut *reading).await.unwrap(), 0);
        write_mib(&index, 4).await;
        let (checkpointed, ()) = tokio::join!(index.checkpoint_wal(), write_mib(&index, 1));
        checkpointed.unwrap();
        assert!(len(&path) < 2 * MIB, "no page is copied that the snapshot of a reader does not have");
        assert_eq!(sqlx::query_scalar::<_, i64>(seen).fetch_one(&mut *reading).await.unwrap(), 0);
        // Roll back explicitly: a dropped transaction would end some time later.
        reading.rollback().await.unwrap();
        index.checkpoint_wal().await.unwrap();
        assert!(len(&path) > 5 * MIB, "{} bytes", len(&path));
        assert_eq!(read_mib(&index).await, 5);
    }
}
