//! Opens the database, and creates or migrates its schema.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, PgPool, Row, query};
use thiserror::Error;
use tokio::time::{sleep, timeout};

use super::connect::{self, LongestWrite, check_primary, options, pool_options, try_lock_servers};
use super::{PostgresIndex, map};
use crate::index::error::{IndexError, IndexErrorKind};
use crate::index::migrate::{self, POSTGRES};
use crate::index::records::ClosedRecords;

/// Connections for writing. One transaction of all processes writes at a time, and another one of
/// this process waits at the server meanwhile, so that it begins without a round trip.
const WRITER_COUNT: u32 = 2;

/// Connections for reading: with the others 16 per process.
const READER_COUNT: u32 = 14;

/// Time limit of the first connection. A server that is reachable accepts it in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The advice for a database whose schema is older.
const MIGRATE: &str = "run zorb db migrate";

/// A database without any table of zorb.
#[derive(Debug, Error)]
#[error("it has no schema yet: {MIGRATE}")]
struct NoSchema;

/// A server that does not accept a connection in time.
#[derive(Debug, Error)]
#[error("no response within {} s", CONNECT_TIMEOUT.as_secs())]
struct Silent;

/// How often, and after which pause each, a migration looks whether the last server has ended.
const SERVER_TRY_COUNT: u32 = 20;
const SERVER_PAUSE: Duration = Duration::from_millis(100);

/// Servers would meet a schema that they do not know.
#[derive(Debug, Error)]
#[error(
    "the schema must change, and servers of this store or another migration are running: stop all servers, and repeat \
     this command"
)]
struct ServersRun;

/// A server that acknowledges commits before they are durable.
#[derive(Debug, Error)]
#[error("synchronous_commit is off for this database or user: an acknowledged upload could be lost; set it to on")]
struct Asynchronous;

impl PostgresIndex {
    /// Connects to a database that has the schema of this program.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, refuses the user, or is a standby. Or the schema is older or
    /// newer than this program.
    pub async fn open(url: &str) -> Result<Self, IndexError> {
        let op = "open the database";
        let options = options(op, url)?;
        let mut connection = first(op, &options).await?;
        let checked = check(op, &mut connection).await;
        // The check is over, so it does not matter how this connection ends.
        let _ = connection.close().await;
        checked?;
        let writers = pool_options(WRITER_COUNT).connect_with(options.clone()).await.map_err(|error| map(op, error))?;
        let readers = pool_options(READER_COUNT).connect_with(options).await.map_err(|error| map(op, error))?;
        Ok(Self {
            writers,
            readers,
            longest_write: LongestWrite::default(),
            session: None,
            closed: ClosedRecords::default(),
            #[cfg(test)]
            registers_in_steps: false,
        })
    }

    /// Creates the schema, or brings it to the version of this program. Several processes may
    /// create it at once. No server of a bucket runs while an existing schema changes. Servers with
    /// a data directory have no session here, so they are not noticed.
    ///
    /// # Errors
    ///
    /// As with [`PostgresIndex::open`]. An older schema is an error only if a server is running, or
    /// another process changes it.
    pub async fn migrate(url: &str) -> Result<(), IndexError> {
        let op = "bring the schema up to date";
        let options = options(op, url)?;
        let mut connection = first(op, &options).await?;
        lock_out_servers(op, &mut connection).await?;
        let pool = pool_options(1).connect_with(options).await.map_err(|error| map(op, error))?;
        let migrated = match migrate::migrator(POSTGRES).run(&pool).await {
            Ok(()) => Ok(()),
            Err(error) => Err(migrate::failure(op, POSTGRES, error, found_version(&pool).await.ok(), map)),
        };
        pool.close().await;
        // It has had the lock of servers until now. PostgreSQL ends a session only after its
        // client, so without the unlock a server that starts now might not get the lock. The schema
        // is what it is, however this ends.
        let _ = query("SELECT pg_advisory_unlock_all()").execute(&mut connection).await;
        let _ = connection.close().await;
        migrated
    }

    /// The database of a connection string as text for people, without user and password.
    ///
    /// # Errors
    ///
    /// The connection string does not parse.
    pub fn describe(url: &str) -> Result<String, IndexError> {
        Ok(connect::describe(&options("read the database URL", url)?))
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writers.close().await;
    }
}

/// Connects once. A pool would repeat a refused connection until its own time limit, and then not
/// tell the reason.
pub(super) async fn first(op: &'static str, options: &PgConnectOptions) -> Result<PgConnection, IndexError> {
    let connected = timeout(CONNECT_TIMEOUT, PgConnection::connect_with(options)).await;
    let silent = |_| IndexError { op, kind: IndexErrorKind::Unavailable, source: Box::new(Silent) };
    let mut connection = connected.map_err(silent)?.map_err(|error| map(op, error))?;
    check_primary(&mut connection).await.map_err(|error| map(op, error))?;
    Ok(connection)
}

/// Takes the lock of servers for as long as the connection lives, if there is a schema to change.
async fn lock_out_servers(op: &'static str, connection: &mut PgConnection) -> Result<(), IndexError> {
    for _ in 0..SERVER_TRY_COUNT {
        let found = version(connection).await.map_err(|error| map(op, error))?;
        let compared = migrate::compare(op, POSTGRES, found, MIGRATE);
        let is_older = compared.is_err_and(|error| error.kind == IndexErrorKind::Older);
        if found == 0 || !is_older || try_lock_servers(connection).await.map_err(|error| map(op, error))? {
            return Ok(());
        }
        sleep(SERVER_PAUSE).await;
    }
    Err(IndexError { op, kind: IndexErrorKind::Other, source: Box::new(ServersRun) })
}

/// Checks that the database has the schema of this program and durable commits. Changes nothing.
async fn check(op: &'static str, connection: &mut PgConnection) -> Result<(), IndexError> {
    let found = version(connection).await.map_err(|error| map(op, error))?;
    if found == 0 {
        return Err(IndexError { op, kind: IndexErrorKind::Older, source: Box::new(NoSchema) });
    }
    migrate::compare(op, POSTGRES, found, MIGRATE)?;
    let row = sqlx::query("SELECT current_setting('synchronous_commit') = 'off'").fetch_one(connection).await;
    let is_asynchronous: bool = row.and_then(|row| row.try_get(0)).map_err(|error| map(op, error))?;
    if is_asynchronous {
        return Err(IndexError { op, kind: IndexErrorKind::Other, source: Box::new(Asynchronous) });
    }
    Ok(())
}

async fn found_version(pool: &PgPool) -> sqlx::Result<i64> {
    version(&mut *pool.acquire().await?).await
}

/// The schema version of the database; 0 if it has none.
async fn version(connection: &mut PgConnection) -> sqlx::Result<i64> {
    let exists = sqlx::query("SELECT to_regclass('_sqlx_migrations') IS NOT NULL").fetch_one(&mut *connection).await?;
    if !exists.try_get::<bool, _>(0)? {
        return Ok(0);
    }
    let sql = "SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success";
    sqlx::query(sql).fetch_one(connection).await?.try_get(0)
}
