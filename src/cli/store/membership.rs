//! The session of a process that serves a store in a bucket, or changes it.
//!
//! A store in a data directory has the file `lock` for this. A bucket can be reached from several
//! machines, so the locks are in the PostgreSQL database of the index. Several servers can share
//! the store. A start that finds no other server has it alone until it has cleaned up. A command
//! that changes the store has it alone until it ends.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use super::location::StoreLocation;
use super::postgres::{self, Access, Session, SessionHandle};
use crate::config::DatabaseUrl;

/// How long a start waits for a process that has the store alone. PostgreSQL notices at once that a
/// process has ended, but only after 25 seconds that its machine cannot be reached. A service
/// manager starts the server again.
const WAIT_OF_SERVER: Duration = Duration::from_secs(10);

/// How long a command waits for the lock: the last server may just have ended.
const WAIT_OF_COMMAND: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// What a process has that serves or changes a store in a bucket.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Membership {
    pub(in crate::cli) session: SessionHandle,
    /// Whether no other process used the store when this one began. Then this one has it alone,
    /// until it calls [`SessionHandle::share`].
    pub(in crate::cli) is_first: bool,
}

impl StoreLocation {
    /// Does this work of a server. Without a bucket there is no membership, and the file `lock` is
    /// enough.
    ///
    /// # Errors
    ///
    /// Another process has the store alone; the session was lost, and then the work was cut off; or
    /// an error of the work.
    #[cfg_attr(not(feature = "postgres"), expect(unused_variables, reason = "without PostgreSQL no session begins"))]
    pub(in crate::cli) async fn serving<T, W: Future<Output = Result<T>>>(
        &self,
        work: impl FnOnce(Option<Membership>) -> W,
    ) -> Result<T> {
        let Some(url) = self.shared_database() else { return work(None).await };
        match begin(url, &[Access::Alone, Access::Shared], WAIT_OF_SERVER).await? {
            Some((session, access)) => {
                let membership = Membership { session: session.handle(), is_first: access == Access::Alone };
                with(session, work(Some(membership))).await
            }
            None => bail!(
                "another zorb repairs or starts the store in the PostgreSQL {}; wait for it, or stop it",
                postgres::describe(url)
            ),
        }
    }

    /// Does this work while no server and no other such command uses the store. For a command that
    /// changes the store. Without a bucket, the files `lock` and `gc.lock` are enough, and the
    /// command may run beside a server.
    ///
    /// # Errors
    ///
    /// See [`serving`](Self::serving).
    #[cfg_attr(not(feature = "postgres"), expect(unused_variables, reason = "without PostgreSQL no session begins"))]
    pub(in crate::cli) async fn changing<T, W: Future<Output = Result<T>>>(
        &self,
        work: impl FnOnce(Option<Membership>) -> W,
    ) -> Result<T> {
        let Some(url) = self.shared_database() else { return work(None).await };
        match begin(url, &[Access::Alone], WAIT_OF_COMMAND).await? {
            Some((session, _)) => {
                let membership = Membership { session: session.handle(), is_first: true };
                with(session, work(Some(membership))).await
            }
            None => bail!(
                "another zorb uses the PostgreSQL {}; a server collects garbage by itself; stop all servers first",
                postgres::describe(url)
            ),
        }
    }

    /// The database, if processes with other data directories can use it.
    pub(in crate::cli) fn shared_database(&self) -> Option<&DatabaseUrl> {
        self.database.as_ref().filter(|_| self.s3.is_some())
    }
}

/// Begins a session with the first of these kinds of access that it gets; `None` if it gets none
/// within this time.
async fn begin(url: &DatabaseUrl, kinds: &[Access], wait: Duration) -> Result<Option<(Session, Access)>> {
    let until = Instant::now() + wait;
    let mut session = postgres::begin_session(url).await?;
    loop {
        for access in kinds {
            if session.try_lock(*access).await? {
                return Ok(Some((session, *access)));
            }
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        sleep(PAUSE).await;
    }
}

/// Does this work, and stops it at once if the session is lost.
async fn with<T>(session: Session, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        // Boxed: a connection that may have TLS makes every future that awaits it large.
        error = Box::pin(session.run()) => Err(error.context(
            "lost the connection that has the locks of this process, so this process stops; start it again"
        )),
    }
}
