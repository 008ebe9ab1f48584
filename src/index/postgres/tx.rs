//! The way of every statement to the database: single ones, and transactions. Errors and spans have
//! the name of their operation. Tests count statements here and let single ones fail.

use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Connection, PgPool, Postgres, Transaction, query_scalar, raw_sql};
use thiserror::Error;
use tokio::task::coop::consume_budget;
use tokio::time::sleep;
use tracing::Instrument;

use super::connect::LongestWrite;
use super::failure::is_transient;
#[cfg(any(test, feature = "full-tests"))]
use super::probe::{self, Place};
use super::rows::FromRow;
use super::{PostgresIndex, map, session};
use crate::index::error::{IndexError, IndexErrorKind};
use crate::index::records::ClosedRecords;

/// The advisory lock that every write transaction takes first.
const WRITE_LOCK: i64 = i64::from_be_bytes(*b"zorb.idx");

/// How often a transaction waits for the lock. Each wait is as long as the setting `lock_timeout`.
const LOCK_ATTEMPT_COUNT: u32 = 5;

/// The pause before another attempt, in milliseconds: random, so that two waiting processes do not
/// meet again.
const LOCK_PAUSE: std::ops::Range<u64> = 10..200;

/// From this time on a transaction is logged: other writers have waited for it.
const SLOW: Duration = Duration::from_millis(50);

/// A statement with its parameters.
pub(super) type Query<'q> = sqlx::query::Query<'q, Postgres, PgArguments>;

impl PostgresIndex {
    /// Single reading statements of an operation.
    pub(super) const fn read(&self, op: &'static str) -> Single<'_> {
        Single { op, index: self, is_writing: false }
    }

    /// Single writing statements of an operation.
    pub(super) const fn write(&self, op: &'static str) -> Single<'_> {
        Single { op, index: self, is_writing: true }
    }

    /// A reading connection, for a snapshot of several statements.
    pub(super) async fn reading(&self, op: &'static str) -> Result<Held, IndexError> {
        Held::of(op, &self.readers, LongestWrite::default(), None, &self.closed).await
    }

    /// A writing connection, for a transaction.
    pub(super) async fn writing(&self, op: &'static str) -> Result<Held, IndexError> {
        let own_lock = self.session.as_ref().map(|session| session.own_lock);
        Held::of(op, &self.writers, self.longest_write.clone(), own_lock, &self.closed).await
    }

    /// Waits until the transaction that writes now has ended, in any process.
    pub(super) async fn wait_for_writer(&self, op: &'static str) -> Result<(), IndexError> {
        let mut held = self.writing(op).await?;
        held.begin().await?.rollback().await
    }
}

/// Single statements: each is a transaction of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Single<'p> {
    op: &'static str,
    index: &'p PostgresIndex,
    is_writing: bool,
}

impl Single<'_> {
    /// Returns the number of changed rows.
    pub(super) async fn execute(self, query: Query<'_>) -> Result<u64, IndexError> {
        let mut held = self.index.writing(self.op).await?;
        let mut tx = held.begin().await?;
        let changed = tx.execute(query).await?;
        tx.commit().await?;
        Ok(changed)
    }

    pub(super) async fn all<T: FromRow>(self, query: Query<'_>) -> Result<Vec<T>, IndexError> {
        if !self.is_writing {
            return all(self.op, run(self.op, query.fetch_all(&self.index.readers)).await?).await;
        }
        let mut held = self.index.writing(self.op).await?;
        let mut tx = held.begin().await?;
        let values = tx.all(query).await?;
        tx.commit().await?;
        Ok(values)
    }

    /// Only reads.
    pub(super) async fn find<T: FromRow>(self, query: Query<'_>) -> Result<Option<T>, IndexError> {
        find(self.op, run(self.op, query.fetch_optional(&self.index.readers)).await?)
    }

    /// Only reads.
    pub(super) async fn one<T: FromRow>(self, query: Query<'_>) -> Result<T, IndexError> {
        one(self.op, run(self.op, query.fetch_one(&self.index.readers)).await?)
    }
}

/// A commit after a failed statement: PostgreSQL would roll back and report success.
#[derive(Debug, Error)]
#[error("a statement of the transaction has failed")]
struct Aborted;

/// A connection that an operation holds. After a failure it is closed: its session may be in any
/// state, and its end releases the lock.
#[derive(Debug)]
pub(super) struct Held {
    op: &'static str,
    connection: PoolConnection<Postgres>,
    has_failed: bool,
    longest_write: LongestWrite,
    /// When it took the lock.
    locked: Option<Instant>,
    /// The lock of the session of this process, if it has one.
    own_lock: Option<i64>,
    closed: ClosedRecords,
}

impl Held {
    async fn of(
        op: &'static str,
        pool: &PgPool,
        longest_write: LongestWrite,
        own_lock: Option<i64>,
        closed: &ClosedRecords,
    ) -> Result<Self, IndexError> {
        let connection = run(op, pool.acquire()).await?;
        Ok(Self { op, connection, has_failed: false, longest_write, locked: None, own_lock, closed: closed.clone() })
    }

    /// Begins a transaction that excludes every other one that writes, in all processes.
    pub(super) async fn begin(&mut self) -> Result<Tx<'_>, IndexError> {
        let (op, Self { connection, has_failed, locked, own_lock, closed, .. }) = (self.op, self);
        *has_failed = true;
        #[cfg(any(test, feature = "full-tests"))]
        probe::pass(Place::Begin, op)?;
        let begin = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
        let mut transaction = run(op, begin).await?;
        lock(op, &mut transaction, *own_lock).await?;
        *has_failed = false;
        let began = Instant::now();
        *locked = Some(began);
        Ok(Tx { op, transaction, is_writing: true, has_failed, began, own_lock: *own_lock, closed })
    }

    /// Begins a transaction that reads one snapshot.
    pub(super) async fn snapshot(&mut self) -> Result<Tx<'_>, IndexError> {
        let (op, Self { connection, has_failed, closed, .. }) = (self.op, self);
        let began = Instant::now();
        let begin = connection.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        let transaction = run(op, begin).await?;
        Ok(Tx { op, transaction, is_writing: false, has_failed, began, own_lock: None, closed })
    }
}

/// Waits for the lock of all writers, in a statement of its own: the next one sees what the holder
/// before has committed. The transaction releases it when it ends.
///
/// Fails if the session of this process, which has `own_lock`, has ended ([`session`]).
async fn lock(
    op: &'static str,
    transaction: &mut Transaction<'_, Postgres>,
    own_lock: Option<i64>,
) -> Result<(), IndexError> {
    // The second lock is tried when the first one is held: the branch of a CASE is evaluated after
    // its condition. A lock with the number NULL is none, and then the result is NULL.
    const LOCK: &str = "SELECT CASE WHEN pg_advisory_xact_lock($1) IS NOT NULL \
         THEN pg_try_advisory_xact_lock_shared($2) END";
    for attempt in 1.. {
        let locked = query_scalar(LOCK).bind(WRITE_LOCK).bind(own_lock);
        let locked: sqlx::Result<Option<bool>> = locked.fetch_one(&mut **transaction).await;
        match locked {
            Ok(Some(true)) => return Err(session::lost()),
            Ok(_) => break,
            Err(error) if attempt < LOCK_ATTEMPT_COUNT && is_transient(&error) => {}
            Err(error) => return Err(map(op, error)),
        }
        sleep(Duration::from_millis(rand::random_range(LOCK_PAUSE))).await;
        // The failure has ended the transaction, and nothing was read or written in it.
        run(op, raw_sql("ROLLBACK AND CHAIN").execute(&mut **transaction)).await?;
    }
    Ok(())
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(locked) = self.locked {
            self.longest_write.record(locked.elapsed());
        }
        if self.has_failed {
            self.connection.close_on_drop();
        }
    }
}

/// A transaction. Dropped without a commit, it changes nothing.
#[derive(Debug)]
pub(super) struct Tx<'c> {
    op: &'static str,
    transaction: Transaction<'c, Postgres>,
    is_writing: bool,
    has_failed: &'c mut bool,
    began: Instant,
    own_lock: Option<i64>,
    closed: &'c ClosedRecords,
}

impl Tx<'_> {
    pub(super) const fn op(&self) -> &'static str {
        self.op
    }

    /// The lock of the session of this process, if it has one.
    pub(super) const fn own_lock(&self) -> Option<i64> {
        self.own_lock
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

    /// Row by row, for results that are too large for memory.
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

    /// After an error the outcome is unknown.
    pub(super) async fn commit(self) -> Result<(), IndexError> {
        let op = self.op;
        if *self.has_failed {
            return Err(IndexError { op, kind: IndexErrorKind::Other, source: Box::new(Aborted) });
        }
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
            probe::record_slow("PostgreSQL", op, whole, statements);
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

    /// Before a statement. In tests one that may write may fail.
    #[cfg_attr(not(any(test, feature = "full-tests")), expect(clippy::unnecessary_wraps, reason = "it fails in tests"))]
    fn pass(&mut self) -> Result<(), IndexError> {
        #[cfg(any(test, feature = "full-tests"))]
        if self.is_writing {
            let passed = probe::pass(Place::Statement, self.op);
            self.checked(passed)?;
        }
        Ok(())
    }

    fn checked<T>(&mut self, result: Result<T, IndexError>) -> Result<T, IndexError> {
        *self.has_failed |= self.is_writing && result.is_err();
        result
    }
}

async fn run<T: Send>(op: &'static str, work: impl Future<Output = sqlx::Result<T>> + Send) -> Result<T, IndexError> {
    work.instrument(tracing::debug_span!("index", operation = op)).await.map_err(|error| map(op, error))
}

fn one<T: FromRow>(op: &'static str, row: PgRow) -> Result<T, IndexError> {
    T::from_row(&row).map_err(|error| map(op, error))
}

fn find<T: FromRow>(op: &'static str, row: Option<PgRow>) -> Result<Option<T>, IndexError> {
    row.map(|row| one(op, row)).transpose()
}

async fn all<T: FromRow>(op: &'static str, rows: Vec<PgRow>) -> Result<Vec<T>, IndexError> {
    let mut values = Vec::with_capacity(rows.len());
    for row in rows {
        values.push(one(op, row)?);
        // There may be thousands of rows, and nothing else in this loop yields.
        consume_budget().await;
    }
    Ok(values)
}
