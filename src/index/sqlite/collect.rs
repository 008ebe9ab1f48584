//! Garbage collection in SQLite: leases, references, and the steps of a removal.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection};

use super::files::{execute, push_hashes, release};
use super::write::{Write, statement};
use super::{SqliteIndex, get, map, millis};
use crate::format::{FileHash, XorbHash};
use crate::index::collect::{Collect, RemovedClaims, TermPage, TermRun, XorbLife};
use crate::index::error::{Inconsistent, IndexError};
use crate::index::rows;
use crate::index::{TermRow, TermRowPage};
use crate::runtime::clock::Timestamp;

/// Selects the columns of [`parse_life`]. The index covers all of them; a row of the table has some
/// kilobytes.
const SELECT_LIFE: &str = "SELECT hash, state, since, lease_until, coalesce(serialized_len, 0), \
     EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = xorbs.id) FROM xorbs INDEXED BY xorbs_life ";

/// The condition of every step, with [`UNREFERENCED`]: the xorb is unleased and unreferenced. Every
/// step checks it in its own statement.
const UNLEASED: &str = " AND lease_until <= ";
const UNREFERENCED: &str = " AND NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = xorbs.id) AND hash IN (";

impl Collect for SqliteIndex {
    fn xorb_lives(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbLife>, IndexError>> {
        let op = "list the references of xorbs";
        async move {
            // The empty blob is before every hash.
            let mut query = QueryBuilder::<Sqlite>::new(SELECT_LIFE);
            query.push("WHERE hash > ").push_bind(after.map_or(Vec::new(), |hash| hash.as_bytes().to_vec()));
            query.push(" ORDER BY hash LIMIT ").push_bind(limit);
            let rows = query.build().fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            rows.iter().map(|row| parse_life(op, row)).collect()
        }
        .boxed()
    }

    fn find_life(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbLife>, IndexError>> {
        let op = "find the references of a xorb";
        async move {
            let mut query = QueryBuilder::<Sqlite>::new(SELECT_LIFE);
            query.push("WHERE hash = ").push_bind(hash.as_bytes().to_vec());
            let row = query.build().fetch_optional(&self.readers).await.map_err(|error| map(op, error))?;
            row.map(|row| parse_life(op, &row)).transpose()
        }
        .boxed()
    }

    fn term_runs(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermPage, IndexError>> {
        self.read_term_runs(after, limit).boxed()
    }

    fn condemn_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        idle_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        let op = "condemn xorbs";
        async move {
            let mut query = QueryBuilder::<Sqlite>::new("UPDATE xorbs SET state = 2, since = max(since, ");
            query.push_bind(millis(now)).push(") WHERE state = 1 AND since <= ").push_bind(millis(idle_since));
            query.push(UNLEASED).push_bind(millis(now)).push(UNREFERENCED);
            push_hashes(&mut query, &xorbs);
            query.push(" RETURNING hash");
            let rows = query.build().fetch_all(&self.writer).await.map_err(|error| map(op, error))?;
            rows.iter().map(|row| parse_hash(op, row)).collect()
        }
        .boxed()
    }

    fn begin_deletions(
        &self,
        xorbs: Vec<XorbHash>,
        condemned_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        let op = "begin to delete xorbs";
        async move {
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let begun = begin_deletions(op, &mut connection, &xorbs, condemned_since, now).await;
            release(connection, begun.is_ok()).await;
            begun
        }
        .boxed()
    }

    fn abandon_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        staged_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        let op = "give up staged xorbs";
        async move {
            let mut query = QueryBuilder::<Sqlite>::new("UPDATE xorbs SET state = 3, since = max(since, ");
            query.push_bind(millis(now)).push(") WHERE state = 0 AND since <= ").push_bind(millis(staged_since));
            query.push(" AND hash IN (");
            push_hashes(&mut query, &xorbs);
            query.push(" RETURNING hash");
            let rows = query.build().fetch_all(&self.writer).await.map_err(|error| map(op, error))?;
            rows.iter().map(|row| parse_hash(op, row)).collect()
        }
        .boxed()
    }

    fn remove_claims_of(
        &self,
        file: FileHash,
        repo: Option<String>,
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'_, Result<RemovedClaims, IndexError>> {
        self.delete_claims(file, repo, now, record).boxed()
    }

    fn sweep_removed(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.delete_removed(now).boxed()
    }

    fn generation(&self) -> BoxFuture<'_, Result<u64, IndexError>> {
        async move {
            let value = self.read_visibility("read the generation", "SELECT generation FROM visibility").await?;
            Ok(value.cast_unsigned())
        }
        .boxed()
    }

    fn last_collection(&self) -> BoxFuture<'_, Result<Timestamp, IndexError>> {
        async move {
            let (op, sql) = ("read when garbage was collected", "SELECT collected_at FROM visibility");
            Ok(Timestamp::from_millis(self.read_visibility(op, sql).await?.cast_unsigned()))
        }
        .boxed()
    }

    fn record_collection(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        async move {
            sqlx::query("UPDATE visibility SET collected_at = max(collected_at, ?)")
                .bind(millis(now))
                .execute(&self.writer)
                .await
                .map_err(|error| map("record a GC run", error))?;
            Ok(())
        }
        .boxed()
    }
}

impl SqliteIndex {
    async fn read_term_runs(&self, after: u64, limit: u32) -> Result<TermPage, IndexError> {
        let TermRowPage { rows, next } = self.read_term_rows("list the terms of files", after, limit).await?;
        let distinct = |row: TermRow| {
            let mut xorbs: Vec<XorbHash> = row.terms.iter().map(|term| term.xorb).collect();
            xorbs.sort_unstable_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
            xorbs.dedup();
            TermRun { file: row.file, xorbs }
        };
        Ok(TermPage { runs: rows.into_iter().map(distinct).collect(), next })
    }

    async fn read_visibility(&self, op: &'static str, sql: &'static str) -> Result<i64, IndexError> {
        let row = sqlx::query(sql).fetch_one(&self.readers).await.map_err(|error| map(op, error))?;
        get(op, &row, 0)
    }
}

async fn begin_deletions(
    op: &'static str,
    connection: &mut SqliteConnection,
    xorbs: &[XorbHash],
    condemned_since: Timestamp,
    now: Timestamp,
) -> Result<Vec<XorbHash>, IndexError> {
    const SUBTRACT: &str = "UPDATE totals SET xorb_count = xorb_count - ?, \
         serialized_len = serialized_len - ?, raw_len = raw_len - ?";
    let failed = |error| map(op, error);
    let mut transaction = Write::begin(op, connection).await?;
    let mut query = QueryBuilder::<Sqlite>::new("UPDATE xorbs SET state = 3, since = max(since, ");
    query.push_bind(millis(now)).push(") WHERE state = 2 AND since <= ").push_bind(millis(condemned_since));
    query.push(UNLEASED).push_bind(millis(now)).push(UNREFERENCED);
    push_hashes(&mut query, xorbs);
    query.push(" RETURNING hash, serialized_len, raw_len");
    let rows = query.build().fetch_all(statement(op, &mut transaction)?).await.map_err(failed)?;
    let (mut begun, mut serialized_len, mut raw_len) = (Vec::with_capacity(rows.len()), 0_i64, 0_i64);
    for row in &rows {
        begun.push(parse_hash(op, row)?);
        serialized_len = serialized_len.saturating_add(get(op, row, 1)?);
        raw_len = raw_len.saturating_add(get(op, row, 2)?);
    }
    if begun.is_empty() {
        transaction.rollback().await?;
        return Ok(begun);
    }
    let count = i64::try_from(begun.len()).unwrap_or(i64::MAX);
    execute(op, &mut transaction, SUBTRACT, |query| query.bind(count).bind(serialized_len).bind(raw_len)).await?;
    hide(op, &mut transaction).await?;
    transaction.commit().await?;
    Ok(begun)
}

/// Increments the generation, in the transaction that makes something invisible.
pub(super) async fn hide(op: &'static str, connection: &mut SqliteConnection) -> Result<(), IndexError> {
    let sql = "UPDATE visibility SET generation = generation + 1";
    execute(op, connection, sql, |query| query).await.map(drop)
}

fn parse_hash(op: &'static str, row: &SqliteRow) -> Result<XorbHash, IndexError> {
    rows::xorb_hash(get(op, row, 0)?).map_err(|error| IndexError::inconsistent(op, error))
}

fn parse_life(op: &'static str, row: &SqliteRow) -> Result<XorbLife, IndexError> {
    let hash = parse_hash(op, row)?;
    let moment = |index: usize, column| {
        let value: i64 = get(op, row, index)?;
        // Cast to unsigned, a time before 1970 would lie in the far future, and the other way
        // round.
        u64::try_from(value).map(Timestamp::from_millis).map_err(|_| {
            let (key, reason) = (format!("xorb {hash}"), format!("{value} is no time"));
            IndexError::inconsistent(op, Inconsistent { table: "xorbs", column, key, reason })
        })
    };
    Ok(XorbLife {
        hash,
        state: rows::state(&hash, get(op, row, 1)?).map_err(|error| IndexError::inconsistent(op, error))?,
        since: moment(2, "since")?,
        lease_until: moment(3, "lease_until")?,
        serialized_len: row.try_get::<i64, _>(4).map_err(|error| map(op, error))?.cast_unsigned(),
        is_referenced: get(op, row, 5)?,
    })
}

#[cfg(test)]
impl SqliteIndex {
    /// Changes the database against its own rules, without the index.
    pub(crate) async fn corrupt(&self, sql: &'static str) {
        let mut connection = self.writer.acquire().await.unwrap();
        for sql in ["PRAGMA foreign_keys = OFF", sql, "PRAGMA foreign_keys = ON"] {
            sqlx::query(sql).execute(&mut *connection).await.unwrap();
        }
    }
}
