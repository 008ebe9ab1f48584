//! Which store a command works on that needs no server, and how such a command shows its progress.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use indicatif::ProgressBar;

use super::output::Output;
use crate::config::{Config, RawConfig};
use crate::runtime::durable::open_lock;
use crate::runtime::telemetry::chain;
use crate::service::archive::Watch;

/// The data folder, found as `zorb serve` finds it.
#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    /// Folder of the store [default: ./zorb-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// TOML file with settings, of which only data_dir and those that begin with the command's name count here
    #[arg(long, env = "ZORB_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StoreArgs {
    /// The data folder: the flag, else the environment, else the file, else the default.
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

/// Takes the data folder for this process, as a server does; `None` where one has it. The operating system lets go of it
/// when the process ends, however it ends.
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
