//! Checks and repairs of the whole index in SQLite, page by page.
//!
//! Each repair is one conditional transaction: a crash leaves it whole or not begun. Blobs are not
//! touched here: `service/fsck` orders both.

use std::collections::{HashMap, HashSet};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, QueryBuilder, Sqlite, SqliteConnection};

use super::files::{BATCH_COUNT, execute, file_hash, push_hashes, release};
use super::health::{after_bytes, parse_health, select_health};
use super::write::{Write, statement};
use super::{SqliteIndex, get, map, millis};
use crate::format::{FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::files::parse_terms;
use crate::index::health::{Drift, FaultPage, FileFault, FutureTimes, RepairIndex, XorbHealth};
use crate::index::{NewXorb, Ticket, Totals, rows};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// Files on one page, at most.
const PAGE_COUNT: u32 = 500;

/// Bytes of terms that end a page. A single file may have more; 32 bytes per xorb are in memory.
const PAGE_TERMS_LEN: i64 = 4 << 20;

impl RepairIndex for SqliteIndex {
    fn health_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>> {
        let op = "list the health of xorbs";
        async move {
            let query = sqlx::query(select_health!("hash > ? AND state IN (1, 2) ORDER BY hash LIMIT ?"));
            let rows = query.bind(after_bytes(after)).bind(limit).fetch_all(&self.readers).await;
            rows.map_err(|error| map(op, error))?.iter().map(|row| parse_health(op, row)).collect()
        }
        .boxed()
    }

    fn adopt_xorb(
        &self,
        xorb: NewXorb,
        incarnation: Incarnation,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        async move {
            let op = "adopt a xorb";
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let adopted = adopt(&mut connection, op, xorb, incarnation, ticket, now).await;
            release(connection, adopted.is_ok()).await;
            adopted
        }
        .boxed()
    }

    fn faulty_files(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<FaultPage, IndexError>> {
        self.read_faults(after).boxed()
    }

    fn rebuild_references(&self, file: FileHash) -> BoxFuture<'_, Result<bool, IndexError>> {
        async move {
            let op = "rebuild the references of a file";
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let rebuilt = rebuild(&mut connection, op, file).await;
            release(connection, rebuilt.is_ok()).await;
            rebuilt
        }
        .boxed()
    }

    fn totals_drift(&self) -> BoxFuture<'_, Result<Drift, IndexError>> {
        // One statement, so one snapshot.
        const SQL: &str = "SELECT counted - xorb_count, serialized - serialized_len, raw - raw_len FROM totals, \
             (SELECT count(*) AS counted, coalesce(sum(x.serialized_len), 0) AS serialized, \
             coalesce(sum(x.raw_len), 0) AS raw FROM xorbs AS x WHERE x.state IN (1, 2))";
        let op = "add up the xorbs";
        async move {
            let row = sqlx::query(SQL).fetch_one(&self.readers).await.map_err(|error| map(op, error))?;
            Ok(Drift { xorb_count: get(op, &row, 0)?, serialized_len: get(op, &row, 1)?, raw_len: get(op, &row, 2)? })
        }
        .boxed()
    }

    fn repair_totals(&self, drift: Drift) -> BoxFuture<'_, Result<Totals, IndexError>> {
        const SQL: &str = "UPDATE totals SET xorb_count = xorb_count + ?, serialized_len = serialized_len + ?, \
             raw_len = raw_len + ? RETURNING xorb_count, serialized_len, raw_len";
        let op = "repair the totals";
        async move {
            // All rows, although there is one: a statement dropped after its first row may not be
            // committed.
            let rows = sqlx::query(SQL)
                .bind(drift.xorb_count)
                .bind(drift.serialized_len)
                .bind(drift.raw_len)
                .fetch_all(&self.writer)
                .await
                .map_err(|error| map(op, error))?;
            let Some(row) = rows.first() else { return Err(IndexError::lost(op, 0)) };
            let column = |index: usize| get::<i64>(op, row, index).map(i64::cast_unsigned);
            Ok(Totals { xorb_count: column(0)?, serialized_len: column(1)?, raw_len: column(2)? })
        }
        .boxed()
    }

    fn future_times(&self, than: Timestamp) -> BoxFuture<'_, Result<FutureTimes, IndexError>> {
        self.read_future_times(than).boxed()
    }

    fn set_times_back(
        &self,
        after: Option<XorbHash>,
        limit: u32,
        than: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<XorbHash>, IndexError>> {
        self.write_times_back(after, limit, than, now).boxed()
    }

    fn set_collection_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        self.write_collection_back(now).boxed()
    }
}

impl SqliteIndex {
    async fn read_faults(&self, after: Option<FileHash>) -> Result<FaultPage, IndexError> {
        const SQL: &str = "SELECT id, hash, \
             (SELECT coalesce(sum(length(terms)), 0) FROM file_terms WHERE file_id = id) FROM files \
             WHERE hash > ? AND removed_at IS NULL AND registration NOT IN hidden ORDER BY hash LIMIT ?";
        let op = "compare files with their references";
        let failed = |error| map(op, error);
        let mut connection = self.readers.acquire().await.map_err(failed)?;
        // One snapshot: a file that is removed or registered meanwhile would look faulty.
        let mut transaction = connection.begin().await.map_err(failed)?;
        let after = after.map_or(Vec::new(), |hash| hash.as_bytes().to_vec());
        let (mut files, mut terms_len): (Vec<(i64, FileHash)>, i64) = (Vec::new(), 0);
        {
            let mut rows = sqlx::query(SQL).bind(after).bind(PAGE_COUNT).fetch(&mut *transaction);
            while let Some(row) = rows.try_next().await.map_err(failed)? {
                files.push((get(op, &row, 0)?, file_hash(op, get(op, &row, 1)?)?));
                terms_len = terms_len.saturating_add(get(op, &row, 2)?);
                if terms_len >= PAGE_TERMS_LEN {
                    break;
                }
            }
        }
        let mut page = FaultPage { last: files.last().map(|(_, hash)| *hash), ..FaultPage::default() };
        for (id, hash) in files {
            page.file_count += 1;
            page.faults.extend(compare(op, &mut transaction, id, hash).await?.map(|(fault, _)| fault));
        }
        transaction.rollback().await.map_err(failed)?;
        Ok(page)
    }
}

/// The fault of a file, and the ids of the xorbs that it should reference; `None` if it has none.
async fn compare(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    file: FileHash,
) -> Result<Option<(FileFault, HashMap<XorbHash, i64>)>, IndexError> {
    const REFERENCES: &str =
        "SELECT hash, xorbs.id FROM xorb_files JOIN xorbs ON xorbs.id = xorb_id WHERE file_id = ? AND state IN (1, 2)";
    const COUNT: &str = "SELECT count(*) FROM xorb_files WHERE file_id = ?";
    let failed = |error| map(op, error);
    let none = FileFault { file, lost: Vec::new(), unreferenced: Vec::new(), surplus_count: 0, is_unreadable: false };
    let Some(named) = named_xorbs(op, connection, id).await? else {
        return Ok(Some((FileFault { is_unreadable: true, ..none }, HashMap::new())));
    };
    let rows = sqlx::query(REFERENCES).bind(id).fetch_all(statement(op, connection)?).await.map_err(failed)?;
    let mut referenced = HashMap::with_capacity(rows.len());
    for row in &rows {
        referenced.insert(xorb_hash(op, row, 0)?, get::<i64>(op, row, 1)?);
    }
    let count = sqlx::query(COUNT).bind(id).fetch_one(statement(op, connection)?).await.map_err(failed)?;
    let reference_count = get::<i64>(op, &count, 0)?.cast_unsigned();
    let referenced_count = named.iter().filter(|xorb| referenced.contains_key(xorb)).count() as u64;
    let mut fault = FileFault { surplus_count: reference_count.saturating_sub(referenced_count), ..none };
    let mut wanted: HashMap<XorbHash, i64> =
        referenced.iter().filter(|(xorb, _)| named.contains(*xorb)).map(|(xorb, id)| (*xorb, *id)).collect();
    let open: Vec<XorbHash> = named.iter().filter(|xorb| !referenced.contains_key(xorb)).copied().collect();
    for batch in open.chunks(BATCH_COUNT) {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT hash, id FROM xorbs WHERE state IN (1, 2) AND hash IN (");
        push_hashes(&mut query, batch);
        let rows = query.build().fetch_all(statement(op, connection)?).await.map_err(failed)?;
        for row in &rows {
            wanted.insert(xorb_hash(op, row, 0)?, get(op, row, 1)?);
        }
    }
    for xorb in open {
        if wanted.contains_key(&xorb) { fault.unreferenced.push(xorb) } else { fault.lost.push(xorb) }
    }
    let is_faulty = !fault.lost.is_empty() || !fault.unreferenced.is_empty() || fault.surplus_count > 0;
    Ok(is_faulty.then_some((fault, wanted)))
}

/// The xorbs in the terms of a file; `None` if a run of terms does not parse.
async fn named_xorbs(
    op: &'static str,
    connection: &mut SqliteConnection,
    file_id: i64,
) -> Result<Option<HashSet<XorbHash>>, IndexError> {
    let mut named = HashSet::new();
    let mut rows = sqlx::query("SELECT terms FROM file_terms WHERE file_id = ?").bind(file_id).fetch(connection);
    while let Some(row) = rows.try_next().await.map_err(|error| map(op, error))? {
        let Some(terms) = parse_terms(get(op, &row, 0)?) else { return Ok(None) };
        named.extend(terms.iter().map(|term| term.xorb));
    }
    Ok(Some(named))
}

async fn rebuild(connection: &mut SqliteConnection, op: &'static str, file: FileHash) -> Result<bool, IndexError> {
    const FORGET: &str = "DELETE FROM xorb_files WHERE file_id = ?";
    const REFER: &str = "INSERT INTO xorb_files (xorb_id, file_id) VALUES (?, ?)";
    let failed = |error| map(op, error);
    let mut transaction = Write::begin(op, connection).await?;
    let row = sqlx::query("SELECT id FROM files WHERE hash = ?")
        .bind(file.as_bytes().as_slice())
        .fetch_optional(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    let Some(row) = row else { return Ok(false) };
    let id: i64 = get(op, &row, 0)?;
    let Some((fault, wanted)) = compare(op, &mut transaction, id, file).await? else { return Ok(false) };
    if fault.is_unreadable || (fault.unreferenced.is_empty() && fault.surplus_count == 0) {
        return Ok(false);
    }
    execute(op, &mut transaction, FORGET, |query| query.bind(id)).await?;
    for xorb_id in wanted.into_values() {
        execute(op, &mut transaction, REFER, |query| query.bind(xorb_id).bind(id)).await?;
        // A referenced xorb is in use: a condemned one becomes live, as in a registration.
        let revive = "UPDATE xorbs SET state = 1 WHERE id = ? AND state = 2";
        execute(op, &mut transaction, revive, |query| query.bind(xorb_id)).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

async fn adopt(
    connection: &mut SqliteConnection,
    op: &'static str,
    xorb: NewXorb,
    incarnation: Incarnation,
    ticket: Ticket,
    now: Timestamp,
) -> Result<bool, IndexError> {
    const INSERT: &str = "INSERT INTO xorbs \
         (hash, state, since, ticket, serialized_len, raw_len, crc64, layout, verified_at, incarnation) \
         VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7, ?2, ?8) ON CONFLICT (hash) DO NOTHING RETURNING id";
    const NAME: &str = "DELETE FROM objects WHERE hash = ? AND incarnation = ?";
    const DESCRIBE: &str = "INSERT INTO xorb_chunks (xorb_id, hashes, schemes) VALUES (?, ?, ?)";
    const ADD: &str = "UPDATE totals \
         SET xorb_count = xorb_count + 1, serialized_len = serialized_len + ?, raw_len = raw_len + ?";
    let failed = |error| map(op, error);
    let (serialized_len, raw_len) = (xorb.layout.serialized_len().cast_signed(), xorb.layout.raw_len().cast_signed());
    let mut transaction = Write::begin(op, connection).await?;
    let row = sqlx::query(INSERT)
        .bind(xorb.hash.as_bytes().as_slice())
        .bind(millis(now))
        .bind(ticket.0)
        .bind(serialized_len)
        .bind(raw_len)
        .bind(xorb.crc64.cast_signed())
        .bind(xorb.layout.pack())
        .bind(rows::incarnation_to_sql(incarnation))
        .fetch_optional(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    let Some(row) = row else { return Ok(false) };
    let id: i64 = get(op, &row, 0)?;
    let hash = xorb.hash.as_bytes().to_vec();
    execute(op, &mut transaction, NAME, |query| query.bind(hash).bind(rows::incarnation_to_sql(incarnation))).await?;
    let hashes: Vec<u8> = xorb.chunk_hashes.iter().flat_map(|hash| *hash.as_bytes()).collect();
    let schemes: Vec<u8> = xorb.schemes.iter().map(|scheme| scheme.as_byte()).collect();
    execute(op, &mut transaction, DESCRIBE, |query| query.bind(id).bind(hashes).bind(schemes)).await?;
    execute(op, &mut transaction, ADD, |query| query.bind(serialized_len).bind(raw_len)).await?;
    transaction.commit().await?;
    Ok(true)
}

pub(super) fn xorb_hash(op: &'static str, row: &SqliteRow, index: usize) -> Result<XorbHash, IndexError> {
    rows::xorb_hash(get(op, row, index)?).map_err(|error| IndexError::inconsistent(op, error))
}

#[cfg(test)]
impl SqliteIndex {
    /// Changes the database against all rules, like bit rot or a bug.
    pub(crate) async fn tamper(&self, sql: &str) {
        let sql = format!("PRAGMA foreign_keys = OFF; {sql}; PRAGMA foreign_keys = ON");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&self.writer).await.unwrap();
    }
}
