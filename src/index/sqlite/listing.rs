//! Lists of files and xorbs in SQLite, page by page: see [`ListIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::SqliteIndex;
use super::lists::after_bytes;
use crate::format::{FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::{FileEntry, ListIndex, Reader, XorbEntry};

impl ListIndex for SqliteIndex {
    fn files_after(
        &self,
        reader: Reader,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<FileEntry>, IndexError>> {
        // Both statements walk an index that is sorted by hash, so that a page costs only its own
        // rows. `ALL` uses the index of all files, and `OF_REPO` that of the repository's files.
        const ALL: &str = "SELECT hash, raw_len, CASE WHEN sha256_state = 2 THEN sha256 ELSE (SELECT coalesce(claim, sha256) \
             FROM file_repos WHERE file_id = id AND repo = '*' AND has_claimed = 1 AND claim_registration NOT IN hidden) END \
             AS sha256, since AS registered FROM files WHERE hash > ?1 AND removed_at IS NULL AND registration NOT IN hidden \
             ORDER BY hash LIMIT +?3";
        const OF_REPO: &str = "SELECT files.hash AS hash, raw_len, CASE WHEN sha256_state = 2 THEN sha256 \
             WHEN has_claimed = 1 AND claim_registration NOT IN hidden THEN coalesce(claim, sha256) END AS sha256, \
             coalesce(own.since, files.since) AS registered \
             FROM repo_files AS listed CROSS JOIN files ON files.id = listed.file_id \
             CROSS JOIN file_repos AS own ON own.file_id = listed.file_id AND own.repo = ?2 \
             WHERE repo_id = (SELECT id FROM repos WHERE name = ?2) AND listed.hash > ?1 \
             AND own.registration NOT IN hidden ORDER BY listed.hash LIMIT +?3";
        async move {
            let sql = if reader.repo().is_some() { OF_REPO } else { ALL };
            self.read("list files").all(query(sql).bind(after_bytes(after)).bind(reader.repo()).bind(limit)).await
        }
        .boxed()
    }

    fn xorbs_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbEntry>, IndexError>> {
        const SQL: &str = "SELECT hash, serialized_len, raw_len, length(layout) / 8 AS chunk_count FROM visible_xorbs \
             WHERE hash > ?1 ORDER BY hash LIMIT +?2";
        async move { self.read("list xorbs").all(query(SQL).bind(after_bytes(after)).bind(limit)).await }.boxed()
    }
}
