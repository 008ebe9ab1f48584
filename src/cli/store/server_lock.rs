//! The lock of the one process that serves a store in a bucket, or changes it.
//!
//! A store in a data directory has the file `lock` for this. A bucket can be reached from several
//! machines, so the lock is in the PostgreSQL database of the index.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use super::location::StoreLocation;
use super::postgres;
use crate::config::DatabaseUrl;

/// How long a start waits for the lock. PostgreSQL notices at once that a process has ended, but
/// only after 25 seconds that its machine cannot be reached. A service manager starts it again.
const WAIT_OF_SERVER: Duration = Duration::from_secs(10);

/// How long a command waits for the lock: the server may just have ended.
const WAIT_OF_COMMAND: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

impl StoreLocation {
    /// Does this work while no other process serves the store. For a server. Without a bucket, the
    /// file `lock` is enough.
    ///
    /// # Errors
    ///
    /// Another process serves the store; the lock was lost, and then the work was cut off; or an
    /// error of the work.
    pub(in crate::cli) async fn serving<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(url) = self.shared_database() else { return work.await };
        match wait_for_lock(url, WAIT_OF_SERVER).await? {
            Some(lock) => held(lock, work).await,
            None => bail!("another zorb uses the PostgreSQL {}; stop it first", postgres::describe(url)),
        }
    }

    /// Does this work while no server and no other such command uses the store. For a command that
    /// changes the store. Without a bucket, the files `lock` and `gc.lock` are enough, and the
    /// command may run beside a server.
    ///
    /// # Errors
    ///
    /// See [`serving`](Self::serving).
    pub(in crate::cli) async fn changing<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(url) = self.shared_database() else { return work.await };
        match wait_for_lock(url, WAIT_OF_COMMAND).await? {
            Some(lock) => held(lock, work).await,
            None => bail!(
                "another zorb uses the PostgreSQL {}; a server collects garbage by itself; stop it first",
                postgres::describe(url)
            ),
        }
    }

    /// The database, if processes with other data directories can use it.
    pub(in crate::cli) fn shared_database(&self) -> Option<&DatabaseUrl> {
        self.database.as_ref().filter(|_| self.s3.is_some())
    }
}

/// Takes the lock; `None` if another process still holds it after this time.
async fn wait_for_lock(url: &DatabaseUrl, wait: Duration) -> Result<Option<postgres::ServerLock>> {
    let until = Instant::now() + wait;
    loop {
        let lock = postgres::try_lock_server(url).await?;
        if lock.is_some() || Instant::now() >= until {
            return Ok(lock);
        }
        sleep(PAUSE).await;
    }
}

/// Does this work, and stops it at once if the lock is lost.
async fn held<T>(lock: postgres::ServerLock, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        error = lock.lost() => Err(error.context(
            "lost the connection that keeps other servers from this database, so this process stops; start it again"
        )),
    }
}
