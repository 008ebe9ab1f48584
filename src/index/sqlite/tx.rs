//! Runs all statements on the database, singly or in transactions. Errors and tracing spans have
//! the name of the operation. Tests count the statements here and make chosen ones fail (`probe`).
//!
//! Statements have `LIMIT +?`, not `LIMIT ?`. SQLite plans for the value of a parameter that is the
//! whole limit, so it prepares the statement again each time: a lookup takes ten times as long. The
//! plus makes it an expression.

use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Connection, Sqlite, Transaction};
use tokio::task::coop::consume_budget;
use tracing::Instrument;

use super::connect::{Condition, Connections, Lent};
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
        Single { op, connections: &self.readers }
    }

    /// For single statements of an operation that write.
    pub(super) const fn write(&self, op: &'static str) -> Single<'_> {
        Single { op, connections: &self.writer }
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
    connections: &'p Connections,
}

impl Single<'_> {
    /// Returns the number of changed rows.
    pub(super) async fn execute(self, query: Query<'_>) -> Result<u64, IndexError> {
        let mut lent = self.acquire().await?;
        let (connection, condition) = lent.parts();
        let done = run(self.op, query.execute(connection)).await;
        ended(condition, done).map(|done| done.rows_affected())
    }

    /// Returns all rows. A statement that writes and returns one row must use this, too, because it
    /// commits when it ends. [`find`](Self::find) and [`one`](Self::one) drop it after the first
    /// row, so a failure of the commit would not be reported.
    pub(super) async fn all<T: FromRow>(self, query: Query<'_>) -> Result<Vec<T>, IndexError> {
        let rows = {
            let mut lent = self.acquire().await?;
            let (connection, condition) = lent.parts();
            let rows = run(self.op, query.fetch_all(connection)).await;
            ended(condition, rows)?
        };
        all(self.op, rows).await
    }

    pub(super) async fn find<T: FromRow>(self, query: Query<'_>) -> Result<Option<T>, IndexError> {
        let mut lent = self.acquire().await?;
        let (connection, condition) = lent.parts();
        let row = run(self.op, query.fetch_optional(connection)).await;
        find(self.op, ended(condition, row)?)
    }

    pub(super) async fn one<T: FromRow>(self, query: Query<'_>) -> Result<T, IndexError> {
        let mut lent = self.acquire().await?;
        let (connection, condition) = lent.parts();
        let row = run(self.op, query.fetch_one(connection)).await;
        one(self.op, ended(condition, row)?)
    }

    async fn acquire(self) -> Result<Lent, IndexError> {
        let mut lent = run(self.op, self.connections.acquire()).await?;
        *lent.parts().1 = Condition::Running;
        Ok(lent)
    }
}

/// Sets the condition of a connection after its statement.
fn ended<T>(condition: &mut Condition, result: Result<T, IndexError>) -> Result<T, IndexError> {
    match (*condition, &result) {
        (_, Err(_)) => *condition = Condition::Failed,
        (Condition::Running, Ok(_)) => *condition = Condition::Idle,
        // A statement has failed before.
        (Condition::Idle | Condition::Failed, Ok(_)) => {}
    }
    result
}

/// A connection that an operation holds. It is closed after an error.
///
/// If a file cannot be written, SQLite opens it for reading only and reports no error, and it stays
/// so for this connection. When the disk is full or fails, SQLite ends the transaction by itself,
/// but sqlx still counts it as open. sqlx would nest the next transaction of this connection in the
/// ended one, and would acknowledge its commit without committing it. A new connection is in no
/// transaction.
#[derive(Debug)]
pub(super) struct Held {
    op: &'static str,
    lent: Lent,
    closed: ClosedRecords,
}

impl Held {
    async fn of(op: &'static str, connections: &Connections, closed: &ClosedRecords) -> Result<Self, IndexError> {
        let lent = run(op, connections.acquire()).await?;
        Ok(Self { op, lent, closed: closed.clone() })
    }

    /// Begins a transaction with the write lock of the database.
    pub(super) async fn begin(&mut self) -> Result<Tx<'_>, IndexError> {
        let (op, Self { lent, closed, .. }) = (self.op, self);
        let (connection, condition) = lent.parts();
        *condition = Condition::Failed;
        #[cfg(any(test, feature = "full-tests"))]
        probe::pass(Place::Begin, op)?;
        let transaction = run(op, connection.begin_with("BEGIN IMMEDIATE")).await?;
        *condition = Condition::Idle;
        // After the wait for another process that has the write lock.
        let began = Instant::now();
        Ok(Tx {
            op,
            transaction,
            #[cfg(any(test, feature = "full-tests"))]
            is_writing: true,
            condition,
            began,
            closed,
        })
    }

    /// Begins a transaction whose statements read one snapshot.
    pub(super) async fn snapshot(&mut self) -> Result<Tx<'_>, IndexError> {
        let (op, Self { lent, closed, .. }) = (self.op, self);
        let (connection, condition) = lent.parts();
        let began = Instant::now();
        *condition = Condition::Failed;
        let transaction = run(op, connection.begin()).await?;
        *condition = Condition::Idle;
        Ok(Tx {
            op,
            transaction,
            #[cfg(any(test, feature = "full-tests"))]
            is_writing: false,
            condition,
            began,
            closed,
        })
    }
}

/// A transaction. Dropped without a commit, it changes nothing.
#[derive(Debug)]
pub(super) struct Tx<'c> {
    op: &'static str,
    transaction: Transaction<'c, Sqlite>,
    /// Whether tests may make its statements fail.
    #[cfg(any(test, feature = "full-tests"))]
    is_writing: bool,
    condition: &'c mut Condition,
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
        self.ended(done).map(|done| done.rows_affected())
    }

    pub(super) async fn all<T: FromRow>(&mut self, query: Query<'_>) -> Result<Vec<T>, IndexError> {
        self.pass()?;
        let rows = run(self.op, query.fetch_all(&mut *self.transaction)).await;
        all(self.op, self.ended(rows)?).await
    }

    pub(super) async fn find<T: FromRow>(&mut self, query: Query<'_>) -> Result<Option<T>, IndexError> {
        self.pass()?;
        let row = run(self.op, query.fetch_optional(&mut *self.transaction)).await;
        find(self.op, self.ended(row)?)
    }

    pub(super) async fn one<T: FromRow>(&mut self, query: Query<'_>) -> Result<T, IndexError> {
        self.pass()?;
        let row = run(self.op, query.fetch_one(&mut *self.transaction)).await;
        one(self.op, self.ended(row)?)
    }

    /// Returns row by row, for results that are too large for memory.
    pub(super) fn stream<'t, T: FromRow>(
        &'t mut self,
        query: Query<'t>,
    ) -> impl Stream<Item = Result<T, IndexError>> + Send + Unpin + 't {
        let op = self.op;
        let Self { transaction, condition, .. } = self;
        // Until the next statement, because the stream may be dropped before its end.
        if **condition == Condition::Idle {
            **condition = Condition::Running;
        }
        query.fetch(&mut **transaction).map(move |row| {
            if row.is_err() {
                **condition = Condition::Failed;
            }
            one(op, row.map_err(|error| map(op, error))?)
        })
    }

    /// Commits. After an error it is unknown whether the transaction is committed.
    pub(super) async fn commit(self) -> Result<(), IndexError> {
        let op = self.op;
        *self.condition = Condition::Failed;
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
        *self.condition = Condition::Idle;
        Ok(())
    }

    pub(super) async fn rollback(self) -> Result<(), IndexError> {
        *self.condition = Condition::Failed;
        run(self.op, self.transaction.rollback()).await?;
        *self.condition = Condition::Idle;
        Ok(())
    }

    /// To be called before each statement. In test builds the hook of `probe` can make a statement
    /// of a write transaction fail here.
    #[cfg_attr(not(any(test, feature = "full-tests")), expect(clippy::unnecessary_wraps, reason = "it fails in tests"))]
    fn pass(&mut self) -> Result<(), IndexError> {
        #[cfg(any(test, feature = "full-tests"))]
        if self.is_writing {
            self.ended(probe::pass(Place::Statement, self.op))?;
        }
        if *self.condition == Condition::Idle {
            *self.condition = Condition::Running;
        }
        Ok(())
    }

    fn ended<T>(&mut self, result: Result<T, IndexError>) -> Result<T, IndexError> {
        ended(self.condition, result)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::{FutureExt, StreamExt};
    use sqlx::query;
    use tokio::time::timeout;

    use super::SqliteIndex;

    /// Each takes a while before it does anything.
    const INSERT: &str = "INSERT INTO t SELECT max(n) FROM c";
    const ROLL_BACK: &str = "INSERT OR ROLLBACK INTO t SELECT NULL FROM (SELECT max(n) FROM c)";
    const SELECT: &str = "SELECT max(n) FROM c";
    const TABLES: [&str; 2] = [
        "CREATE TABLE t (a NOT NULL)",
        "CREATE VIEW c (n) AS WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 300000) \
             SELECT n FROM c",
    ];

    async fn open() -> (tempfile::TempDir, SqliteIndex) {
        let directory = tempfile::tempdir().unwrap();
        let index = SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
        for sql in TABLES {
            index.write("create").execute(query(sql)).await.unwrap();
        }
        (directory, index)
    }

    async fn count(index: &SqliteIndex) -> i64 {
        index.write("count").one(query("SELECT count(*) FROM t")).await.unwrap()
    }

    #[tokio::test]
    async fn dropped_write_ends_before_the_next_one() {
        let (_directory, index) = open().await;
        assert!(index.write("insert").execute(query(INSERT)).now_or_never().is_none());
        assert_eq!(index.writer.idle_count(), 0);
        assert_eq!(count(&index).await, 1);
        index.close().await;
    }

    /// Also one whose statement ends the transaction by itself, as when the disk is full.
    #[tokio::test]
    async fn dropped_transaction_is_rolled_back_before_the_next_one() {
        let (_directory, index) = open().await;
        for sql in [INSERT, ROLL_BACK] {
            let mut held = index.writing("insert").await.unwrap();
            let mut tx = held.begin().await.unwrap();
            assert!(tx.execute(query(sql)).now_or_never().is_none());
            drop(tx);
            drop(held);
            let mut held = index.writing("insert").await.unwrap();
            let mut tx = held.begin().await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            tx.execute(query("INSERT INTO t VALUES (1)")).await.unwrap();
            tx.commit().await.unwrap();
        }
        assert_eq!(count(&index).await, 2);
    }

    #[tokio::test]
    async fn dropped_read_gives_its_connection_back_after_its_end() {
        let (_directory, index) = open().await;
        let idle = async |count| {
            let all = async {
                while index.readers.idle_count() != count {
                    tokio::task::yield_now().await;
                }
            };
            timeout(Duration::from_secs(60), all).await.unwrap();
        };
        idle(1).await;
        assert!(index.read("read").one::<i64>(query(SELECT)).now_or_never().is_none());
        assert_eq!(index.readers.idle_count(), 0);
        idle(1).await;
        let mut held = index.reading("read").await.unwrap();
        let mut tx = held.snapshot().await.unwrap();
        let mut rows = tx.stream::<i64>(query("SELECT n FROM c"));
        assert_eq!(rows.next().await.unwrap().unwrap(), 1);
        drop(rows);
        drop(tx);
        drop(held);
        assert_eq!(index.readers.idle_count(), 0);
        idle(1).await;
    }
}
