//! The session of one server, or of one command that changes the store: a connection that has the
//! locks of its process. PostgreSQL releases them when the process or its network dies.
//!
//! While a session shares the lock of servers, no other one has it alone, and the other way round.
//! A starting server takes it alone, so that it can clean up, and shares it then. A command that
//! changes the store keeps it alone.
//!
//! A process whose session has ended can write no more: each write transaction checks, after it has
//! the lock of the writers, that the session lives. For that the session has a lock of its own, and
//! the transaction tries to take it. If that succeeds, the session has ended, and the transaction
//! fails. A transaction that has passed the check holds the lock of the writers until it ends. So
//! who gets a lock of a session that has ended, and then the lock of the writers once, sees all
//! that the other process has ever written ([`wait_for_writer`](PostgresIndex::wait_for_writer)).
//!
//! [`Session::run`] ends within about 2 seconds if PostgreSQL ends the session, and within 10 if
//! PostgreSQL does not respond. PostgreSQL itself ends the session of a client that it cannot
//! reach, or that has stopped, later: after 20 to 25 seconds (`connect.rs`). So a process that
//! stops when `run` ends has usually stopped before another one gets its locks. That only saves
//! work.

use std::time::Duration;

use sqlx::{PgConnection, Row, query, query_scalar};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::PostgresIndex;
use super::connect::{SERVER_LOCK, SILENCE_LIMIT, options, try_lock};
use super::failure::map;
use super::open::first;
use crate::index::MAX_CLOCK_DIFFERENCE;
use crate::index::error::{IndexError, IndexErrorKind};
use crate::runtime::clock::Clock;

/// The lock of the one server that does the work in the background.
const LEADER_LOCK: i64 = i64::from_be_bytes(*b"zorb.led");

/// Interval of a statement that checks the connection.
const PERIOD: Duration = Duration::from_secs(1);

/// PostgreSQL has not responded to a statement for so long: the session counts as lost.
const MAX_SILENCE: Duration = Duration::from_secs(8);

const OP: &str = "hold the locks of this process";

/// The session of this process. Dropping it closes the connection.
#[derive(Debug)]
pub struct Session {
    connection: PgConnection,
    requests: mpsc::UnboundedReceiver<Request>,
    handle: SessionHandle,
}

/// Access to the session of this process. Its methods need [`Session::run`] to be running.
#[derive(Clone, Debug)]
pub struct SessionHandle {
    /// The number of the lock that the session has for itself.
    pub(super) own_lock: i64,
    requests: mpsc::UnboundedSender<Request>,
}

/// How a process uses the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerAccess {
    /// No other process serves or changes it.
    Alone,
    /// Other servers may serve it, too.
    Shared,
}

/// Advisory locks of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct AdvisoryLocks {
    pub(super) numbers: Vec<i64>,
    pub(super) is_exclusive: bool,
}

/// What the session is asked to do.
#[derive(Debug)]
enum Request {
    Take(AdvisoryLocks, oneshot::Sender<Option<HeldLocks>>),
    Release(AdvisoryLocks),
    Lead(oneshot::Sender<bool>),
    Share(oneshot::Sender<()>),
}

/// The session has ended, and the process must end, too.
#[derive(Debug, Error)]
#[error("the connection that has the locks of this process was lost")]
struct Lost;

/// The clock of this machine is not that of the database.
#[derive(Debug, Error)]
#[error("the clocks of this machine and of PostgreSQL differ by {secs} s: set them, for example by NTP")]
struct ClockDiffers {
    secs: u64,
}

impl Session {
    /// Connects, and takes the lock of the session itself. `clock` is the clock of this process.
    ///
    /// # Errors
    ///
    /// The database cannot be reached, or is a standby; or its clock and `clock` differ by more
    /// than 30 seconds.
    pub async fn begin(url: &str, clock: &dyn Clock) -> Result<Self, IndexError> {
        let op = "begin a session";
        let mut connection = first(op, &options(op, url)?.options([SILENCE_LIMIT])).await?;
        check_clock(op, &mut connection, clock).await?;
        let (sender, requests) = mpsc::unbounded_channel();
        loop {
            let own_lock = rand::random();
            if try_lock(&mut connection, own_lock).await.map_err(|error| map(op, error))? {
                let handle = SessionHandle { own_lock, requests: sender };
                return Ok(Self { connection, requests, handle });
            }
        }
    }

    /// Access to this session for others.
    #[must_use]
    pub fn handle(&self) -> SessionHandle {
        self.handle.clone()
    }

    /// Takes the lock of servers; `false` if another process has it in a way that forbids this.
    ///
    /// # Errors
    ///
    /// The database does not respond.
    pub async fn try_lock_server(&mut self, access: ServerAccess) -> Result<bool, IndexError> {
        let taken = match access {
            ServerAccess::Alone => try_lock(&mut self.connection, SERVER_LOCK).await,
            ServerAccess::Shared => {
                let take = query_scalar("SELECT pg_try_advisory_lock_shared($1)").bind(SERVER_LOCK);
                take.fetch_one(&mut self.connection).await
            }
        };
        taken.map_err(|error| map("take the lock of servers", error))
    }

    /// Does what the handles ask for, until the session may be lost. Returns the reason.
    pub async fn run(mut self) -> IndexError {
        loop {
            // Not closed, because `self` has a sender, too.
            let request = timeout(PERIOD, self.requests.recv()).await.ok().flatten();
            let done = timeout(MAX_SILENCE, self.perform(request)).await;
            match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return map(OP, error),
                Err(silent) => {
                    return IndexError { op: OP, kind: IndexErrorKind::Unavailable, source: Box::new(silent) };
                }
            }
        }
    }

    /// The number of the session in PostgreSQL.
    #[cfg(test)]
    #[cfg(feature = "postgres-tests")]
    pub(super) async fn number(&mut self) -> i32 {
        query_scalar("SELECT pg_backend_pid()").fetch_one(&mut self.connection).await.unwrap()
    }
}

impl PostgresIndex {
    /// The same index for a process with this session. Other processes may use it, too, unless the
    /// session has the lock of servers alone.
    ///
    /// After `Ok` the index shows all that processes of ended sessions have written, and they can
    /// write no more.
    ///
    /// # Errors
    ///
    /// The database does not respond, or the session is lost.
    pub async fn with_session(mut self, session: SessionHandle) -> Result<Self, IndexError> {
        self.session = Some(session);
        self.wait_for_writer("open the database").await?;
        Ok(self)
    }
}

impl SessionHandle {
    /// Becomes the server that does the work in the background; `false` if another one is.
    ///
    /// # Errors
    ///
    /// The session is lost.
    pub async fn try_lead(&self) -> Result<bool, IndexError> {
        self.ask(Request::Lead).await
    }

    /// Shares the lock of servers that this process has alone.
    ///
    /// # Errors
    ///
    /// The session is lost.
    pub async fn share(&self) -> Result<(), IndexError> {
        self.ask(Request::Share).await
    }

    /// Takes these locks, all or none.
    pub(super) async fn try_lock_store(&self, locks: AdvisoryLocks) -> Result<Option<HeldLocks>, IndexError> {
        self.ask(|reply| Request::Take(locks, reply)).await
    }

    async fn ask<T: Send>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, IndexError> {
        let (reply, replied) = oneshot::channel();
        self.requests.send(request(reply)).map_err(|_| lost())?;
        replied.await.map_err(|_| lost())
    }
}

/// Advisory locks that this process has. Dropping it releases them.
#[derive(Debug)]
pub(super) struct HeldLocks {
    locks: AdvisoryLocks,
    session: SessionHandle,
}

impl Drop for HeldLocks {
    fn drop(&mut self) {
        // Without the session there is nothing to release.
        let _ = self.session.requests.send(Request::Release(std::mem::take(&mut self.locks)));
    }
}

/// The error of a process whose session has ended.
pub(super) fn lost() -> IndexError {
    IndexError { op: OP, kind: IndexErrorKind::Unavailable, source: Box::new(Lost) }
}

impl Session {
    /// Performs a request; without one, checks that the connection lives.
    async fn perform(&mut self, request: Option<Request>) -> sqlx::Result<()> {
        // A caller that does not wait any more gets nothing: locks in a reply that nothing receives
        // are dropped, and so released.
        match request {
            None => {
                query("SELECT 1").execute(&mut self.connection).await?;
            }
            Some(Request::Take(locks, reply)) => {
                let taken = !reply.is_closed() && take(&mut self.connection, &locks).await?;
                let held = taken.then(|| HeldLocks { locks, session: self.handle.clone() });
                drop(reply.send(held));
            }
            Some(Request::Release(locks)) => release(&mut self.connection, &locks, &locks.numbers).await?,
            Some(Request::Lead(reply)) => drop(reply.send(try_lock(&mut self.connection, LEADER_LOCK).await?)),
            Some(Request::Share(reply)) => {
                // The own lock does not forbid this one.
                query("SELECT pg_advisory_lock_shared($1)").bind(SERVER_LOCK).execute(&mut self.connection).await?;
                query("SELECT pg_advisory_unlock($1)").bind(SERVER_LOCK).execute(&mut self.connection).await?;
                let _ = reply.send(());
            }
        }
        Ok(())
    }
}

/// Checks that the clocks of the servers of a store agree, by comparing each with the database.
async fn check_clock(op: &'static str, connection: &mut PgConnection, clock: &dyn Clock) -> Result<(), IndexError> {
    const SQL: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let before = clock.now();
    let theirs: i64 = query_scalar(SQL).fetch_one(connection).await.map_err(|error| map(op, error))?;
    let theirs = theirs.cast_unsigned();
    // The database has read its clock between these two times.
    let (earliest, latest) = (before.as_millis(), clock.now().as_millis());
    let millis = theirs.saturating_sub(latest).max(earliest.saturating_sub(theirs));
    if Duration::from_millis(millis) > MAX_CLOCK_DIFFERENCE {
        let source = Box::new(ClockDiffers { secs: millis / 1000 });
        return Err(IndexError { op, kind: IndexErrorKind::Other, source });
    }
    Ok(())
}

/// Takes all of these locks, or none. A lock that this session has already is counted.
async fn take(connection: &mut PgConnection, locks: &AdvisoryLocks) -> sqlx::Result<bool> {
    const SHARED: &str = "SELECT n, pg_try_advisory_lock_shared(n) AS taken FROM unnest($1) AS n";
    const EXCLUSIVE: &str = "SELECT n, pg_try_advisory_lock(n) AS taken FROM unnest($1) AS n";
    let sql = if locks.is_exclusive { EXCLUSIVE } else { SHARED };
    let rows = query(sql).bind(&locks.numbers).fetch_all(&mut *connection).await?;
    let mut taken = Vec::with_capacity(rows.len());
    for row in &rows {
        if row.try_get("taken")? {
            taken.push(row.try_get("n")?);
        }
    }
    if taken.len() < rows.len() {
        release(connection, locks, &taken).await?;
        return Ok(false);
    }
    Ok(true)
}

async fn release(connection: &mut PgConnection, locks: &AdvisoryLocks, numbers: &[i64]) -> sqlx::Result<()> {
    const SHARED: &str = "SELECT pg_advisory_unlock_shared(n) FROM unnest($1) AS n";
    const EXCLUSIVE: &str = "SELECT pg_advisory_unlock(n) FROM unnest($1) AS n";
    let sql = if locks.is_exclusive { EXCLUSIVE } else { SHARED };
    query(sql).bind(numbers).execute(connection).await.map(drop)
}
