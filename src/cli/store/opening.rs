//! Opens the index at the location of a store, for a command or for a starting server.

use std::io::ErrorKind;

use anyhow::{Context, bail};

use super::location::StoreLocation;
use super::open::StoreIndex;
use super::{advice, is_store, postgres};
use crate::blob::records::fs::FsRecordStore;
use crate::index::sqlite::SqliteIndex;
use crate::runtime::blocking::Pool;
use crate::service::{Store, check_owner};

impl StoreLocation {
    /// Refuses a location without a store, for a command that needs one.
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
            found if is_store(data_dir).unwrap_or(false) => Err(advice::lost_index(data_dir, found.is_ok())),
            _ => bail!("no store in {dir}; name its directory with --data-dir"),
        }
    }

    /// Opens the index of an existing store for reading. Never creates or migrates an index. In
    /// PostgreSQL, the connections could also write.
    pub(in crate::cli) async fn open_read_only(&self) -> anyhow::Result<StoreIndex> {
        self.check_index()?;
        match &self.database {
            Some(url) => postgres::open(url).await,
            None => {
                let opened = SqliteIndex::open_read_only(&self.sqlite_path()).await;
                opened.map(StoreIndex::Sqlite).map_err(|error| advice::explain(self, error.into()))
            }
        }
    }

    /// Opens an index for writing that was opened for reading. So an index that another version
    /// uses is not migrated: opening it for reading has failed.
    pub(in crate::cli) async fn reopen_to_write(&self, index: StoreIndex) -> anyhow::Result<StoreIndex> {
        if self.database.is_some() {
            return Ok(index);
        }
        index.close().await;
        Ok(StoreIndex::Sqlite(SqliteIndex::open(&self.sqlite_path()).await?))
    }

    /// Checks the database before a start changes the data directory: it has the schema of this
    /// program, and does not belong to another store.
    pub(in crate::cli) async fn check_before_start(&self) -> anyhow::Result<()> {
        self.check_kind()?;
        let Some(url) = &self.database else { return Ok(()) };
        let index = postgres::open(url).await?;
        let records = FsRecordStore::open_existing(&self.data_dir, Pool::new(1));
        let checked = check_owner(&records, index.shared().as_ref()).await;
        index.close().await;
        checked.map_err(|gap| advice::of_gap(self, gap))
    }

    /// Opens the index of a starting server that is in PostgreSQL; `None` if it is in SQLite.
    pub(in crate::cli) async fn open_database(&self) -> anyhow::Result<Option<StoreIndex>> {
        self.check_kind()?;
        let Some(url) = &self.database else { return Ok(None) };
        self.mark()?;
        postgres::open(url).await.map(Some)
    }

    /// Gives a new data directory its id, if its index is in PostgreSQL. Returns whether the store
    /// is new. To be called before [`Store::agree`].
    pub(in crate::cli) async fn identify(&self, store: &Store, may_create: bool) -> anyhow::Result<bool> {
        if self.database.is_none() {
            return Ok(false);
        }
        store.identify_directory(may_create).await.map_err(|gap| advice::of_gap(self, gap))
    }
}
