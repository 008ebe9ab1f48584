//! Compaction in SQLite: the terms of files, and what a new xorb inherits.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::files::{BATCH_COUNT, execute, file_hash, push_hashes, release};
use super::repair::xorb_hash;
use super::write::Write;
use super::{SqliteIndex, get, map, millis};
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::index::Ticket;
use crate::index::compact::{Compact, FilePage, FileSwitch, Switched, TermRow, TermRowPage};
use crate::index::error::{Inconsistent, IndexError};
use crate::index::files::parse_terms;
use crate::runtime::clock::Timestamp;

/// Makes a visible and sound xorb live, and touches it.
const TOUCH: &str = "UPDATE xorbs SET state = 1, since = max(since, ?) \
     WHERE hash = ? AND state IN (1, 2) AND damaged_at IS NULL RETURNING id";

impl Compact for SqliteIndex {
    fn term_rows(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermRowPage, IndexError>> {
        self.read_term_rows("list all terms of files", after, limit).boxed()
    }

    fn terms_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<TermRow>, IndexError>> {
        const SQL: &str = "SELECT file_terms.rowid, hash, removed_at, terms FROM files JOIN file_terms ON file_id = id \
             WHERE hash = ? ORDER BY start";
        let op = "read all terms of a file";
        async move {
            let rows = sqlx::query(SQL).bind(file.as_bytes().as_slice()).fetch_all(&self.readers).await;
            let rows = rows.map_err(|error| map(op, error))?;
            rows.iter().filter_map(|row| parse_row(op, row).transpose()).collect()
        }
        .boxed()
    }

    fn files_of(&self, xorb: XorbHash, after: u64, limit: u32) -> BoxFuture<'_, Result<FilePage, IndexError>> {
        const SQL: &str = "SELECT file_id, files.hash, removed_at FROM xorb_files JOIN files ON files.id = file_id \
             WHERE xorb_id = (SELECT id FROM xorbs WHERE hash = ?) AND file_id > ? ORDER BY file_id LIMIT ?";
        let op = "list the files that refer to a xorb";
        async move {
            let query = sqlx::query(SQL).bind(xorb.as_bytes().as_slice()).bind(after.cast_signed()).bind(limit);
            let rows = query.fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            let (mut files, mut last) = (Vec::with_capacity(rows.len()), None);
            for row in &rows {
                last = Some(get::<i64>(op, row, 0)?.cast_unsigned());
                if get::<Option<i64>>(op, row, 2)?.is_none() {
                    files.push(file_hash(op, get(op, row, 1)?)?);
                }
            }
            Ok(FilePage { files, next: last.filter(|_| rows.len() == limit as usize) })
        }
        .boxed()
    }

    fn owners_of(&self, xorbs: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<(XorbHash, String)>, IndexError>> {
        let op = "find the owners of xorbs";
        async move {
            let mut owners = Vec::new();
            for batch in xorbs.chunks(BATCH_COUNT) {
                let mut query = QueryBuilder::<Sqlite>::new(
                    "SELECT hash, domain FROM xorbs JOIN xorb_domains ON xorb_id = id WHERE state IN (1, 2) AND hash IN (",
                );
                push_hashes(&mut query, batch);
                let rows = query.build().fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
                for row in &rows {
                    owners.push((xorb_hash(op, row, 0)?, get(op, row, 1)?));
                }
            }
            let by_xorb = |(xorb, owner): &(XorbHash, String)| (*xorb.as_bytes(), owner.clone());
            owners.sort_by_cached_key(by_xorb);
            Ok(owners)
        }
        .boxed()
    }

    fn asked_chunks(&self, xorb: XorbHash) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>> {
        const SQL: &str = "SELECT chunk_hash FROM dedup_chunks JOIN xorbs ON id = xorb_id \
             WHERE hash = ? AND state IN (1, 2)";
        let op = "list the chunks of a xorb that clients may ask for";
        async move {
            let rows = sqlx::query(SQL).bind(xorb.as_bytes().as_slice()).fetch_all(&self.readers).await;
            let rows = rows.map_err(|error| map(op, error))?;
            rows.iter().map(|row| chunk_hash(op, get(op, row, 0)?)).collect()
        }
        .boxed()
    }

    fn claim_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "INSERT INTO xorbs (hash, state, since, ticket, incarnation) VALUES (?1, 0, ?2, ?3, ?3) \
             ON CONFLICT (hash) DO NOTHING";
        async move {
            let query = sqlx::query(SQL).bind(hash.as_bytes().as_slice()).bind(millis(now)).bind(ticket.0);
            let result = query.execute(&self.writer).await.map_err(|error| map("claim a new xorb", error))?;
            Ok(result.rows_affected() == 1)
        }
        .boxed()
    }

    fn endow_xorb(
        &self,
        xorb: XorbHash,
        owners: Vec<String>,
        chunks: Vec<ChunkHash>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        let op = "endow a xorb";
        async move {
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let endowed = endow(op, &mut connection, xorb, owners, chunks, now).await;
            release(connection, endowed.is_ok()).await;
            endowed
        }
        .boxed()
    }

    fn switch_terms_of<'a>(
        &'a self,
        files: &'a [FileSwitch],
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Switched, IndexError>> {
        self.write_switch(files, now, record).boxed()
    }
}

impl SqliteIndex {
    pub(super) async fn read_term_rows(
        &self,
        op: &'static str,
        after: u64,
        limit: u32,
    ) -> Result<TermRowPage, IndexError> {
        // In the order of the rows. A file that is being removed needs no xorbs.
        const SQL: &str = "SELECT file_terms.rowid, hash, removed_at, terms FROM file_terms \
             LEFT JOIN files ON files.id = file_id WHERE file_terms.rowid > ? ORDER BY file_terms.rowid LIMIT ?";
        let rows = sqlx::query(SQL)
            .bind(after.cast_signed())
            .bind(limit)
            .fetch_all(&self.readers)
            .await
            .map_err(|error| map(op, error))?;
        let (mut parsed, mut last) = (Vec::with_capacity(rows.len()), None);
        for row in &rows {
            last = Some(get::<i64>(op, row, 0)?.cast_unsigned());
            parsed.extend(parse_row(op, row)?);
        }
        Ok(TermRowPage { rows: parsed, next: last.filter(|_| rows.len() == limit as usize) })
    }
}

/// Reads row id, hash of the file, `removed_at`, and packed terms; `None` for a file that is being
/// removed.
fn parse_row(op: &'static str, row: &SqliteRow) -> Result<Option<TermRow>, IndexError> {
    let id: i64 = get(op, row, 0)?;
    if get::<Option<i64>>(op, row, 2)?.is_some() {
        return Ok(None);
    }
    let invalid = |reason: &str| {
        let (key, reason) = (format!("row {id}"), reason.to_owned());
        IndexError::inconsistent(op, Inconsistent { table: "file_terms", column: "terms", key, reason })
    };
    let file = get::<Option<&[u8]>>(op, row, 1)?.ok_or_else(|| invalid("it belongs to no file"))?;
    let terms = parse_terms(get(op, row, 3)?).ok_or_else(|| invalid("no packed terms"))?;
    Ok(Some(TermRow { row: id.cast_unsigned(), file: file_hash(op, file)?, terms }))
}

pub(super) fn chunk_hash(op: &'static str, bytes: &[u8]) -> Result<ChunkHash, IndexError> {
    let bytes = bytes.try_into().map_err(|_| {
        let (key, reason) = ("a row".to_owned(), format!("{} bytes, not 32", bytes.len()));
        IndexError::inconsistent(op, Inconsistent { table: "dedup_chunks", column: "chunk_hash", key, reason })
    })?;
    Ok(ChunkHash::from_bytes(bytes))
}

/// Makes a xorb live and touches it. Returns its id; `None` if it is not visible and sound.
async fn touch(
    op: &'static str,
    connection: &mut SqliteConnection,
    xorb: XorbHash,
    now: Timestamp,
) -> Result<Option<i64>, IndexError> {
    let query = sqlx::query(TOUCH).bind(millis(now)).bind(xorb.as_bytes().to_vec());
    let row = query.fetch_optional(connection).await.map_err(|error| map(op, error))?;
    row.map(|row| get(op, &row, 0)).transpose()
}

async fn endow(
    op: &'static str,
    connection: &mut SqliteConnection,
    xorb: XorbHash,
    owners: Vec<String>,
    chunks: Vec<ChunkHash>,
    now: Timestamp,
) -> Result<bool, IndexError> {
    const SHARE: &str = "INSERT OR IGNORE INTO xorb_domains (xorb_id, domain) VALUES (?, ?)";
    const MENTION: &str = "INSERT OR IGNORE INTO dedup_chunks (xorb_id, chunk_hash) VALUES (?, ?)";
    let mut transaction = Write::begin(op, connection).await?;
    let Some(id) = touch(op, &mut transaction, xorb, now).await? else {
        transaction.rollback().await?;
        return Ok(false);
    };
    for owner in owners {
        execute(op, &mut transaction, SHARE, |query| query.bind(id).bind(owner)).await?;
    }
    for chunk in chunks {
        execute(op, &mut transaction, MENTION, |query| query.bind(id).bind(chunk.as_bytes().to_vec())).await?;
    }
    transaction.commit().await?;
    Ok(true)
}
