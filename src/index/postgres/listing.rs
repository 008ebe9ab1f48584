//! Lists in PostgreSQL, page by page, in the order of the hashes' bytes.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::PostgresIndex;
use super::lists::after_bytes;
use crate::format::{FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::{FileEntry, ListIndex, Reader, XorbEntry};

impl ListIndex for PostgresIndex {
    fn files_after(
        &self,
        reader: Reader,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<FileEntry>, IndexError>> {
        // Both walk an index that is sorted by hash and has nothing else: of all files, or of the
        // repository's.
        const ALL: &str = "SELECT hash, raw_len, CASE WHEN sha256_state = 2 THEN sha256 ELSE (SELECT coalesce(claim, sha256) \
             FROM file_repos WHERE file_id = id AND repo = '*' AND has_claimed AND claim_registration NOT IN (SELECT id FROM hidden)) END \
             AS sha256, since AS registered FROM files WHERE hash > $1 AND removed_at IS NULL AND registration NOT IN (SELECT id FROM hidden) \
             ORDER BY hash LIMIT $3";
        const OF_REPO: &str = "SELECT files.hash AS hash, raw_len, CASE WHEN sha256_state = 2 THEN sha256 \
             WHEN has_claimed AND claim_registration NOT IN (SELECT id FROM hidden) THEN coalesce(claim, sha256) END AS sha256, \
             coalesce(own.since, files.since) AS registered \
             FROM repo_files AS listed JOIN files ON files.id = listed.file_id \
             JOIN file_repos AS own ON own.file_id = listed.file_id AND own.repo = $2 \
             WHERE repo_id = (SELECT id FROM repos WHERE name = $2) AND listed.hash > $1 \
             AND own.registration NOT IN (SELECT id FROM hidden) ORDER BY listed.hash LIMIT $3";
        async move {
            let sql = if reader.repo().is_some() { OF_REPO } else { ALL };
            self.read("list files")
                .all(query(sql).bind(after_bytes(after)).bind(reader.repo()).bind(i64::from(limit)))
                .await
        }
        .boxed()
    }

    fn xorbs_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbEntry>, IndexError>> {
        const SQL: &str = "SELECT hash, serialized_len, raw_len, (length(layout) / 8)::bigint AS chunk_count FROM visible_xorbs \
             WHERE hash > $1 ORDER BY hash LIMIT $2";
        async move { self.read("list xorbs").all(query(SQL).bind(after_bytes(after)).bind(i64::from(limit))).await }
            .boxed()
    }
}
