//! `zorb backup`: backs up a store to an archive, or verifies an archive.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::destination::cannot_write;
use super::keys::KeyPlace;
use super::output::{Output, OutputArgs};
use super::remote;
use super::store::{Progress, StoreArgs, advice, check_all_applied, settings_over};
use super::units::{Count, Size};
use crate::blob::records::memory::MemoryRecordStore;
use crate::format::xorb::RepackMode;
use crate::index::sqlite::SqliteIndex;
use crate::runtime::clock::SystemClock;
use crate::runtime::durable::{TempDirectory, TempFile};
use crate::runtime::metrics::Metrics;
use crate::service::archive::{BackedUp, NoBlobs, empty_archive};
use crate::service::{Settings, Store};

/// Back up a store incrementally to an archive, or verify an archive.
///
/// The server may run or not. The first run creates the archive; later runs append the xorbs and
/// files that it does not have yet. A run that is killed leaves an archive that is valid up to its
/// last complete blob; the next run continues from there. What is deleted in the store stays in the
/// archive.
///
/// Every xorb is verified while it is copied. A damaged or missing xorb is reported and left out,
/// with the files that need it; the rest is backed up, and the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    #[command(flatten)]
    store: StoreArgs,
    /// Include the keys that sign tokens and URLs; the archive is then as secret as the keys
    #[arg(long)]
    include_keys: bool,
    /// Back up nothing; verify that the archive can be restored: every hash of every xorb and file
    #[arg(long, conflicts_with_all = ["include_keys", "data_dir"])]
    verify: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record with `--json`.
#[derive(Debug, Serialize)]
struct Record<'a> {
    archive: &'a str,
    xorbs: u64,
    serialized_len: u64,
    files: u64,
    keys: bool,
    problems: u64,
    left_out: u64,
    waiting: u64,
    hub_repos: u64,
    left_out_hub: u64,
    added_len: u64,
    archive_len: u64,
    archive_read_len: u64,
}

/// The record with `--verify --json`.
#[derive(Debug, Serialize)]
struct Proof<'a> {
    archive: &'a str,
    xorbs: u64,
    raw_len: u64,
    files: u64,
    keys: bool,
    archive_len: u64,
    trailing_garbage: bool,
}

pub(super) fn run(args: BackupArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    if args.verify {
        return verify(&args.archive, &output);
    }
    let location = args.store.location()?;
    location.check_index()?;
    let data_dir = &location.data_dir;
    check_outside(&args.archive, data_dir)?;
    let ring = if args.include_keys { Some(KeyPlace::of(&location)?.read_existing()?) } else { None };
    let done = remote::run(async {
        let index = location.open_read_only().await?;
        check_all_applied(&location, &index).await?;
        let archive = open(&args.archive, ring.is_some(), &output)?;
        let settings = settings_over(&location, &index, Arc::new(SystemClock), 1)?;
        // One worker verifies blobs while the other writes the archive.
        let store = Store::new(&Settings { verify_worker_count: 2, ..settings });
        let watch = Progress::new(&output, "backup");
        let done = Box::pin(store.back_up(archive, ring.as_ref(), watch)).await;
        index.close().await;
        let done = done.with_context(|| format!("cannot back up to {}", args.archive.display()));
        done.map_err(|error| advice::explain(&location, error))
    })?;
    report(&args.archive, &done, &output)
}

/// Prints what the backup has added. Fails if xorbs could not be read.
fn report(archive: &Path, done: &BackedUp, output: &Output) -> anyhow::Result<()> {
    let path = archive.to_string_lossy();
    output.record(&Record {
        archive: &path,
        xorbs: done.xorb_count,
        serialized_len: done.serialized_len,
        files: done.file_count,
        keys: done.added_keys,
        problems: done.problem_count,
        left_out: done.left_out_count,
        waiting: done.waiting_count,
        hub_repos: done.hub_count,
        left_out_hub: done.left_out_hub_count,
        added_len: done.added_len,
        archive_len: done.archive_len,
        archive_read_len: done.archive_read_len,
    })?;
    let (xorbs, files) = (Count(done.xorb_count, "xorb"), Count(done.file_count, "file"));
    if done.xorb_count == 0 && done.file_count == 0 && done.hub_count == 0 && !done.added_keys {
        output.line(format_args!("{path} is up to date; nothing was added ({})", Size(done.archive_len)))?;
    } else {
        let keys = if done.added_keys { " and the keys" } else { "" };
        let hub = match done.hub_count {
            0 => String::new(),
            1 => ", 1 Hub repository".to_owned(),
            count => format!(", {count} Hub repositories"),
        };
        let (read, added, len) = (Size(done.serialized_len), Size(done.added_len), Size(done.archive_len));
        output.line(format_args!("{xorbs}, {read}, {files}{hub}{keys} to {path}, which grew by {added} to {len}"))?;
    }
    if done.waiting_count > 0 {
        let waiting = Count(done.waiting_count, "file");
        output.line(format_args!("{waiting} arrived during the backup; the next run includes what is missing"))?;
    }
    let (xorbs, repos) = (done.problem_count, done.left_out_hub_count);
    if xorbs == 0 && repos == 0 {
        return Ok(());
    }
    let mut left_out = Vec::new();
    if xorbs > 0 {
        let (files, verb) = (Count(done.left_out_count, "file"), if done.left_out_count == 1 { "is" } else { "are" });
        left_out.push(format!("{} cannot be read, so {files} {verb} left out", Count(xorbs, "xorb")));
    }
    if repos > 0 {
        let noun = if repos == 1 { "Hub repository is" } else { "Hub repositories are" };
        left_out.push(format!("{repos} {noun} damaged and left out"));
    }
    bail!("{}; everything else is in the archive", left_out.join(", and "))
}

/// Refuses an archive inside the data directory: it would be lost together with the store.
fn check_outside(archive: &Path, data_dir: &Path) -> anyhow::Result<()> {
    let dir = archive.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = dir.canonicalize().with_context(|| cannot_write(archive))?;
    let data_dir = data_dir.canonicalize().with_context(|| format!("cannot read {}", data_dir.display()))?;
    if dir.starts_with(&data_dir) {
        bail!("{} is inside the data directory {}; choose a path outside it", archive.display(), data_dir.display());
    }
    Ok(())
}

/// Opens the archive, and creates an empty one if the file does not exist. An existing file is
/// never replaced.
fn open(path: &Path, with_keys: bool, output: &Output) -> anyhow::Result<File> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => bail!("{} is not a regular file", path.display()),
        Ok(metadata) if metadata.len() == 0 => {
            bail!("{} is empty, so it is not an archive; remove it to create one", path.display())
        }
        Ok(metadata) if with_keys && is_open_to_others(&metadata) => {
            output.remark(format_args!("{} contains keys and is readable by other users: chmod 600", path.display()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => create(path).with_context(|| cannot_write(path))?,
        Err(error) => return Err(error).with_context(|| cannot_write(path)),
    }
    // Append mode is not possible, because bytes after the committed end must be overwritten.
    File::options().read(true).write(true).open(path).with_context(|| cannot_write(path))
}

fn create(path: &Path) -> anyhow::Result<()> {
    let mut file = TempFile::create_beside(path)?;
    // The archive contains the files of all repositories.
    file.restrict_to_owner()?;
    file.write(&empty_archive()?)?;
    match file.publish_new(path) {
        // Another process has just created it; `back_up` checks whether it is an archive.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        result => Ok(result?),
    }
}

fn is_open_to_others(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o077 != 0
}

/// Verifies an archive by restoring it into a store that discards all bytes and has a temporary
/// index.
fn verify(path: &Path, output: &Output) -> anyhow::Result<()> {
    let archive = open_to_read(path)?;
    let directory = std::env::temp_dir();
    let directory = TempDirectory::create(&directory).with_context(|| cannot_write(&directory))?;
    let proven = remote::run(async {
        let index = SqliteIndex::open(&directory.path().join("index.sqlite")).await?;
        let (blobs, records) = (Arc::new(NoBlobs), Arc::new(MemoryRecordStore::new()));
        let (clock, metrics) = (Arc::new(SystemClock), Arc::new(Metrics::new()));
        let settings = Settings::over(blobs, records, Arc::new(index.clone()), clock, metrics);
        let store = Store::new(&Settings { verify_worker_count: worker_count(), ..settings });
        let watch = Progress::new(output, "verify");
        // The bytes are discarded, so compressing them would waste time.
        let proven = Box::pin(store.restore(archive, RepackMode::Uncompressed, watch)).await;
        index.close().await;
        proven.with_context(|| format!("{} is not a valid backup", path.display()))
    })?;
    let (xorbs, files) = (Count(proven.xorb_count, "xorb"), Count(proven.file_count, "file record"));
    output.record(&Proof {
        archive: &path.to_string_lossy(),
        xorbs: proven.xorb_count,
        raw_len: proven.raw_len,
        files: proven.file_count,
        keys: proven.keys.is_some(),
        archive_len: proven.archive_len,
        trailing_garbage: proven.trailing_garbage,
    })?;
    let keys = if proven.keys.is_some() { ", keys" } else { "" };
    let (raw, len) = (Size(proven.raw_len), Size(proven.archive_len));
    output.line(format_args!("{} is valid: {xorbs}, {raw}, {files}{keys}, in {len}", path.display()))?;
    Ok(())
}

/// Opens an archive for reading. Fails if it is not a regular file.
pub(super) fn open_to_read(path: &Path) -> anyhow::Result<File> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        bail!("{} is not a regular file", path.display());
    }
    Ok(file)
}

/// The number of threads for a restore or a check: one per CPU to process xorbs, and one that reads
/// the archive.
pub(super) fn worker_count() -> usize {
    available_parallelism().map_or(1, std::num::NonZero::get) + 1
}
