//! Files in SQLite. Statements run inside the transaction of the caller.

use std::collections::BTreeMap;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::write::{Write, statement};
use super::{SqliteIndex, get, map, millis};
use crate::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::index::error::{Inconsistent, IndexError};
use crate::index::files::MAX_DEDUP_CHUNK_COUNT;
use crate::index::rows;
use crate::index::{DedupHit, Reader, XorbContents, XorbPart};
use crate::runtime::clock::Timestamp;

/// Xorbs in one statement, with at most three parameters each: far below SQLite's limit (32 766
/// parameters since 3.32).
pub(super) const BATCH_COUNT: usize = 500;

impl SqliteIndex {
    pub(super) async fn read_contents(&self, hashes: Vec<XorbHash>) -> Result<Vec<XorbContents>, IndexError> {
        let op = "read the contents of xorbs";
        let mut contents = Vec::with_capacity(hashes.len());
        for batch in hashes.chunks(BATCH_COUNT) {
            let mut query = QueryBuilder::<Sqlite>::new(
                "SELECT hash, layout, hashes, schemes FROM xorbs JOIN xorb_chunks ON xorb_id = id \
                 WHERE state IN (1, 2) AND hash IN (",
            );
            push_hashes(&mut query, batch);
            let rows = query.build().fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            for row in &rows {
                contents.push(parse_contents(op, row)?);
            }
        }
        Ok(contents)
    }

    pub(super) async fn read_parts(&self, wanted: Vec<(XorbHash, ChunkRange)>) -> Result<Vec<XorbPart>, IndexError> {
        let op = "read parts of xorbs";
        let failed = |error| map(op, error);
        let mut parts = Vec::with_capacity(wanted.len());
        for batch in wanted.chunks(BATCH_COUNT) {
            // CROSS JOIN fixes the order: each wanted xorb is looked up, not the other way round.
            let mut query = QueryBuilder::<Sqlite>::new("WITH wanted (xorb, first, count) AS (");
            query.push_values(batch, |mut row, (xorb, chunks)| {
                row.push_bind(xorb.as_bytes().to_vec()).push_bind(chunks.start()).push_bind(chunks.count());
            });
            query.push(
                ") SELECT hash, first, substr(layout, max(first - 1, 0) * 8 + 1, (count + min(first, 1)) * 8), \
                 length(layout), substr(hashes, first * 32 + 1, count * 32), length(hashes) FROM wanted CROSS JOIN xorbs ON hash = wanted.xorb \
                 JOIN xorb_chunks ON xorb_id = id WHERE state IN (1, 2)",
            );
            for row in &query.build().fetch_all(&self.readers).await.map_err(failed)? {
                let inconsistent = |error| IndexError::inconsistent(op, error);
                let xorb = rows::xorb_hash(get(op, row, 0)?).map_err(inconsistent)?;
                let (layout, hashes) = ((get(op, row, 2)?, get(op, row, 3)?), (get(op, row, 4)?, get(op, row, 5)?));
                parts.push(rows::part(xorb, get(op, row, 1)?, layout, hashes).map_err(inconsistent)?);
            }
        }
        Ok(parts)
    }

    pub(super) async fn lease_dedup(
        &self,
        chunk: ChunkHash,
        owner: Option<String>,
        lease_until: Timestamp,
    ) -> Result<Option<DedupHit>, IndexError> {
        let op = "find a chunk for deduplication";
        let failed = |error| map(op, error);
        // Most queries find nothing, and need no writer.
        let found = sqlx::query(FIND_DEDUP)
            .bind(chunk.as_bytes().as_slice())
            .bind(owner.as_deref())
            .fetch_optional(&self.readers)
            .await
            .map_err(failed)?;
        if found.is_none() {
            return Ok(None);
        }
        let mut connection = self.writer.acquire().await.map_err(failed)?;
        let leased = lease(op, &mut connection, chunk, owner.as_deref(), lease_until).await;
        release(connection, leased.is_ok()).await;
        leased
    }
}

/// Among several xorbs, the one with the most chunks is the most useful to the client.
const FIND_DEDUP: &str = "SELECT xorbs.id, xorbs.hash, length(layout) / 8 FROM dedup_chunks JOIN xorbs ON xorbs.id = xorb_id \
     WHERE chunk_hash = ?1 AND state IN (1, 2) AND damaged_at IS NULL AND \
     (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ?2)) \
     ORDER BY length(layout) DESC, xorbs.id LIMIT 1";

/// Files of a xorb whose neighbours are mentioned: a xorb may be part of millions.
const FIND_FILES: &str = "SELECT file_id FROM xorb_files WHERE xorb_id = ?1 LIMIT 16";

/// Neighbours of a xorb in a file, of the same owner. They were uploaded about the same time; most
/// of them follow it, where the client goes on. Reads a range of an index, for any number of xorbs
/// in the file.
///
/// A xorb of one chunk is never among them: its hash is the unblinded hash of the chunk (spec 6.2,
/// rule 9).
const FIND_NEIGHBOURS: &str = "WITH near (id) AS ( \
     SELECT * FROM (SELECT xorb_id FROM xorb_files WHERE file_id = ?3 AND xorb_id > ?1 ORDER BY xorb_id LIMIT 48) \
     UNION ALL \
     SELECT * FROM (SELECT xorb_id FROM xorb_files WHERE file_id = ?3 AND xorb_id < ?1 ORDER BY xorb_id DESC LIMIT 16)) \
     SELECT xorbs.id, hash, length(layout) / 8 FROM near JOIN xorbs ON xorbs.id = near.id \
     WHERE state IN (1, 2) AND damaged_at IS NULL AND length(layout) > 8 AND \
     (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = xorbs.id AND d.domain = ?2)) \
     ORDER BY abs(xorbs.id - ?1), xorbs.id DESC";

/// Returns a writing connection, or closes it after a failed transaction: see `publish_xorb` of
/// this index for the reason.
pub(super) async fn release(connection: PoolConnection<Sqlite>, is_sound: bool) {
    if !is_sound && let Err(error) = connection.close().await {
        tracing::warn!(%error, "cannot close a connection to the index");
    }
}

async fn lease(
    op: &'static str,
    connection: &mut SqliteConnection,
    chunk: ChunkHash,
    owner: Option<&str>,
    lease_until: Timestamp,
) -> Result<Option<DedupHit>, IndexError> {
    // A xorb in a response is in use again.
    const LEASE: &str = "UPDATE xorbs SET state = 1, lease_until = max(lease_until, ?) \
         WHERE id = ? AND state IN (1, 2)";
    let failed = |error| map(op, error);
    let mut transaction = Write::begin(op, connection).await?;
    let found = sqlx::query(FIND_DEDUP)
        .bind(chunk.as_bytes().to_vec())
        .bind(owner.map(str::to_owned))
        .fetch_optional(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    let Some(row) = found else { return Ok(None) };
    let (id, hash): (i64, &[u8]) = (get(op, &row, 0)?, get(op, &row, 1)?);
    let xorb = rows::xorb_hash(hash).map_err(|error| IndexError::inconsistent(op, error))?;
    let chunk_limit = MAX_DEDUP_CHUNK_COUNT.saturating_sub(get(op, &row, 2)?);
    let near = neighbours(op, &mut transaction, id, owner, chunk_limit).await?;
    let mut neighbours = Vec::new();
    for hash in near.values() {
        neighbours.push(rows::xorb_hash(hash).map_err(|error| IndexError::inconsistent(op, error))?);
    }
    for id in near.into_keys().chain([id]) {
        execute(op, &mut transaction, LEASE, |query| query.bind(millis(lease_until)).bind(id)).await?;
    }
    transaction.commit().await?;
    Ok(Some(DedupHit { xorb, neighbours }))
}

/// Ids and hashes of the neighbours of a xorb, with at most this many chunks together.
async fn neighbours(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    owner: Option<&str>,
    chunk_limit: i64,
) -> Result<BTreeMap<i64, Vec<u8>>, IndexError> {
    let failed = |error| map(op, error);
    let (mut found, mut left) = (BTreeMap::new(), chunk_limit);
    let files = sqlx::query(FIND_FILES).bind(id).fetch_all(statement(op, connection)?).await.map_err(failed)?;
    for file in &files {
        let file: i64 = get(op, file, 0)?;
        let near = sqlx::query(FIND_NEIGHBOURS).bind(id).bind(owner.map(str::to_owned)).bind(file);
        for row in near.fetch_all(statement(op, connection)?).await.map_err(failed)? {
            let (neighbour, hash, chunk_count): (i64, Vec<u8>, i64) =
                (get(op, &row, 0)?, get(op, &row, 1)?, get(op, &row, 2)?);
            if chunk_count > left {
                // The nearest ones are the most useful; a smaller one farther away is no better.
                return Ok(found);
            }
            if found.insert(neighbour, hash).is_none() {
                left -= chunk_count;
            }
        }
    }
    Ok(found)
}

pub(super) type SqliteQuery = sqlx::query::Query<'static, Sqlite, sqlx::sqlite::SqliteArguments>;

pub(super) async fn execute(
    op: &'static str,
    connection: &mut SqliteConnection,
    sql: &'static str,
    bind: impl FnOnce(SqliteQuery) -> SqliteQuery,
) -> Result<u64, IndexError> {
    let result = bind(sqlx::query(sql)).execute(statement(op, connection)?).await.map_err(|error| map(op, error))?;
    Ok(result.rows_affected())
}

/// Appends the rest of a list of xorb hashes, after its opening parenthesis.
pub(super) fn push_hashes(query: &mut QueryBuilder<Sqlite>, hashes: &[XorbHash]) {
    push_list(query, hashes.iter().map(|hash| hash.as_bytes().to_vec()));
}

/// The same for file hashes.
pub(super) fn push_files<'h>(query: &mut QueryBuilder<Sqlite>, files: impl IntoIterator<Item = &'h FileHash>) {
    push_list(query, files.into_iter().map(|hash| hash.as_bytes().to_vec()));
}

fn push_list(query: &mut QueryBuilder<Sqlite>, hashes: impl Iterator<Item = Vec<u8>>) {
    let mut list = query.separated(", ");
    for hash in hashes {
        list.push_bind(hash);
    }
    query.push(")");
}

fn parse_contents(op: &'static str, row: &SqliteRow) -> Result<XorbContents, IndexError> {
    let inconsistent = |error| IndexError::inconsistent(op, error);
    let hash = rows::xorb_hash(get(op, row, 0)?).map_err(inconsistent)?;
    let layout = rows::layout(&hash, get(op, row, 1)?).map_err(inconsistent)?;
    let columns = rows::chunk_columns(&hash, get(op, row, 2)?, get(op, row, 3)?).map_err(inconsistent)?;
    Ok(XorbContents { hash, layout, chunk_hashes: columns.hashes })
}

pub(super) fn file_hash(op: &'static str, bytes: &[u8]) -> Result<FileHash, IndexError> {
    let bytes = bytes.try_into().map_err(|_| {
        let (key, reason) = ("a row".to_owned(), format!("{} bytes, not 32", bytes.len()));
        IndexError::inconsistent(op, Inconsistent { table: "files", column: "hash", key, reason })
    })?;
    Ok(FileHash::from_bytes(bytes))
}

pub(super) fn repo_of(reader: &Reader) -> Option<String> {
    match reader {
        Reader::All => None,
        Reader::Repo(repo) => Some(repo.clone()),
    }
}
