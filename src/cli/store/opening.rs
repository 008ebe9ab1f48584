//! Opens the index at the location of a store, for a command or for a starting server.

use std::io::ErrorKind;

use anyhow::{Context, bail};

use super::index::StoreIndex;
use super::location::StoreLocation;
use super::membership::Membership;
use super::{advice, is_store, postgres};
use crate::index::sqlite::SqliteIndex;
use crate::service::{Store, check_owner};

impl StoreLocation {
    /// Refuses a location without a store, and a store whose file `index.sqlite` is missing or
    /// empty. A database is not opened.
    pub(in crate::cli) fn check_index(&self) -> anyhow::Result<()> {
        self.check_kind()?;
        let (data_dir, dir) = (&self.data_dir, self.data_dir.display());
        if self.database.is_some() {
            if is_store(data_dir).with_context(|| format!("cannot read the data directory {dir}"))? {
                return Ok(());
            }
            bail!("no store in {dir}; name its directory with --data-dir");
        }
        match self.sqlite_path().metadata() {
            Ok(metadata) if metadata.is_file() && metadata.len() > 0 => Ok(()),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot read the index of {dir}"))
            }
            found if is_store(data_dir).unwrap_or(false) => {
                let is_empty = found.is_ok();
                Err(advice::lost_index(data_dir, is_empty))
            }
            _ => bail!("no store in {dir}; name its directory with --data-dir"),
        }
    }

    /// Opens the index of an existing store for reading. Never creates or migrates an index. With
    /// PostgreSQL the connections are not restricted to reading, so
    /// [`reopen_to_write`](Self::reopen_to_write) returns the same index.
    pub(in crate::cli) async fn open_read_only(&self) -> anyhow::Result<StoreIndex> {
        self.open_as(None).await
    }

    /// The same for a process with this membership, which may write.
    pub(in crate::cli) async fn open_as(&self, membership: Option<&Membership>) -> anyhow::Result<StoreIndex> {
        self.check_index()?;
        match &self.database {
            Some(url) => postgres::open(url, membership.map(|membership| &membership.session)).await,
            None => {
                let opened = SqliteIndex::open_read_only(&self.sqlite_path()).await;
                opened.map(StoreIndex::Sqlite).map_err(|error| advice::explain(self, error.into()))
            }
        }
    }

    /// Closes an index that was opened for reading, and opens it for writing. A command opens an
    /// index for reading first, because that fails for the schema of another version, while opening
    /// it for writing would migrate it.
    pub(in crate::cli) async fn reopen_to_write(&self, index: StoreIndex) -> anyhow::Result<StoreIndex> {
        if self.database.is_some() {
            return Ok(index);
        }
        index.close().await;
        Ok(StoreIndex::Sqlite(SqliteIndex::open(&self.sqlite_path()).await?))
    }

    /// Checks the database before a start changes the data directory: it has the schema of this
    /// program, and does not belong to another store than the data directory or the bucket.
    pub(in crate::cli) async fn check_before_start(&self) -> anyhow::Result<()> {
        self.check_kind()?;
        let Some(url) = &self.database else { return Ok(()) };
        let index = postgres::open(url, None).await?;
        let records = self.existing_blobs(&index, 1)?.records;
        let checked = check_owner(records.as_ref(), index.shared().as_ref()).await;
        index.close().await;
        checked.map_err(|gap| advice::of_gap(self, gap))
    }

    /// For a starting server whose index is in PostgreSQL: marks the data directory (see
    /// [`mark`](Self::mark)) and opens the index. `None` if the index is in SQLite.
    pub(in crate::cli) async fn open_database(
        &self,
        membership: Option<&Membership>,
    ) -> anyhow::Result<Option<StoreIndex>> {
        self.check_kind()?;
        let Some(url) = &self.database else { return Ok(None) };
        self.mark()?;
        postgres::open(url, membership.map(|membership| &membership.session)).await.map(Some)
    }

    /// If the index is in PostgreSQL, gives the data directory of a new store its id, and returns
    /// whether it did; an error if the store is new and `may_create` is false. To be called before
    /// [`Store::agree`], which writes the id if the index is in SQLite.
    pub(in crate::cli) async fn identify(&self, store: &Store, may_create: bool) -> anyhow::Result<bool> {
        if self.database.is_none() {
            return Ok(false);
        }
        store.identify_directory(may_create).await.map_err(|gap| advice::of_gap(self, gap))
    }
}
