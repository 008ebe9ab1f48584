//! Shared parts of the commands that work on a data directory: their flags, locks, settings, and
//! progress.

pub(super) mod advice;
mod applied;
mod blobs;
mod index;
mod location;
mod membership;
mod opening;
pub(super) mod postgres;

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;

pub(super) use self::applied::check_all_applied;
pub(super) use self::blobs::{Finding, StoreBlobs};
pub(super) use self::index::StoreIndex;
pub(super) use self::location::StoreLocation;
pub(super) use self::membership::Membership;
#[cfg(feature = "s3")]
pub(super) use self::postgres::{describe as describe_database, open_without_session as open_database};
use super::output::Output;
use crate::config::{Config, DatabaseUrl, RawConfig, S3Config};
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::durable::open_lock;
use crate::runtime::metrics::Metrics;
use crate::runtime::telemetry::chain;
use crate::service::archive::Watch;
use crate::service::{Settings, Store, Tail};

/// Names by which a directory is recognized as a store.
const STORE_NAMES: [&str; 5] = ["store", "index.sqlite", "xorbs", "shards", location::S3_MARKER];

/// Names that a directory for a new store may contain. An interrupted first start leaves the first
/// six, file systems create the others.
const HARMLESS_NAMES: [&str; 8] =
    ["lock", "gc.lock", "keys", "keys.lock", "tmp", location::MARKER, "lost+found", ".snapshot"];

/// The data directory, the database and the bucket, determined as by `zorb serve`.
#[derive(Clone, Debug, Args)]
pub(super) struct StoreArgs {
    /// Data directory [default: ./zorb-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// PostgreSQL database of the index, if that is not in the data directory; better set
    /// ZORB_DATABASE_URL, because other users can see arguments
    #[arg(long, value_name = "URL")]
    database_url: Option<DatabaseUrl>,
    /// TOML file with settings; only data_dir, database_url, s3_… and settings with the command's
    /// name as prefix are used
    #[arg(long, env = "ZORB_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StoreArgs {
    /// The location: each setting from the flag, else from the environment, else from the file,
    /// else the default.
    pub(super) fn location(self) -> anyhow::Result<StoreLocation> {
        location_of(&self.raw()?)
    }

    /// All settings of flag, environment and file, in this order of precedence.
    pub(super) fn raw(self) -> anyhow::Result<RawConfig> {
        let flags = RawConfig { data_dir: self.data_dir, database_url: self.database_url, ..RawConfig::default() };
        let environment = RawConfig::from_env(|name| std::env::var(name).ok())?;
        let file = self.config.as_deref().map(RawConfig::read).transpose()?.unwrap_or_default();
        Ok(flags.or(environment).or(file))
    }
}

/// The location in these settings.
pub(super) fn location_of(raw: &RawConfig) -> anyhow::Result<StoreLocation> {
    let (database, s3) = (DatabaseUrl::of(raw.database_url.clone())?, S3Config::of(raw)?);
    Ok(StoreLocation { data_dir: Config::data_dir_of(raw.data_dir.clone()), database, s3 })
}

/// Whether this directory contains a store.
///
/// # Errors
///
/// The directory cannot be read.
pub(super) fn is_store(data_dir: &Path) -> io::Result<bool> {
    for name in STORE_NAMES {
        if data_dir.join(name).try_exists()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Refuses a directory that is not a store. Without `require_store`, accepts one that is missing or
/// contains only `HARMLESS_NAMES` and temporary files, because a new store can begin there.
///
/// To be called before anything is created in the directory, because a mistyped path must not
/// become a store.
pub(super) fn check_place(data_dir: &Path, require_store: bool) -> anyhow::Result<()> {
    let dir = data_dir.display();
    if is_store(data_dir).with_context(|| format!("cannot read the data directory {dir}"))? {
        return Ok(());
    }
    if require_store {
        return Err(advice::no_store(data_dir));
    }
    let entries = match data_dir.read_dir() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot read the data directory {dir}"))?,
    };
    for entry in entries {
        let name = entry.with_context(|| format!("cannot read the data directory {dir}"))?.file_name();
        // Temporary files of an interrupted first start begin with `.zorb-`.
        let is_ours =
            HARMLESS_NAMES.iter().any(|harmless| name == *harmless) || name.as_encoded_bytes().starts_with(b".zorb-");
        if !is_ours {
            let name = name.display();
            bail!(
                "the directory {dir} is not empty and is not a store: it contains {name}; name another one with \
                 --data-dir"
            );
        }
    }
    Ok(())
}

/// Compares the index of a store with its records. Returns the tail: the records that the index has
/// not applied. See [`Store::compare`].
pub(super) async fn compare(location: &StoreLocation, index: &StoreIndex) -> anyhow::Result<Tail> {
    let settings = settings_over(location, index, Arc::new(SystemClock), 1)?;
    Store::new(&settings).compare().await.map_err(|gap| advice::of_gap(location, gap))
}

/// The settings of an existing store, for a command that uses so many disk workers for blobs.
pub(super) fn settings_over(
    location: &StoreLocation,
    index: &StoreIndex,
    clock: Arc<dyn Clock>,
    disk_worker_count: usize,
) -> anyhow::Result<Settings> {
    let StoreBlobs { blobs, records, .. } = location.existing_blobs(index, disk_worker_count)?;
    Ok(Settings::over(blobs, records, index.shared(), clock, Arc::new(Metrics::new())))
}

/// Locks the data directory for this process, as a server does; `None` if another process holds the
/// lock. Dropping the file releases the lock, as does the end of the process.
pub(super) fn try_lock(data_dir: &Path) -> io::Result<Option<File>> {
    let file = open_lock(&data_dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Shows the progress of a backup, a restore or a rebuild.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    output: Output,
}

impl Progress {
    pub(super) fn new(output: &Output, what: impl AsRef<str>) -> Arc<Self> {
        Arc::new(Self { bar: output.bar(0, what), output: output.clone() })
    }
}

impl Watch for Progress {
    fn total(&self, len: u64) {
        self.bar.set_length(len);
    }

    fn position(&self, len: u64) {
        self.bar.set_position(len);
    }

    fn problem(&self, problem: &(dyn std::error::Error + 'static)) {
        self.output.complain(chain(problem));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
