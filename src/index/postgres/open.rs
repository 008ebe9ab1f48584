//! Opens the database, and creates or migrates its schema.

use sqlx::{PgPool, Row};
use thiserror::Error;

use super::connect::{LongestWrite, options, pool_options};
use super::{PostgresIndex, map};
use crate::index::error::{IndexError, IndexErrorKind};
use crate::index::migrate::{self, POSTGRES};

/// Connections for writing. One transaction of all processes writes at a time, and another one of
/// this process waits at the server meanwhile, so that it begins without a round trip.
const WRITER_COUNT: u32 = 2;

/// Connections for reading: with the others 16 per process.
const READER_COUNT: u32 = 14;

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
        let writers = pool_options(WRITER_COUNT).connect_with(options.clone()).await.map_err(|error| map(op, error))?;
        check(op, &writers).await?;
        let readers = pool_options(READER_COUNT).connect_with(options).await.map_err(|error| map(op, error))?;
        Ok(Self {
            writers,
            readers,
            longest_write: LongestWrite::default(),
            #[cfg(test)]
            registers_in_steps: false,
        })
    }

    /// Creates the schema, or brings it to the version of this program. Several processes may do
    /// this at once.
    ///
    /// # Errors
    ///
    /// As with [`PostgresIndex::open`]. An older schema is no error here.
    pub async fn migrate(url: &str) -> Result<(), IndexError> {
        let op = "bring the schema up to date";
        let options = options(op, url)?;
        let pool = pool_options(1).connect_with(options).await.map_err(|error| map(op, error))?;
        let migrated = match migrate::migrator(POSTGRES).run(&pool).await {
            Ok(()) => Ok(()),
            Err(error) => Err(migrate::failure(op, POSTGRES, error, version(&pool).await.ok(), map)),
        };
        pool.close().await;
        migrated
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writers.close().await;
    }
}

/// Checks that the database has the schema of this program and durable commits. Changes nothing.
async fn check(op: &'static str, pool: &PgPool) -> Result<(), IndexError> {
    let found = version(pool).await.map_err(|error| map(op, error))?;
    migrate::compare(op, POSTGRES, found, "apply the migrations with PostgresIndex::migrate")?;
    let row = sqlx::query("SELECT current_setting('synchronous_commit') = 'off'").fetch_one(pool).await;
    let is_asynchronous: bool = row.and_then(|row| row.try_get(0)).map_err(|error| map(op, error))?;
    if is_asynchronous {
        return Err(IndexError { op, kind: IndexErrorKind::Other, source: Box::new(Asynchronous) });
    }
    Ok(())
}

/// The schema version of the database; 0 if it has none.
async fn version(pool: &PgPool) -> sqlx::Result<i64> {
    let exists = sqlx::query("SELECT to_regclass('_sqlx_migrations') IS NOT NULL").fetch_one(pool).await?;
    if !exists.try_get::<bool, _>(0)? {
        return Ok(0);
    }
    let sql = "SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success";
    sqlx::query(sql).fetch_one(pool).await?.try_get(0)
}
