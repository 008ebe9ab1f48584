//! Where a store is: its data directory, the database of its index, and the bucket of its blobs and
//! records. The index is the file `index.sqlite` in the directory, or a PostgreSQL database. Blobs
//! and records are in the directory, or in a bucket.
//!
//! A directory whose index is in PostgreSQL has the file `index.postgresql`. Without it, a start
//! without the setting `database_url` would create an empty `index.sqlite` there. A directory whose
//! blobs are in a bucket has the file `blobs.s3` for the same reason.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::config::{Config, DatabaseUrl, S3Config};
use crate::runtime::durable::TempFile;

/// The file that says that the index of a data directory is in PostgreSQL.
pub(super) const MARKER: &str = "index.postgresql";

/// The file that says that the blobs and records of a data directory are in a bucket.
pub(super) const S3_MARKER: &str = "blobs.s3";

/// The contents of the markers, for people.
const MARKER_TEXT: &[u8] =
    b"The index of this store is in the PostgreSQL database that the setting database_url names.\n";
const S3_MARKER_TEXT: &[u8] =
    b"The blobs and records of this store are in the bucket that the settings s3_bucket and s3_prefix name.\n";

/// The name of an index in SQLite.
const SQLITE: &str = "index.sqlite";

/// The directory for drafts of blobs, in the data directory.
#[cfg(feature = "s3")]
const SCRATCH: &str = "tmp";

/// The directory of blobs, in the data directory.
const XORBS: &str = "xorbs";

/// A data directory, and the database and the bucket of its store.
#[derive(Clone, Debug)]
pub(in crate::cli) struct StoreLocation {
    pub(in crate::cli) data_dir: PathBuf,
    /// The PostgreSQL database; `None` for `index.sqlite` in the directory.
    pub(in crate::cli) database: Option<DatabaseUrl>,
    /// The bucket of blobs and records; `None` for the directory.
    pub(in crate::cli) s3: Option<S3Config>,
}

impl StoreLocation {
    /// The location in these settings.
    pub(in crate::cli) fn of(config: &Config) -> Self {
        Self { data_dir: config.data_dir.clone(), database: config.database.clone(), s3: config.s3.clone() }
    }

    /// The path of an index in SQLite.
    pub(in crate::cli) fn sqlite_path(&self) -> PathBuf {
        self.data_dir.join(SQLITE)
    }

    /// The directory for drafts of blobs that go to a bucket.
    #[cfg(feature = "s3")]
    pub(super) fn scratch_dir(&self) -> PathBuf {
        self.data_dir.join(SCRATCH)
    }

    /// Where blobs and records are, and which settings say so, as text for people.
    pub(in crate::cli) fn describe_blobs(&self) -> String {
        match &self.s3 {
            None => format!("data_dir ({})", self.data_dir.display()),
            Some(s3) if s3.prefix.is_empty() => format!("s3_bucket ({} at {})", s3.bucket, s3.endpoint),
            Some(s3) => format!("s3_bucket and s3_prefix ({}/{} at {})", s3.bucket, s3.prefix, s3.endpoint),
        }
    }

    /// Refuses a data directory whose blobs are in a bucket, if the settings name none.
    pub(in crate::cli) fn check_blobs(&self) -> anyhow::Result<()> {
        let dir = self.data_dir.display();
        let found = self.data_dir.join(S3_MARKER).try_exists();
        if self.s3.is_none() && found.with_context(|| format!("cannot read the data directory {dir}"))? {
            bail!(
                "the blobs of {dir} are in an S3 bucket (the directory has the file {S3_MARKER}): set s3_endpoint, \
                 s3_bucket and the key, for example with ZORB_S3_BUCKET, or name the configuration file with --config"
            );
        }
        Ok(())
    }

    /// Refuses a data directory whose index or blobs are not where the settings say.
    pub(in crate::cli) fn check_kind(&self) -> anyhow::Result<()> {
        self.check_blobs()?;
        let dir = self.data_dir.display();
        let has = |name: &str| {
            let found = self.data_dir.join(name).try_exists();
            found.with_context(|| format!("cannot read the data directory {dir}"))
        };
        match &self.s3 {
            Some(_) if has(XORBS)? => bail!(
                "s3_bucket is set, and the data directory {dir} has its blobs in the directory {XORBS}: unset \
                 s3_bucket, or name another directory; zorb backup and zorb restore move a store (docs/backup.md)"
            ),
            _ => {}
        }
        match &self.database {
            None if has(MARKER)? => bail!(
                "the index of {dir} is in a PostgreSQL database (the directory has the file {MARKER}): set \
                 database_url, for example with ZORB_DATABASE_URL"
            ),
            Some(_) if has(SQLITE)? => bail!(
                "database_url is set, and the data directory {dir} has its index in {SQLITE}: unset database_url, \
                 or name another directory; zorb backup and zorb restore move a store to PostgreSQL and a bucket \
                 (docs/backup.md)"
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

    /// Marks the directory as one whose index is in PostgreSQL, and whose blobs are in a bucket if
    /// they are. Blocks.
    pub(super) fn mark(&self) -> anyhow::Result<()> {
        let mark = |name: &str, text: &[u8]| {
            let path = self.data_dir.join(name);
            write_marker(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        mark(MARKER, MARKER_TEXT)?;
        if self.s3.is_some() { mark(S3_MARKER, S3_MARKER_TEXT) } else { Ok(()) }
    }
}

fn write_marker(path: &Path, text: &[u8]) -> io::Result<()> {
    if path.try_exists()? {
        return Ok(());
    }
    let mut file = TempFile::create_beside(path)?;
    file.write(text)?;
    file.publish(path)
}
