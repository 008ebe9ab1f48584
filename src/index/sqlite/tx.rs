//! Runs all statements on the database, singly or in transactions. Errors and tracing spans have
//! the name of the operation. Tests count the statements here and make chosen ones fail (`probe`).
//!
//! Statements have `LIMIT +?`, not `LIMIT ?`. SQLite plans for the value of a parameter that is the
//! whole limit, so it prepares the statement again each time: a lookup takes ten times as long. The
//! plus makes it an expression.

use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Connection, Sqlite, SqlitePool, Transaction};
use tokio::task::coop::consume_budget;
use tracing::Instrument;

#[cfg(any(test, feature = "full-tests"))]
use super::probe::{self, Place};
use super::rows::FromRow;
use super::{SqliteIndex, map};
use crate::index::error::IndexError;
use crate::index::records::ClosedRecords;

/// A write transaction that takes at least this long is logged, because other writers may have
/// waited for it.
const SLOW: Duration = Duration::from_millis(50);

/// A statement with its parameters.
pub(super) type Query<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

impl SqliteIndex {
    /// For single statements of an operation that read.
    pub(super) const fn read(&self, op: &'static str) -> Single<'_> {
        Single { op, pool: &self.readers }
    }

    /// For single statements of an operation that write.
    pub(super) const fn write(&self, op: &'static str) -> Single<'_> {
        Single { op, pool: &self.writer }
    }

    /// Waits for a connection that reads, for several statements in one snapshot.
    pub(super) async fn reading(&self, op: &'static str) -> Result<Held, IndexError> {
        Held::of(op, &self.readers, &self.closed).await
    }

    /// Waits for the connection that writes, for a transaction.
    pub(super) async fn writing(&self, op: &'static str) -> Result<Held, IndexError> {
        Held::of(op, &self.writer, &self.closed).await
    }
}

/// Single statements: each is a transaction of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Single<'p> {
    op: &'static str,
    pool: &'p SqlitePool,
}

impl Single<'_> {
    /// Returns the number of changed rows.
    pub(super) async fn execute(self, query: Query<'_>) -> Result<u64, IndexError> {
        run(self.op, query.execute(self.pool)).await.map(|done| done.rows_affected())
    }

    /// Returns all rows. A statement that writes and returns one row must use this, too, because it
    /// commits when it ends. [`find`](Self::find) and [`one`](Self::one) drop it after the first
    /// row, so a failure of the commit would not be reported.
    pub(super) async fn all<T: FromRow>(self, query: Query<'_>) -> Result<Vec<T>, IndexError> {
        all(self.op, run(self.op, query.fetch_all(self.pool)).await?).await
    }

    pub(super) async fn find<T: FromRow>(self, query: Query<'_>) -> Result<Option<T>, IndexError> {
        find(self.op, run(self.op, query.fetch_optional(self.pool)).await?)
    }

    pub(super) async fn one<T: FromRow>(self, query: Query<'_>) -> Result<T, IndexError> {
        one(self.op, run(self.op, query.fetch_one(self.pool)).await?)
    }
}

/// A connection that an operation holds. It is closed after a failed write.
///
/// When the disk is full or fails, SQLite ends the transaction by itself, but sqlx still counts it
/// as open. sqlx would nest the next transaction of this connection in the ended one, and would
/// acknowledge its commit without committing it. A new connection is in no transaction.
#[derive(Debug)]
pub(super) struct Held {
    op: &'static str,
    connection: PoolConnection<Sqlite>,
    /// Whether the connection is to be closed. Also true while a write transaction begins or ends,
    /// so that an operation that is cancelled there closes the connection, too.
    has_failed: bool,
    closed: ClosedRecords,
}

impl Held {
    async fn of(op: &'static str, pool: &SqlitePool, closed: &ClosedRecords) -> Result<Self, IndexError> {
        let connection = run(op, pool.acquire()).await?;
        Ok(Self { op, connection, has_failed: false, closed: closed.clone() })
    }

    /// Begins a transaction with the write lock of the database.
    pub(super) async fn begin(&mut self) -> Result<Tx<'_>, IndexError> {
        let (op, Self { connection, has_failed, closed, .. }) = (self.op, self);
        *has_failed = true;
        #[cfg(any(test, feature = "full-tests"))]
        probe::pass(Place::Begin, op)?;
        let transaction = run(op, connection.begin_with("BEGIN IMMEDIATE")).await?;
        *has_failed = false;
        // After the wait for another process that has the write lock.
        let began = Instant::now();
        Ok(Tx { op, transaction, is_writing: true, has_failed, began, closed })
    }

    /// Begins a transaction whose statements read one snapshot.
    pub(super) async fn snapshot(&mut self) -> Result<Tx<'_>, IndexError> {
        let (op, Self { connection, has_failed, closed, .. }) = (self.op, self);
        let began = Instant::now();
        let transaction = run(op, connection.begin()).await?;
        Ok(Tx { op, transaction, is_writing: false, has_failed, began, closed })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.has_failed {
            self.connection.close_on_drop();
        }
    }
}

/// A transaction. Dropped without a commit, it changes nothing.
#[derive(Debug)]
pub(super) struct Tx<'c> {
    op: &'static str,
    transaction: Transaction<'c, Sqlite>,
    is_writing: bool,
    has_failed: &'c mut bool,
    began: Instant,
    closed: &'c ClosedRecords,
}

impl Tx<'_> {
    pub(super) const fn op(&self) -> &'static str {
        self.op
    }

    /// The records that this process has closed.
    pub(super) const fn closed(&self) -> &ClosedRecords {
        self.closed
    }

    /// Returns the number of changed rows.
    pub(super) async fn execute(&mut self, query: Query<'_>) -> Result<u64, IndexError> {
        self.pass()?;
        let done = run(self.op, query.execute(&mut *self.transaction)).await;
        self.checked(done).map(|done| done.rows_affected())
    }

    pub(super) async fn all<T: FromRow>(&mut self, query: Query<'_>) -> Result<Vec<T>, IndexError> {
        self.pass()?;
        let rows = run(self.op, query.fetch_all(&mut *self.transaction)).await;
        all(self.op, self.checked(rows)?).await
    }

    pub(super) async fn find<T: FromRow>(&mut self, query: Query<'_>) -> Result<Option<T>, IndexError> {
        self.pass()?;
        let row = run(self.op, query.fetch_optional(&mut *self.transaction)).await;
        find(self.op, self.checked(row)?)
    }

    pub(super) async fn one<T: FromRow>(&mut self, query: Query<'_>) -> Result<T, IndexError> {
        self.pass()?;
        let row = run(self.op, query.fetch_one(&mut *self.transaction)).await;
        one(self.op, self.checked(row)?)
    }

    /// Returns row by row, for results that are too large for memory.
    pub(super) fn stream<'t, T: FromRow>(
        &'t mut self,
        query: Query<'t>,
    ) -> impl Stream<Item = Result<T, IndexError>> + Send + Unpin + 't {
        let (op, is_writing) = (self.op, self.is_writing);
        let Self { transaction, has_failed, .. } = self;
        query.fetch(&mut **transaction).map(move |row| {
            **has_failed |= is_writing && row.is_err();
            one(op, row.map_err(|error| map(op, error))?)
        })
    }

    /// Commits. After an error it is unknown whether the transaction is committed.
    pub(super) async fn commit(self) -> Result<(), IndexError> {
        let op = self.op;
        *self.has_failed = true;
        #[cfg(any(test, feature = "full-tests"))]
        probe::pass(Place::Commit, op)?;
        let statements = self.began.elapsed();
        run(op, self.transaction.commit()).await?;
        let whole = self.began.elapsed();
        if whole >= SLOW {
            tracing::debug!(operation = op, ?whole, ?statements, "slow write of the index");
        }
        #[cfg(any(test, feature = "full-tests"))]
        {
            probe::record_slow("SQLite", op, whole, statements);
            probe::pass(Place::Committed, op)?;
        }
        *self.has_failed = false;
        Ok(())
    }

    pub(super) async fn rollback(self) -> Result<(), IndexError> {
        *self.has_failed = self.is_writing;
        run(self.op, self.transaction.rollback()).await?;
        *self.has_failed = false;
        Ok(())
    }

    /// To be called before each statement. In test builds the hook of `probe` can make a statement
    /// of a write transaction fail here.
    #[cfg_attr(not(any(test, feature = "full-tests")), expect(clippy::unnecessary_wraps, reason = "it fails in tests"))]
    fn pass(&mut self) -> Result<(), IndexError> {
        #[cfg(any(test, feature = "full-tests"))]
        if self.is_writing {
            let passed = probe::pass(Place::Statement, self.op);
            self.checked(passed)?;
        }
        Ok(())
    }

    /// Marks the connection as failed if this is the error of a write.
    fn checked<T>(&mut self, result: Result<T, IndexError>) -> Result<T, IndexError> {
        *self.has_failed |= self.is_writing && result.is_err();
        result
    }
}

/// Waits for a call of sqlx, in a span with the name of the operation.
async fn run<T: Send>(op: &'static str, work: impl Future<Output = sqlx::Result<T>> + Send) -> Result<T, IndexError> {
    work.instrument(tracing::debug_span!("index", operation = op)).await.map_err(|error| map(op, error))
}

fn one<T: FromRow>(op: &'static str, row: SqliteRow) -> Result<T, IndexError> {
    T::from_row(&row).map_err(|error| map(op, error))
}

fn find<T: FromRow>(op: &'static str, row: Option<SqliteRow>) -> Result<Option<T>, IndexError> {
    row.map(|row| one(op, row)).transpose()
}

async fn all<T: FromRow>(op: &'static str, rows: Vec<SqliteRow>) -> Result<Vec<T>, IndexError> {
    let mut values = Vec::with_capacity(rows.len());
    for row in rows {
        values.push(one(op, row)?);
        // There may be thousands of rows, and nothing else in this loop yields.
        consume_budget().await;
    }
    Ok(values)
}
