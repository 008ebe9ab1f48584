//! Where a store is: its data directory, and the database of its index. The index is the file
//! `index.sqlite` in the directory, or a PostgreSQL database.
//!
//! A directory whose index is in PostgreSQL has the file `index.postgresql`. Without it, a start
//! without the setting `database_url` would create an empty `index.sqlite` there.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::config::{Config, DatabaseUrl};
use crate::runtime::durable::TempFile;

/// The file that says that the index of a data directory is in PostgreSQL.
pub(super) const MARKER: &str = "index.postgresql";

/// The contents of the marker, for people.
const MARKER_TEXT: &[u8] =
    b"The index of this store is in the PostgreSQL database that the setting database_url names.\n";

/// The name of an index in SQLite.
const SQLITE: &str = "index.sqlite";

/// A data directory, and the database of its index.
#[derive(Clone, Debug)]
pub(in crate::cli) struct StoreLocation {
    pub(in crate::cli) data_dir: PathBuf,
    /// The PostgreSQL database; `None` for `index.sqlite` in the directory.
    pub(in crate::cli) database: Option<DatabaseUrl>,
}

impl StoreLocation {
    /// The location in these settings.
    pub(in crate::cli) fn of(config: &Config) -> Self {
        Self { data_dir: config.data_dir.clone(), database: config.database.clone() }
    }

    /// The path of an index in SQLite.
    pub(in crate::cli) fn sqlite_path(&self) -> PathBuf {
        self.data_dir.join(SQLITE)
    }

    /// Refuses a data directory whose index is not where the settings say.
    pub(in crate::cli) fn check_kind(&self) -> anyhow::Result<()> {
        let dir = self.data_dir.display();
        let has = |name: &str| {
            let found = self.data_dir.join(name).try_exists();
            found.with_context(|| format!("cannot read the data directory {dir}"))
        };
        match &self.database {
            None if has(MARKER)? => bail!(
                "the index of {dir} is in a PostgreSQL database (the directory has the file {MARKER}): set \
                 database_url, for example with ZORB_DATABASE_URL"
            ),
            Some(_) if has(SQLITE)? => bail!(
                "database_url is set, and the data directory {dir} has its index in {SQLITE}: unset database_url, \
                 or name another directory; a store cannot be moved to PostgreSQL yet"
            ),
            _ => Ok(()),
        }
    }

    /// Refuses a setting `database_url`, for a command that only works with SQLite.
    pub(in crate::cli) fn require_sqlite(&self, what: &str) -> anyhow::Result<()> {
        if self.database.is_some() {
            bail!("{what}, and database_url is set; see docs/postgresql.md");
        }
        self.check_kind()
    }

    /// Marks the directory as one whose index is in PostgreSQL. Blocks.
    pub(super) fn mark(&self) -> anyhow::Result<()> {
        let path = self.data_dir.join(MARKER);
        write_marker(&path).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn write_marker(path: &Path) -> io::Result<()> {
    if path.try_exists()? {
        return Ok(());
    }
    let mut file = TempFile::create_beside(path)?;
    file.write(MARKER_TEXT)?;
    file.publish(path)
}
