//! The PostgreSQL database of an index: opens it, migrates it, and explains its errors. No text
//! that this module makes has the password. A zorb that was built without PostgreSQL refuses each.

use anyhow::Result;

use super::index::StoreIndex;
use crate::config::DatabaseUrl;

#[cfg(feature = "postgres")]
mod built {
    use anyhow::{Error, Result, anyhow};

    use super::{DatabaseUrl, StoreIndex};
    use crate::index::postgres::PostgresIndex;
    use crate::index::{IndexError, IndexErrorKind};
    use crate::runtime::telemetry::chain;

    pub(super) async fn open(url: &DatabaseUrl) -> Result<StoreIndex> {
        let opened = PostgresIndex::open(url.expose()).await;
        opened.map(StoreIndex::Postgres).map_err(|error| explain(url, &error))
    }

    pub(super) async fn migrate(url: &DatabaseUrl) -> Result<()> {
        PostgresIndex::migrate(url.expose()).await.map_err(|error| explain(url, &error))
    }

    /// The lock of the one server of a database.
    #[derive(Debug)]
    pub(in crate::cli) struct ServerLock {
        lock: crate::index::postgres::ServerLock,
        url: DatabaseUrl,
    }

    impl ServerLock {
        /// Waits until the lock may be lost, and returns the reason.
        pub(in crate::cli) async fn lost(self) -> Error {
            explain(&self.url, &self.lock.lost().await)
        }
    }

    pub(super) async fn try_lock_server(url: &DatabaseUrl) -> Result<Option<ServerLock>> {
        let lock = PostgresIndex::try_lock_server(url.expose()).await.map_err(|error| explain(url, &error))?;
        Ok(lock.map(|lock| ServerLock { lock, url: url.clone() }))
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

    use super::{DatabaseUrl, StoreIndex};

    pub(super) async fn open(_: &DatabaseUrl) -> Result<StoreIndex> {
        Err(not_built())
    }

    pub(super) async fn migrate(_: &DatabaseUrl) -> Result<()> {
        Err(not_built())
    }

    /// The lock of the one server of a database, which this program cannot take.
    #[derive(Debug)]
    pub(in crate::cli) enum ServerLock {}

    impl ServerLock {
        /// Waits until the lock may be lost, and returns the reason.
        #[expect(clippy::unused_async, reason = "as in a program with PostgreSQL")]
        pub(in crate::cli) async fn lost(self) -> Error {
            match self {}
        }
    }

    pub(super) async fn try_lock_server(_: &DatabaseUrl) -> Result<Option<ServerLock>> {
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

pub(super) use self::built::ServerLock;

/// Takes the lock of the one server of this database; `None` if another process holds it.
pub(super) async fn try_lock_server(url: &DatabaseUrl) -> Result<Option<ServerLock>> {
    built::try_lock_server(url).await
}

/// Opens the index in this database. Neither creates nor migrates its schema.
pub(super) async fn open(url: &DatabaseUrl) -> Result<StoreIndex> {
    built::open(url).await
}

/// Creates the schema of this database, or brings it to the version of this program.
pub(in crate::cli) async fn migrate(url: &DatabaseUrl) -> Result<()> {
    built::migrate(url).await
}

/// The database as text for people: its name and host.
pub(in crate::cli) fn describe(url: &DatabaseUrl) -> String {
    built::describe(url)
}
