//! `zorb restore`: restores a store from an archive.
//!
//! The data directory appears under its name when the whole archive was verified. A failure or a
//! signal removes the temporary directory. A crash leaves it beside the data directory.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::backup::{open_to_read, worker_count};
use super::destination::cannot_write;
use super::output::{Output, OutputArgs};
use super::store::{Progress, StoreArgs};
use super::units::{Count, Size};
use super::{keys, remote};
use crate::blob::fs::FsBlobStore;
use crate::blob::records::RecordStore;
use crate::blob::records::fs::FsRecordStore;
use crate::format::StoreId;
use crate::format::xorb::RepackMode;
use crate::index::RecordIndex;
use crate::index::sqlite::SqliteIndex;
use crate::runtime::blocking::Pool;
use crate::runtime::clock::SystemClock;
use crate::runtime::durable::{TempDirectory, create_directory};
use crate::runtime::metrics::Metrics;
use crate::service::archive::Restored;
use crate::service::{Settings, Store};

/// Restore a store from an archive.
///
/// The data directory must not exist, or be empty. It appears when the whole archive was verified:
/// every hash of every xorb and file, and those of the archive itself. Until then everything is in
/// a temporary directory beside it, so the parent directory must be writable. A damaged archive
/// changes nothing; the exit code is 1, and stderr says up to where it is valid.
///
/// The keys that sign tokens and URLs are restored only with --include-keys, if the archive has
/// them: anyone who made the archive could then issue tokens for the store. Without them the server
/// creates new keys, and tokens must be issued again.
#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
    /// Also restore the keys that sign tokens and URLs
    #[arg(long)]
    include_keys: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record with `--json`.
#[derive(Debug, Serialize)]
struct Record<'a> {
    archive: &'a str,
    data_dir: &'a str,
    xorbs: u64,
    raw_len: u64,
    files: u64,
    keys: bool,
    archive_len: u64,
    trailing_garbage: bool,
}

pub(super) fn run(args: RestoreArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let location = args.store.location()?;
    location.require_sqlite("zorb restore makes a store with an SQLite index")?;
    let data_dir = location.data_dir;
    let target = free_place(&data_dir)?;
    let archive = open_to_read(&args.archive)?;
    let dir = TempDirectory::create_beside(&target).with_context(|| cannot_write(&data_dir))?;
    // When `run` returns, its runtime has ended, and no task writes into the directory any more.
    let restored = remote::run(async {
        let index = SqliteIndex::open(&dir.path().join("index.sqlite")).await?;
        let blobs = Arc::new(FsBlobStore::open(dir.path(), Pool::new(16))?);
        let records = Arc::new(FsRecordStore::open(dir.path(), Pool::new(1))?);
        let (clock, metrics) = (Arc::new(SystemClock), Arc::new(Metrics::new()));
        let settings = Settings::over(blobs, records, Arc::new(index.clone()), clock, metrics);
        let store = Store::new(&Settings { verify_worker_count: worker_count(), ..settings });
        let watch = Progress::new(&output, "restore");
        let restored = Box::pin(store.restore(archive, RepackMode::Compressed, watch)).await;
        let identified = identify(dir.path(), &index).await;
        index.close().await;
        let restored = restored.map_err(anyhow::Error::from).and_then(|restored| identified.map(|()| restored));
        restored.with_context(|| format!("cannot restore {}", args.archive.display()))
    })?;
    let ring = restored.keys.as_ref().filter(|_| args.include_keys);
    if let Some(ring) = ring {
        keys::write(dir.path(), ring)?;
    }
    dir.publish(&target).with_context(|| cannot_write(&data_dir))?;
    report(&args.archive, &data_dir, &restored, ring.is_some(), &output)?;
    match (&restored.keys, args.include_keys) {
        (Some(_), false) => output.remark("the archive has keys, which were left out; --include-keys takes them"),
        (None, true) => output.remark("the archive has no keys; the server makes new ones"),
        _ => {}
    }
    Ok(())
}

/// Gives the restored store a new id, because from now on its registrations differ from those of
/// the original store. So an index of the one cannot be used with the records of the other.
async fn identify(data_dir: &Path, index: &SqliteIndex) -> anyhow::Result<()> {
    let id = StoreId::from_bytes(rand::random());
    index.set_store(id, None).await?;
    Ok(FsRecordStore::open(data_dir, Pool::new(1))?.set_store_id(id).await?)
}

fn report(
    archive: &Path,
    data_dir: &Path,
    restored: &Restored,
    with_keys: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let (from, to) = (archive.to_string_lossy(), data_dir.to_string_lossy());
    output.record(&Record {
        archive: &from,
        data_dir: &to,
        xorbs: restored.xorb_count,
        raw_len: restored.raw_len,
        files: restored.file_count,
        keys: with_keys,
        archive_len: restored.archive_len,
        trailing_garbage: restored.trailing_garbage,
    })?;
    let (xorbs, records) = (Count(restored.xorb_count, "xorb"), Count(restored.file_count, "file record"));
    let keys = if with_keys { "with its keys" } else { "without keys" };
    let raw = Size(restored.raw_len);
    output.line(format_args!("restored {from} to {to}, {keys}: {xorbs}, {raw}, {records}, all verified"))?;
    Ok(())
}

/// The path to which the data directory will be renamed, with links resolved if it exists. Refuses
/// a directory that is not empty, because a restore replaces it.
fn free_place(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let shown = data_dir.display();
    // Removes a trailing `.`: the parent of `dir/.` would be `dir` itself.
    let data_dir: &Path = &data_dir.components().collect::<PathBuf>();
    let parent = data_dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match data_dir.read_dir().map(|mut entries| entries.next().is_none()) {
        Ok(false) => bail!("{shown} is not empty; restore into an empty or new directory"),
        Ok(true) => {
            let target = data_dir.canonicalize().with_context(|| cannot_write(data_dir))?;
            let parent = target.parent().unwrap_or(&target).metadata().with_context(|| cannot_write(data_dir))?;
            if data_dir.metadata().is_ok_and(|metadata| metadata.dev() != parent.dev()) {
                bail!("{shown} is a mount point, which a restored store cannot replace; name a directory inside it");
            }
            Ok(target)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // The rename at the end would fail. Checked now, so that it does not fail after hours.
            if data_dir.symlink_metadata().is_ok() {
                bail!("{shown} is a dangling link; remove it, or name another directory");
            }
            create_directory(parent).with_context(|| cannot_write(data_dir))?;
            Ok(data_dir.to_owned())
        }
        Err(error) => Err(error).with_context(|| cannot_write(data_dir)),
    }
}
