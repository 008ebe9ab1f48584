//! Which store a command works on that needs no server, and how such a command shows its progress.

pub(super) mod advice;

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;

use super::output::Output;
use crate::blob::fs::FsBlobStore;
use crate::blob::records::fs::FsRecordStore;
use crate::config::{Config, RawConfig};
use crate::index::sqlite::SqliteIndex;
use crate::runtime::blocking::Pool;
use crate::runtime::clock::SystemClock;
use crate::runtime::durable::open_lock;
use crate::runtime::metrics::Metrics;
use crate::runtime::telemetry::chain;
use crate::service::archive::Watch;
use crate::service::{Budget, Cas, Tail};

/// What only a store has.
const STORE_NAMES: [&str; 4] = ["store", "index.sqlite", "xorbs", "shards"];

/// What a directory may have that is no store yet: what a start that was cut short has made, and
/// what a file system has by itself.
const HARMLESS_NAMES: [&str; 7] = ["lock", "gc.lock", "keys", "keys.lock", "tmp", "lost+found", ".snapshot"];

/// The data directory, determined as by `zorb serve`.
#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    /// Data directory [default: ./zorb-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// TOML file with settings; only data_dir and settings with the command's name as prefix are
    /// used
    #[arg(long, env = "ZORB_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StoreArgs {
    /// The data directory: of the flag, else the environment, else the file, else the default.
    pub(super) fn data_dir(self) -> anyhow::Result<PathBuf> {
        Ok(Config::data_dir_of(self.raw()?.data_dir))
    }

    /// All that was written, found likewise.
    pub(super) fn raw(self) -> anyhow::Result<RawConfig> {
        let flags = RawConfig { data_dir: self.data_dir, ..RawConfig::default() };
        let environment = RawConfig::from_env(|name| std::env::var(name).ok())?;
        let file = self.config.as_deref().map(RawConfig::read).transpose()?.unwrap_or_default();
        Ok(flags.or(environment).or(file))
    }
}

/// Whether there is a store in this directory, by what is in it.
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

/// Refuses a directory that has something else in it than a store, and with `require_store` one
/// that has none. To be called before anything is made there.
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

/// The path of the index of a store that is there.
pub(super) fn index_path(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let path = data_dir.join("index.sqlite");
    match path.metadata() {
        Ok(metadata) if metadata.is_file() && metadata.len() > 0 => Ok(path),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot read the index of {}", data_dir.display()))
        }
        found if is_store(data_dir).unwrap_or(false) => Err(advice::lost_index(data_dir, found.is_ok())),
        _ => bail!("no store in {}; name its directory with --data-dir", data_dir.display()),
    }
}

/// Opens the index of a store that is there, to read it.
pub(super) async fn open_read_only(data_dir: &Path) -> anyhow::Result<SqliteIndex> {
    let opened = SqliteIndex::open_read_only(&index_path(data_dir)?).await;
    opened.map_err(|error| advice::explain(data_dir, error.into()))
}

/// Compares the index of a store with what else is there: see [`Cas::compare`].
pub(super) async fn compare(data_dir: &Path, index: &SqliteIndex) -> anyhow::Result<Tail> {
    let blobs = Arc::new(FsBlobStore::open_existing(data_dir, Pool::new(1)));
    let records = Arc::new(FsRecordStore::open_existing(data_dir, Pool::new(1)));
    let budget = Budget { upload_count: 1, verify_worker_count: 1, layout_cache_len: 0 };
    let (index, clock, metrics) = (Arc::new(index.clone()), Arc::new(SystemClock), Arc::new(Metrics::new()));
    let compared = Cas::new(blobs, records, index, clock, metrics, budget).compare().await;
    compared.map_err(|gap| advice::of_gap(data_dir, gap))
}

/// Locks the data directory for this process, as a server does; `None` if a server has it. The
/// operating system releases the lock when the process ends.
pub(super) fn try_lock(data_dir: &Path) -> io::Result<Option<File>> {
    let file = open_lock(&data_dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Shows how a backup or a restore is going.
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
