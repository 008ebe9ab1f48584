//! Lists of files and xorbs in SQLite, page by page: see [`ListIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::SqliteIndex;
use super::lists::after_bytes;
use super::rows::FromRow;
use super::tx::Query;
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
            let part = |after, count| query(sql).bind(after_bytes(after)).bind(reader.repo()).bind(count);
            self.page("list files", after, limit, |file: &FileEntry| file.hash, part).await
        }
        .boxed()
    }

    fn xorbs_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbEntry>, IndexError>> {
        const SQL: &str = "SELECT hash, serialized_len, raw_len, length(layout) / 8 AS chunk_count FROM visible_xorbs \
             WHERE hash > ?1 ORDER BY hash LIMIT +?2";
        let part = |after, count| query(SQL).bind(after_bytes(after)).bind(count);
        self.page("list xorbs", after, limit, |xorb: &XorbEntry| xorb.hash, part).boxed()
    }
}

/// Rows of a page that one statement reads, at most. sqlx copies each row into many allocations,
/// which another thread frees. malloc puts them together when SQLite next needs a large one: after
/// 1000 rows at once, the next statement of the connection waited 0.25 ms for this.
const PART_COUNT: u32 = 100;

impl SqliteIndex {
    /// Reads a page in parts. `query` reads up to so many entries after a hash.
    async fn page<'q, H: Send, E: FromRow>(
        &self,
        op: &'static str,
        mut after: Option<H>,
        limit: u32,
        hash: fn(&E) -> H,
        query: impl Fn(Option<H>, u32) -> Query<'q> + Send,
    ) -> Result<Vec<E>, IndexError> {
        let (mut entries, mut left) = (Vec::new(), limit);
        loop {
            let count = left.min(PART_COUNT);
            let part: Vec<E> = self.read(op).all(query(after, count)).await?;
            let is_last = left == count || part.len() as u64 != u64::from(count);
            entries.extend(part);
            if is_last {
                return Ok(entries);
            }
            left -= count;
            after = entries.last().map(hash);
        }
    }
}
