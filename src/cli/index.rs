//! `zorb index rebuild`: builds a new index from the blobs and records of a store.
//!
//! After success, the new index is in place, and an old one stays beside it under another name. A
//! crash before the replacement leaves the old index in place. If a crash interrupts the
//! replacement, the next start of a server or the next rebuild completes it.

use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::collector::DeletionLock;
use super::output::{Output, OutputArgs};
use super::store::{Progress, StoreArgs};
use super::units::{Count, Size};
use super::{remote, serve};
use crate::blob::fs::FsBlobStore;
use crate::blob::records::RecordStore;
use crate::blob::records::fs::FsRecordStore;
use crate::index::sqlite::{Replacement, SqliteIndex};
use crate::index::{HubIndex, IndexErrorKind};
use crate::runtime::blocking::Pool;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::metrics::Metrics;
use crate::service::{Rebuilt, Settings, Store};

/// Bytes of xorb layouts that are cached. A small cache is enough, because each layout is read once
/// or twice.
const LAYOUT_CACHE_LEN: u64 = 16 << 20;

/// Rebuild the index
#[derive(Debug, Subcommand)]
pub(super) enum IndexCommand {
    Rebuild(RebuildArgs),
}

/// Rebuild the index of a store from its blobs and registration records.
///
/// Use it when the index is lost or damaged. No server may run on the data directory. Every blob is
/// read and verified, so the run takes as long as reading the whole store. The new index replaces
/// the old one when it is complete, and the old one stays beside it as index.sqlite.old-...; until
/// then nothing changes, and a run that is killed can be repeated.
///
/// Damaged blobs and records are reported and left out, with the files that need them; everything
/// else is in the new index, and the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct RebuildArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Continue although some files were registered before records existed and the old index, which
    /// lists them, cannot be read: these files are lost
    #[arg(long)]
    accept_incomplete: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record with `--json`, also of `zorb db rebuild`.
#[derive(Debug, Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    place: Place<'a>,
    xorbs: u64,
    serialized_len: u64,
    records: u64,
    damaged_xorbs: u64,
    damaged_records: u64,
    left_out: u64,
    left_out_hub: u64,
}

/// The rebuilt index.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Place<'a> {
    /// The one of this data directory, and the name of the old one.
    Directory { data_dir: &'a str, old_index: Option<&'a str> },
    /// The one in this database.
    Database { database: &'a str },
}

pub(super) fn run(command: IndexCommand) -> anyhow::Result<()> {
    match command {
        IndexCommand::Rebuild(args) => rebuild(args),
    }
}

fn rebuild(args: RebuildArgs) -> anyhow::Result<()> {
    rebuild_at(args, &(Arc::new(SystemClock) as Arc<dyn Clock>)).map(drop)
}

/// Runs the command with this clock. Tests pass one that they set.
pub(super) fn rebuild_at(args: RebuildArgs, clock: &Arc<dyn Clock>) -> anyhow::Result<Rebuilt> {
    let output = Output::new(args.output);
    let location = args.store.location()?;
    location.require_sqlite("zorb index rebuild makes an SQLite index")?;
    let data_dir = location.data_dir;
    if !data_dir.join("xorbs").is_dir() {
        bail!("no store in {}; name its directory with --data-dir", data_dir.display());
    }
    let _lock = serve::lock(&data_dir)?;
    let _deletion = DeletionLock::take(&data_dir)?
        .with_context(|| format!("GC is running in {}; try again later", data_dir.display()))?;
    let replacement = Replacement::of(&data_dir.join("index.sqlite"));
    // Completes the replacement of an earlier rebuild that was killed.
    replacement.finish()?;
    let rebuilt = remote::run(async {
        let records = Arc::new(FsRecordStore::open(&data_dir, Pool::new(4))?);
        complete_records(&data_dir, &records, clock, args.accept_incomplete, &output).await?;
        // Without syncs, because a crash makes this index worthless anyway; `publish` makes it
        // durable.
        let index = SqliteIndex::open_unsynced(&replacement.begin()?).await?;
        let store = open_store(&data_dir, &records, &index, Arc::clone(clock))?;
        let watch: Arc<dyn crate::service::archive::Watch> = Progress::new(&output, "rebuild");
        let rebuilt = Box::pin(store.rebuild(&watch)).await;
        index.close().await;
        Ok(rebuilt?)
    })?;
    // Outside `remote::run`, so that a signal cannot interrupt the replacement.
    let old = replacement.publish(clock.now())?;
    // The id is written after the index, as at the first start of a server. If this process is
    // killed before, the next start writes it.
    remote::run(identify(&data_dir, &rebuilt))?;
    let old = old.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    let place = Place::Directory { data_dir: &data_dir.to_string_lossy(), old_index: old.as_deref() };
    report(place, &rebuilt, &output)?;
    Ok(rebuilt)
}

/// Writes the id of the store from the index into the data directory, if that has no id.
async fn identify(data_dir: &Path, rebuilt: &Rebuilt) -> anyhow::Result<()> {
    let records = FsRecordStore::open(data_dir, Pool::new(1))?;
    if let (Some(id), None) = (rebuilt.store_id, records.store_id().await?) {
        records.set_store_id(id).await?;
    }
    Ok(())
}

/// Ensures that all registrations have records, because the new index has only recorded files.
/// Registrations of an old version have none; their records are written from the old index.
///
/// # Errors
///
/// The old index is missing or cannot be read, and the user does not accept an incomplete index.
async fn complete_records(
    data_dir: &Path,
    records: &Arc<FsRecordStore>,
    clock: &Arc<dyn Clock>,
    accept_incomplete: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let old = data_dir.join("index.sqlite");
    // An empty index is treated as missing, because it would say that nothing was registered.
    let is_there = old.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
    if records.is_complete().await? {
        let is_certain = match has_unrecorded_hub(&old).await {
            Some(is_certain) if is_there => is_certain,
            _ => return Ok(()),
        };
        return match from_old(data_dir, records, clock, &old).await {
            Ok(_) => Ok(()),
            Err(error) if is_certain && !accept_incomplete => Err(error).context(
                "some repositories of the Hub have no record, and the old index cannot be used; with \
                 --accept-incomplete the new index does not have them",
            ),
            Err(error) => {
                output.remark(format_args!(
                    "if an earlier version has made repositories of the Hub, they are lost, because the old index \
                     cannot be used: {error:#}"
                ));
                Ok(())
            }
        };
    }
    // `Ok(false)` means that there is no old index.
    let completed = if is_there { from_old(data_dir, records, clock, &old).await } else { Ok(false) };
    match completed {
        Ok(true) => Ok(()),
        _ if accept_incomplete => Ok(records.set_complete().await?),
        Ok(false) => bail!(
            "no registration records in {}, and no index; with --accept-incomplete the new index has all xorbs \
             and no files",
            data_dir.display()
        ),
        Err(error) => Err(error).context(
            "some registrations have no record, and the old index cannot be read; with --accept-incomplete the \
             new index has only the recorded files",
        ),
    }
}

/// Whether an old index certainly has Hub repositories without records, from a version that wrote
/// none. `None` if it has none, or cannot be read.
async fn has_unrecorded_hub(old: &Path) -> Option<bool> {
    match SqliteIndex::open_read_only(old).await {
        Ok(index) => {
            let found = index.find_unrecorded_hub_repo().await;
            index.close().await;
            found.is_ok_and(|found| found.is_some()).then_some(true)
        }
        Err(error) => (error.kind == IndexErrorKind::Older).then_some(false),
    }
}

/// Writes records for the files that only the old index lists. The result is always `true`.
async fn from_old(
    data_dir: &Path,
    records: &Arc<FsRecordStore>,
    clock: &Arc<dyn Clock>,
    old: &Path,
) -> anyhow::Result<bool> {
    let index = SqliteIndex::open(old).await?;
    let store = open_store(data_dir, records, &index, Arc::clone(clock))?;
    // `agree` fails if the index belongs to another store or is empty, because such an index does
    // not list the files that were registered here.
    let completed = match store.agree(false).await {
        Ok(_) => store.complete_records().await.map(|_| true).map_err(anyhow::Error::from),
        Err(gap) => Err(gap.into()),
    };
    index.close().await;
    completed
}

/// Opens the store over this index, with two disk workers per CPU.
fn open_store(
    data_dir: &Path,
    records: &Arc<FsRecordStore>,
    index: &SqliteIndex,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Arc<Store>> {
    let workers = available_parallelism().map_or(1, NonZero::get);
    let blobs = Arc::new(FsBlobStore::open(data_dir, Pool::new(2 * workers))?);
    let (records, index) = (Arc::clone(records), Arc::new(index.clone()));
    let settings = Settings::over(blobs, records, index, clock, Arc::new(Metrics::new()));
    Ok(Store::new(&Settings { verify_worker_count: workers, layout_cache_len: LAYOUT_CACHE_LEN, ..settings }))
}

/// Prints the result.
///
/// # Errors
///
/// Something was damaged or left out.
pub(super) fn report(place: Place<'_>, rebuilt: &Rebuilt, output: &Output) -> anyhow::Result<()> {
    output.record(&Record {
        place,
        xorbs: rebuilt.xorb_count,
        serialized_len: rebuilt.serialized_len,
        records: rebuilt.record_count,
        damaged_xorbs: rebuilt.damaged_xorb_count,
        damaged_records: rebuilt.damaged_record_count,
        left_out: rebuilt.left_out_count,
        left_out_hub: rebuilt.left_out_hub_count,
    })?;
    let (xorbs, records) = (Count(rebuilt.xorb_count, "xorb"), Count(rebuilt.record_count, "record"));
    let (index, old_index) = match place {
        Place::Directory { data_dir, old_index: None } => (format!("of {data_dir}"), String::new()),
        Place::Directory { data_dir, old_index: Some(old) } => {
            (format!("of {data_dir}"), format!("; the old index is {old}"))
        }
        Place::Database { database } => (format!("in {database}"), String::new()),
    };
    let len = Size(rebuilt.serialized_len);
    output.line(format_args!("rebuilt the index {index}: {xorbs}, {len}, from {records}{old_index}"))?;
    if rebuilt.has_problems() {
        let damaged = Count(rebuilt.damaged_xorb_count, "xorb");
        let (records, left) = (Count(rebuilt.damaged_record_count, "record"), rebuilt.left_out_count);
        let hub = match rebuilt.left_out_hub_count {
            0 => String::new(),
            count => format!(" and {} of Hub repositories", Count(count, "change")),
        };
        bail!(
            "{damaged} and {records} damaged, {left} file registrations{hub} left out; everything else is in the \
             new index"
        );
    }
    Ok(())
}
