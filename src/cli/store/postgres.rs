//! The PostgreSQL database of an index: opens it, migrates it, and explains its errors. No text
//! that this module makes has the password. A zorb that was built without PostgreSQL refuses each.

use anyhow::Result;

use super::index::StoreIndex;
use crate::config::DatabaseUrl;

#[cfg(feature = "postgres")]
mod built {
    use anyhow::{Error, Result, anyhow};

    use super::{Access, DatabaseUrl, StoreIndex};
    use crate::index::postgres::{PostgresIndex, ServerAccess};
    use crate::index::{IndexError, IndexErrorKind};
    use crate::runtime::clock::SystemClock;
    use crate::runtime::telemetry::chain;

    pub(super) async fn open(url: &DatabaseUrl, session: Option<&SessionHandle>) -> Result<StoreIndex> {
        let opened = async {
            let index = PostgresIndex::open(url.expose()).await?;
            match session {
                Some(SessionHandle(session)) => index.with_session(session.clone()).await,
                None => Ok(index),
            }
        };
        opened.await.map(StoreIndex::Postgres).map_err(|error| explain(url, &error))
    }

    pub(super) async fn migrate(url: &DatabaseUrl) -> Result<()> {
        PostgresIndex::migrate(url.expose()).await.map_err(|error| explain(url, &error))
    }

    /// The session of this process.
    #[derive(Debug)]
    pub(in crate::cli) struct Session {
        session: crate::index::postgres::Session,
        url: DatabaseUrl,
    }

    impl Session {
        /// Takes the lock of servers; `false` if another process has it in a way that forbids this.
        pub(in crate::cli) async fn try_lock(&mut self, access: Access) -> Result<bool> {
            let access = match access {
                Access::Alone => ServerAccess::Alone,
                Access::Shared => ServerAccess::Shared,
            };
            self.session.try_lock_server(access).await.map_err(|error| explain(&self.url, &error))
        }

        pub(in crate::cli) fn handle(&self) -> SessionHandle {
            SessionHandle(self.session.handle())
        }

        /// Does what the handles ask for, until the session may be lost. Returns the reason.
        pub(in crate::cli) async fn run(self) -> Error {
            explain(&self.url, &self.session.run().await)
        }
    }

    /// Access to the session of this process.
    #[derive(Clone, Debug)]
    pub(in crate::cli) struct SessionHandle(crate::index::postgres::SessionHandle);

    impl SessionHandle {
        /// Becomes the server that does the work in the background; `false` if another one is.
        pub(in crate::cli) async fn try_lead(&self) -> Result<bool> {
            Ok(self.0.try_lead().await?)
        }

        /// Shares the lock of servers that this process has alone.
        pub(in crate::cli) async fn share(&self) -> Result<()> {
            Ok(self.0.share().await?)
        }
    }

    pub(super) async fn begin_session(url: &DatabaseUrl) -> Result<Session> {
        let begun = crate::index::postgres::Session::begin(url.expose(), &SystemClock).await;
        let session = begun.map_err(|error| explain(url, &error))?;
        Ok(Session { session, url: url.clone() })
    }

    /// Opens the index and begins a session, as a server does, and ends both.
    pub(super) async fn try_out(url: &DatabaseUrl) -> Result<String> {
        let index = open(url, None).await?;
        index.close().await;
        drop(begin_session(url).await?);
        Ok(format!("the schema of {} is current, and the clocks agree", describe(url)))
    }

    pub(super) fn describe(url: &DatabaseUrl) -> String {
        // An invalid URL is reported when it is opened.
        PostgresIndex::describe(url.expose()).unwrap_or_else(|_| "database".to_owned())
    }

    /// The error of a database that cannot be opened or migrated, with advice.
    fn explain(url: &DatabaseUrl, error: &IndexError) -> Error {
        let (database, cause) = (describe(url), chain(&*error.source));
        match error.kind {
            // The cause has the advice.
            IndexErrorKind::Older => anyhow!("cannot use the PostgreSQL {database}: {cause}"),
            IndexErrorKind::Newer => anyhow!(
                "the schema of the PostgreSQL {database} is newer: use the zorb that wrote it, or a later one ({cause})"
            ),
            IndexErrorKind::Unavailable => anyhow!(
                "cannot connect to the PostgreSQL {database}: {cause}; check that the server runs, and that \
                 database_url is right"
            ),
            _ => anyhow!("cannot use the PostgreSQL {database}: {cause}; check the server and database_url"),
        }
    }
}

#[cfg(not(feature = "postgres"))]
mod built {
    use anyhow::{Error, Result, anyhow};

    use super::{Access, DatabaseUrl, StoreIndex};

    pub(super) async fn open(_: &DatabaseUrl, _: Option<&SessionHandle>) -> Result<StoreIndex> {
        Err(not_built())
    }

    pub(super) async fn migrate(_: &DatabaseUrl) -> Result<()> {
        Err(not_built())
    }

    /// A session, which this program cannot begin.
    #[derive(Debug)]
    pub(in crate::cli) enum Session {}

    #[expect(clippy::unused_async, reason = "as in a program with PostgreSQL")]
    impl Session {
        pub(in crate::cli) async fn try_lock(&mut self, _: Access) -> Result<bool> {
            match *self {}
        }

        pub(in crate::cli) fn handle(&self) -> SessionHandle {
            match *self {}
        }

        pub(in crate::cli) async fn run(self) -> Error {
            match self {}
        }
    }

    /// Access to a session, which there is none of.
    #[derive(Clone, Debug)]
    pub(in crate::cli) enum SessionHandle {}

    #[expect(clippy::unused_async, reason = "as in a program with PostgreSQL")]
    impl SessionHandle {
        pub(in crate::cli) async fn try_lead(&self) -> Result<bool> {
            match *self {}
        }

        pub(in crate::cli) async fn share(&self) -> Result<()> {
            match *self {}
        }
    }

    pub(super) async fn begin_session(_: &DatabaseUrl) -> Result<Session> {
        Err(not_built())
    }

    pub(super) async fn try_out(_: &DatabaseUrl) -> Result<String> {
        Err(not_built())
    }

    pub(super) fn describe(_: &DatabaseUrl) -> String {
        "database".to_owned()
    }

    fn not_built() -> Error {
        anyhow!(
            "database_url is set, and this zorb was built without PostgreSQL; build it with --features postgres, or \
             unset database_url"
        )
    }
}

pub(in crate::cli) use self::built::{Session, SessionHandle};

/// How a process uses a store that other processes can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Access {
    /// No other process serves or changes it.
    Alone,
    /// Other servers may serve it, too.
    Shared,
}

/// Begins the session of this process.
pub(super) async fn begin_session(url: &DatabaseUrl) -> Result<Session> {
    built::begin_session(url).await
}

/// Opens the index in this database, for a process with this session if it has one. Neither creates
/// nor migrates its schema.
pub(super) async fn open(url: &DatabaseUrl, session: Option<&SessionHandle>) -> Result<StoreIndex> {
    built::open(url, session).await
}

/// The same for a process that only works on rows of its own kind.
#[cfg(feature = "s3")]
pub(in crate::cli) async fn open_without_session(url: &DatabaseUrl) -> Result<StoreIndex> {
    open(url, None).await
}

/// Creates the schema of this database, or brings it to the version of this program.
pub(in crate::cli) async fn migrate(url: &DatabaseUrl) -> Result<()> {
    built::migrate(url).await
}

/// Checks that a server can use this database. Returns what was found, as text for people.
pub(in crate::cli) async fn try_out(url: &DatabaseUrl) -> Result<String> {
    built::try_out(url).await
}

/// The database as text for people: its name and host.
pub(in crate::cli) fn describe(url: &DatabaseUrl) -> String {
    built::describe(url)
}
