//! `zorb backup`: a store into an archive, or a proof of the archive.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tokio::time::sleep;

use super::destination::cannot_write;
use super::output::{Output, OutputArgs};
use super::store::{Progress, StoreArgs, advice, compare, index_path, open_read_only, try_lock};
use super::units::{Count, Size};
use super::{keys, remote};
use crate::blob::fs::FsBlobStore;
use crate::format::xorb::RepackMode;
use crate::index::sqlite::SqliteIndex;
use crate::runtime::blocking::Pool;
use crate::runtime::clock::SystemClock;
use crate::runtime::durable::{TempDirectory, TempFile};
use crate::service::access::KeyRing;
use crate::service::archive::{BackedUp, NoBlobs, Origin, Target, empty_archive};

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

/// Interval between two checks whether registrations in flight have finished.
const SETTLE_PAUSE: Duration = Duration::from_millis(500);

/// How often that is looked at: a registration takes milliseconds, and on the slowest disks a
/// second.
const SETTLE_COUNT: usize = 20;

/// What `--json` prints.
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
    added_len: u64,
    archive_len: u64,
    archive_read_len: u64,
}

/// What `--verify --json` prints.
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
    let data_dir = args.store.data_dir()?;
    index_path(&data_dir)?;
    check_outside(&args.archive, &data_dir)?;
    let ring = if args.include_keys { Some(read_keys(&data_dir)?) } else { None };
    let done = remote::run(async {
        let index = open_read_only(&data_dir).await?;
        check_taken(&data_dir, &index).await?;
        let archive = open(&args.archive, ring.is_some(), &output)?;
        let origin = Origin {
            blobs: Arc::new(FsBlobStore::open_existing(&data_dir, Pool::new(1))),
            index: Arc::new(index.clone()),
            pool: Pool::new(2),
        };
        let watch = Progress::new(&output, "backup");
        let done = Box::pin(origin.back_up(archive, ring.as_ref(), watch)).await;
        index.close().await;
        let done = done.with_context(|| format!("cannot back up to {}", args.archive.display()));
        done.map_err(|error| advice::explain(&data_dir, error))
    })?;
    report(&args.archive, &done, &output)
}

/// Checks that the index has applied every record that exists at the call: the backup would
/// silently lack what it has not applied. Waits for concurrent registrations.
async fn check_taken(data_dir: &Path, index: &SqliteIndex) -> anyhow::Result<()> {
    let mut tail = compare(data_dir, index).await?;
    for _ in 0..SETTLE_COUNT {
        if tail.is_empty() || !is_served(data_dir) {
            break;
        }
        sleep(SETTLE_PAUSE).await;
        tail.retain_of(&compare(data_dir, index).await?);
    }
    if tail.is_empty() {
        return Ok(());
    }
    let (dir, count) = (data_dir.display(), Count(tail.len() as u64, "record"));
    bail!("the index of {dir} has not applied {count} of the last run; start zorb serve once to apply them")
}

/// Whether a server runs there, or that cannot be told.
fn is_served(data_dir: &Path) -> bool {
    !matches!(try_lock(data_dir), Ok(Some(_)))
}

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
        added_len: done.added_len,
        archive_len: done.archive_len,
        archive_read_len: done.archive_read_len,
    })?;
    let (xorbs, files) = (Count(done.xorb_count, "xorb"), Count(done.file_count, "file"));
    if done.xorb_count == 0 && done.file_count == 0 && !done.added_keys {
        output.line(format_args!("{path} is up to date; nothing was added ({})", Size(done.archive_len)))?;
    } else {
        let keys = if done.added_keys { " and the keys" } else { "" };
        let (read, added, len) = (Size(done.serialized_len), Size(done.added_len), Size(done.archive_len));
        output.line(format_args!("{xorbs}, {read}, {files}{keys} to {path}, which grew by {added} to {len}"))?;
    }
    if done.waiting_count > 0 {
        let waiting = Count(done.waiting_count, "file");
        output.line(format_args!("{waiting} arrived during the backup; the next run includes what is missing"))?;
    }
    match done.problem_count {
        0 => Ok(()),
        count => bail!(
            "{} cannot be read, so {} left out; everything else is in the archive",
            Count(count, "xorb"),
            if done.left_out_count == 1 {
                "1 file is".to_owned()
            } else {
                format!("{} files are", done.left_out_count)
            }
        ),
    }
}

/// A backup inside the data directory would be lost with it, and would back up itself.
fn check_outside(archive: &Path, data_dir: &Path) -> anyhow::Result<()> {
    let dir = archive.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = dir.canonicalize().with_context(|| cannot_write(archive))?;
    let data_dir = data_dir.canonicalize().with_context(|| format!("cannot read {}", data_dir.display()))?;
    if dir.starts_with(&data_dir) {
        bail!("{} is inside the data directory {}; choose a path outside it", archive.display(), data_dir.display());
    }
    Ok(())
}

fn read_keys(data_dir: &Path) -> anyhow::Result<KeyRing> {
    let ring = keys::read(data_dir)?;
    ring.with_context(|| format!("no keys in {}: no server has run there yet", data_dir.display()))
}

/// Opens the archive, and makes an empty one where there is no file. A file that is there is never
/// replaced.
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
    // Not to append: the end of what is committed is not always the end of the file.
    File::options().read(true).write(true).open(path).with_context(|| cannot_write(path))
}

fn create(path: &Path) -> anyhow::Result<()> {
    let mut file = TempFile::create_beside(path)?;
    // It has the files of all repositories.
    file.restrict_to_owner()?;
    file.write(&empty_archive()?)?;
    match file.publish_new(path) {
        // Another process has just created it; whether it is an archive is checked next.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        result => Ok(result?),
    }
}

fn is_open_to_others(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o077 != 0
}

/// Restores into a store that discards all bytes, and a temporary index.
fn verify(path: &Path, output: &Output) -> anyhow::Result<()> {
    let archive = open_to_read(path)?;
    let directory = std::env::temp_dir();
    let directory = TempDirectory::create(&directory).with_context(|| cannot_write(&directory))?;
    let proven = remote::run(async {
        let index = SqliteIndex::open(&directory.path().join("index.sqlite")).await?;
        let target = Target {
            blobs: Arc::new(NoBlobs),
            index: Arc::new(index.clone()),
            clock: Arc::new(SystemClock),
            pool: workers(),
            mode: RepackMode::Uncompressed,
        };
        let proven = Box::pin(target.restore(archive, Progress::new(output, "verify"))).await;
        index.close().await;
        proven.with_context(|| format!("{} is not a valid backup", path.display()))
    })?;
    let (xorbs, files) = (Count(proven.xorb_count, "xorb"), Count(proven.file_count, "record"));
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
    output.line(format_args!("{} is valid: {xorbs}, {raw}, {files} of files{keys}, in {len}", path.display()))?;
    Ok(())
}

/// The archive, to be read.
pub(super) fn open_to_read(path: &Path) -> anyhow::Result<File> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        bail!("{} is not a regular file", path.display());
    }
    Ok(file)
}

/// Threads that make xorbs, and the one that reads the archive.
pub(super) fn workers() -> Pool {
    Pool::new(available_parallelism().map_or(1, std::num::NonZero::get) + 1)
}
