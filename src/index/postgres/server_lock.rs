//! The lock of the one server of a database.
//!
//! While a [`ServerLock`] is held, no other process has one of the same database. The lock is held
//! by a connection, so PostgreSQL releases it when the process or its network dies. [`lost`] ends
//! at once if PostgreSQL ends the session, and within 10 seconds if PostgreSQL does not respond.
//! PostgreSQL itself notices an unreachable client later, after 25 seconds (`connect.rs`). So a
//! holder that stops when `lost` ends has stopped before another process gets the lock.
//!
//! [`lost`]: ServerLock::lost

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{query, query_scalar};
use thiserror::Error;
use tokio::time::timeout;

use super::PostgresIndex;
use super::connect::options;
use super::failure::map;
use super::open::first;
use crate::index::error::{IndexError, IndexErrorKind};

/// The advisory lock, beside that of all writers in `tx.rs`.
const SERVER_LOCK: i64 = i64::from_be_bytes(*b"zorb.srv");

/// Interval of a statement that checks the connection.
const PERIOD: Duration = Duration::from_secs(2);

/// PostgreSQL has not responded to this statement for so long: the lock counts as lost.
const MAX_SILENCE: Duration = Duration::from_secs(8);

/// The held lock. Dropping it closes the connection, and PostgreSQL releases the lock.
#[derive(Debug)]
pub struct ServerLock {
    /// A listener, because it notices the end of its connection between two statements.
    listener: PgListener,
}

/// The connection has ended without an error.
#[derive(Debug, Error)]
#[error("PostgreSQL has closed the connection")]
struct Closed;

impl PostgresIndex {
    /// Takes the lock of the one server; `None` if another process holds it.
    ///
    /// # Errors
    ///
    /// The database cannot be reached, or is a standby.
    pub async fn try_lock_server(url: &str) -> Result<Option<ServerLock>, IndexError> {
        let op = "take the lock of the server";
        let options = options(op, url)?;
        // Tells the reason if the database cannot be reached, which a pool does not.
        drop(first(op, &options).await?);
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let taken = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.eager_reconnect(false);
            let take = query_scalar("SELECT pg_try_advisory_lock($1)").bind(SERVER_LOCK);
            let is_taken: bool = take.fetch_one(&mut listener).await?;
            Ok(is_taken.then_some(ServerLock { listener }))
        };
        let silent = |error| IndexError { op, kind: IndexErrorKind::Unavailable, source: Box::new(error) };
        timeout(MAX_SILENCE, taken).await.map_err(silent)?.map_err(|error| map(op, error))
    }
}

impl ServerLock {
    /// Waits until the lock may be lost, and returns the reason.
    pub async fn lost(mut self) -> IndexError {
        let op = "hold the lock of the server";
        loop {
            match timeout(PERIOD, self.listener.try_recv()).await {
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => {
                    return IndexError { op, kind: IndexErrorKind::Unavailable, source: Box::new(Closed) };
                }
                Ok(Err(error)) => return map(op, error),
                Err(_) => {
                    let checked = timeout(MAX_SILENCE, query("SELECT 1").execute(&mut self.listener)).await;
                    match checked {
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) => return map(op, error),
                        Err(error) => {
                            return IndexError { op, kind: IndexErrorKind::Unavailable, source: Box::new(error) };
                        }
                    }
                }
            }
        }
    }
}
