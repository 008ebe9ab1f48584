//! The connections to the database, and the durability of the file's name.
//!
//! An operation that has ended gives its connection to the next one at once. sqlx's own pool does
//! so in a task, after two changes of thread that test the connection: with several writers, each
//! waited for that of the one before. A connection to a local file does not break. One whose
//! statement has failed is closed, and the next operation opens another.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::index::error::{IndexError, IndexErrorKind};
use crate::runtime::task::TaskGroup;

/// How long a request waits for a connection before the index counts as unavailable.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Up to a number of connections with the same options. Operations get them in the order in which
/// they ask.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: SqliteConnectOptions,
    count: u32,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<SqliteConnection>>,
    /// The longest time for which an operation held a connection, in microseconds.
    longest_micros: AtomicU64,
}

impl Connections {
    /// No connection yet: each is opened when an operation needs one more.
    pub(super) fn new(options: SqliteConnectOptions, count: u32) -> Self {
        let permits = Arc::new(Semaphore::new(usize::try_from(count).unwrap_or(Semaphore::MAX_PERMITS)));
        Self(Arc::new(Inner { options, count, permits, idle: Mutex::default(), longest_micros: AtomicU64::new(0) }))
    }

    /// Waits for a connection.
    pub(super) async fn acquire(&self) -> sqlx::Result<Lent> {
        let acquired = timeout(ACQUIRE_TIMEOUT, async {
            let permit = Arc::clone(&self.0.permits).acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
            let idle = self.0.idle().pop();
            let connection = match idle {
                Some(connection) => connection,
                None => self.0.options.connect().await?,
            };
            Ok((permit, connection))
        });
        let (permit, connection) = acquired.await.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        let (home, began) = (Arc::clone(&self.0), Instant::now());
        Ok(Lent { connection: Some(connection), condition: Condition::Idle, permit: Some(permit), home, began })
    }

    /// Closes all connections, once the operations under way have ended.
    pub(super) async fn close(&self) {
        // Fails if they are closed already.
        let all = self.0.permits.acquire_many(self.0.count).await;
        self.0.permits.close();
        let idle = std::mem::take(&mut *self.0.idle());
        for connection in idle {
            close(connection).await;
        }
        drop(all);
    }

    /// The longest time for which an operation held a connection. With one connection the others
    /// waited meanwhile.
    pub(super) fn longest_use(&self) -> Duration {
        Duration::from_micros(self.0.longest_micros.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
impl Connections {
    /// The number of open connections that no operation uses.
    pub(super) fn idle_count(&self) -> usize {
        self.0.idle().len()
    }
}

impl Inner {
    fn idle(&self) -> MutexGuard<'_, Vec<SqliteConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// The next operation can use it at once.
    Idle,
    /// A statement runs. If its operation is dropped, the next one waits until the statement ends.
    Running,
    /// It is to be closed: a statement has failed. Also while a transaction begins or ends, because
    /// an operation that is dropped then does not know whether it is open.
    Failed,
}

/// A connection that an operation uses. The next one gets it when this is dropped.
#[derive(Debug)]
pub(super) struct Lent {
    connection: Option<SqliteConnection>,
    condition: Condition,
    permit: Option<OwnedSemaphorePermit>,
    home: Arc<Inner>,
    began: Instant,
}

impl Lent {
    /// The connection, and its condition, which the operation sets.
    pub(super) fn parts(&mut self) -> (&mut SqliteConnection, &mut Condition) {
        (self.connection.as_mut().expect("only `drop` takes it"), &mut self.condition)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let held = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.home.longest_micros.fetch_max(held, Ordering::Relaxed);
        let (Some(mut connection), permit) = (self.connection.take(), self.permit.take()) else { return };
        if self.condition == Condition::Idle {
            self.home.idle().push(connection);
            // Now, because the next operation takes the connection without waiting for it.
            drop(permit);
            return;
        }
        let (is_failed, home) = (self.condition == Condition::Failed, Arc::clone(&self.home));
        TaskGroup::new().spawn(async move {
            // If the statement ended its transaction by an error, sqlx still counts it as open.
            let is_usable = !is_failed && connection.ping().await.is_ok() && !connection.is_in_transaction();
            if is_usable {
                home.idle().push(connection);
            } else {
                close(connection).await;
            }
            drop(permit);
        });
    }
}

async fn close(connection: SqliteConnection) {
    if let Err(error) = connection.close().await {
        tracing::debug!(%error, "a connection to the index failed to close");
    }
}

/// Makes the name of the database file durable. SQLite syncs the file and its WAL, but not the
/// directory in which it created the file.
pub(super) fn sync_parent(path: &Path) -> Result<(), IndexError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| IndexError {
        op: "sync the directory of the database",
        kind: IndexErrorKind::Other,
        source: Box::new(error),
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use sqlx::sqlite::SqliteJournalMode;
    use sqlx::{AssertSqlSafe, query, query_scalar};

    use super::*;

    /// Takes some hundred milliseconds.
    const SLOW: &str = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1000000) \
         INSERT INTO t SELECT n FROM c";

    async fn open(count: u32) -> (tempfile::TempDir, Connections) {
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new().filename(directory.path().join("db")).create_if_missing(true);
        // As the index.
        let options = options.journal_mode(SqliteJournalMode::Wal);
        let connections = Connections::new(options, count);
        query("CREATE TABLE t (a)").execute(connections.acquire().await.unwrap().parts().0).await.unwrap();
        (directory, connections)
    }

    /// Gives the connection a number that tells it from others.
    async fn mark(lent: &mut Lent, number: i64) {
        let pragma = AssertSqlSafe(format!("PRAGMA cache_size = {number}"));
        query(pragma).execute(lent.parts().0).await.unwrap();
    }

    async fn number_of(lent: &mut Lent, sql: &'static str) -> i64 {
        query_scalar(sql).fetch_one(lent.parts().0).await.unwrap()
    }

    async fn mark_of(lent: &mut Lent) -> i64 {
        number_of(lent, "PRAGMA cache_size").await
    }

    #[tokio::test]
    async fn operations_get_a_connection_in_order_and_at_once() {
        let (_directory, connections) = open(1).await;
        let mut lent = connections.acquire().await.unwrap();
        mark(&mut lent, 77).await;
        let (first, second) = (connections.acquire(), connections.acquire());
        tokio::pin!(first, second);
        assert!(first.as_mut().now_or_never().is_none(), "there is one connection");
        assert!(second.as_mut().now_or_never().is_none(), "there is one connection");
        drop(lent);
        assert!(second.as_mut().now_or_never().is_none(), "the other one has asked before");
        let mut lent = first.now_or_never().expect("it is free").unwrap();
        assert_eq!(mark_of(&mut lent).await, 77);
        drop(lent);
        second.now_or_never().expect("it is free").unwrap();
        assert!(connections.longest_use() > Duration::ZERO);
    }

    #[tokio::test]
    async fn failed_connection_is_closed_with_its_transaction() {
        let (_directory, connections) = open(1).await;
        let mut lent = connections.acquire().await.unwrap();
        mark(&mut lent, 77).await;
        query("BEGIN IMMEDIATE").execute(lent.parts().0).await.unwrap();
        query("INSERT INTO t VALUES (1)").execute(lent.parts().0).await.unwrap();
        *lent.parts().1 = Condition::Failed;
        drop(lent);
        let mut lent = connections.acquire().await.unwrap();
        assert_ne!(mark_of(&mut lent).await, 77);
        query("BEGIN IMMEDIATE").execute(lent.parts().0).await.unwrap();
        assert_eq!(number_of(&mut lent, "SELECT count(*) FROM t").await, 0, "it is rolled back");
    }

    #[tokio::test]
    async fn dropped_statement_holds_up_its_connection_only() {
        let (_directory, connections) = open(2).await;
        let (mut slow, mut other) = (connections.acquire().await.unwrap(), connections.acquire().await.unwrap());
        mark(&mut slow, 77).await;
        mark(&mut other, 88).await;
        drop(other);
        *slow.parts().1 = Condition::Running;
        assert!(query(SLOW).execute(slow.parts().0).now_or_never().is_none(), "it takes a while");
        drop(slow);
        let mut other = connections.acquire().now_or_never().expect("one is free").unwrap();
        assert_eq!(mark_of(&mut other).await, 88);
        let mut slow = connections.acquire().await.unwrap();
        assert_eq!(mark_of(&mut slow).await, 77);
        assert_eq!(number_of(&mut slow, "SELECT count(*) FROM t").await, 1_000_000);
    }

    #[tokio::test]
    async fn close_waits_for_operations_and_refuses_later_ones() {
        let (directory, connections) = open(2).await;
        let (first, mut second) = (connections.acquire().await.unwrap(), connections.acquire().await.unwrap());
        let closing = connections.close();
        tokio::pin!(closing);
        assert!(closing.as_mut().now_or_never().is_none());
        drop(first);
        query("INSERT INTO t VALUES (1)").execute(second.parts().0).await.unwrap();
        *second.parts().1 = Condition::Failed;
        drop(second);
        closing.await;
        assert!(!directory.path().join("db-wal").exists(), "the last one takes the WAL with it");
        assert!(matches!(connections.acquire().await, Err(sqlx::Error::PoolClosed)));
        connections.close().await;
    }
}
