//! Options of the connections to the server, and the longest time of a write.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor, PgConnection, Row, query_scalar};
use thiserror::Error;
use tokio::time::timeout;

use crate::index::error::{IndexError, IndexErrorKind};

/// How long a request waits for a connection before the index counts as unavailable.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// An idle connection that responds later than this is closed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection that was idle for less than this is used without a check, which is a round trip.
const CHECK_AFTER: Duration = Duration::from_secs(1);

/// Settings of every session. The server keeps the locks of a client that it cannot reach until it
/// notices: without these after hours, with them within a minute.
const SESSION: [(&str, &str); 8] = [
    ("tcp_keepalives_idle", "10s"),
    ("tcp_keepalives_interval", "5s"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "20s"),
    ("client_connection_check_interval", "5s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("statement_timeout", "30s"),
    ("lock_timeout", "5s"),
];

/// A session that sends nothing for so long is ended by the server, and with it its locks. A
/// process that lives sends a statement every second. One that was stopped by a signal does not,
/// although its machine still confirms each packet.
pub(super) const SILENCE_LIMIT: (&str, &str) = ("idle_session_timeout", "20s");

/// The lock of servers, beside that of all writers in `tx.rs`.
pub(super) const SERVER_LOCK: i64 = i64::from_be_bytes(*b"zorb.srv");

/// A connection string that does not parse. It may contain a password, so it is not repeated.
#[derive(Debug, Error)]
#[error("invalid connection string: use postgres://user:password@host:port/database")]
struct InvalidUrl;

/// Parses a connection string.
pub(super) fn options(op: &'static str, url: &str) -> Result<PgConnectOptions, IndexError> {
    let options = PgConnectOptions::from_str(url).map_err(|_| IndexError {
        op,
        kind: IndexErrorKind::Other,
        source: Box::new(InvalidUrl),
    })?;
    Ok(options.application_name("zorb").options(SESSION))
}

/// The database of these options as text for people, without user and password.
pub(super) fn describe(options: &PgConnectOptions) -> String {
    let name = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(directory) => format!("database {name} at {}", directory.display()),
        None => format!("database {name} at {}:{}", options.get_host(), options.get_port()),
    }
}

/// Options of a pool with this many connections, all to a primary server.
pub(super) fn pool_options(max_connection_count: u32) -> PgPoolOptions {
    PgPoolOptions::new()
        .max_connections(max_connection_count)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .before_acquire(|connection, state| {
            Box::pin(async move {
                if state.idle_for < CHECK_AFTER {
                    return Ok(true);
                }
                Ok(matches!(timeout(CHECK_TIMEOUT, is_primary(connection)).await, Ok(Ok(true))))
            })
        })
        .after_connect(|connection, _| Box::pin(check_primary(connection)))
}

/// Fails if the server does not accept writes.
pub(super) async fn check_primary(connection: &mut PgConnection) -> sqlx::Result<()> {
    if is_primary(connection).await? { Ok(()) } else { Err(sqlx::Error::Protocol(STANDBY.to_owned())) }
}

const STANDBY: &str = "the server is a standby: connect to the primary";

/// Whether the server accepts writes. A standby may be behind, and rows of the past are no basis
/// for any decision.
async fn is_primary(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let row = connection.fetch_one("SELECT NOT pg_is_in_recovery()").await?;
    row.try_get(0)
}

/// The longest time for which this process held the lock of all writers.
#[derive(Clone, Debug, Default)]
pub(super) struct LongestWrite {
    micros: Arc<AtomicU64>,
}

impl LongestWrite {
    pub(super) fn record(&self, time: Duration) {
        self.micros.fetch_max(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }
}

/// Takes the lock of servers alone, for as long as the connection lives; `false` if another process
/// has it.
pub(super) async fn try_lock_servers(connection: &mut PgConnection) -> sqlx::Result<bool> {
    try_lock(connection, SERVER_LOCK).await
}

/// Takes an advisory lock alone, for as long as the connection lives; `false` if another process
/// has it.
pub(super) async fn try_lock(connection: &mut PgConnection, lock: i64) -> sqlx::Result<bool> {
    query_scalar("SELECT pg_try_advisory_lock($1)").bind(lock).fetch_one(connection).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_connection_string_is_not_repeated() {
        let error = options("open", "postgres://zorb:secret@host:not-a-port/db").unwrap_err();
        let text = format!("{error:?} {}", crate::runtime::telemetry::chain(&error));
        assert!(!text.contains("secret") && text.contains("invalid connection string"), "{text}");
    }

    #[test]
    fn a_description_has_host_and_database_and_no_password() {
        let described = |url: &str| describe(&options("open", url).unwrap());
        assert_eq!(described("postgres://zorb:secret@db.example:6432/store"), "database store at db.example:6432");
        assert_eq!(described("postgres:///store?host=/run/pg&user=zorb"), "database store at /run/pg");
        assert_eq!(described("postgres://zorb:secret@db.example"), "database zorb at db.example:5432");
    }
}
