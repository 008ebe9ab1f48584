//! `zorb restore`: restores a store from an archive.
//!
//! *Into a data directory*: it appears under its name when the whole archive was verified. A
//! failure or a signal removes the temporary directory. A crash leaves it beside the data
//! directory.
//!
//! *Into a database and a bucket*: first the index gets an id, and the bucket gets the same id at
//! the end. Until then no server starts there (`check_owner`). After a failure, a signal or a crash
//! the same command continues: the xorbs stay, because their names prove them, and everything else
//! is restored again, because the archive was not verified as a whole.

use std::collections::HashSet;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::backup::{open_to_read, worker_count};
use super::destination::cannot_write;
use super::keys::SharedKeys;
use super::output::{Output, OutputArgs};
use super::store::{Progress, StoreArgs, StoreBlobs, StoreIndex, StoreLocation, advice, check_place};
use super::units::{Count, Size};
use super::{keys, remote, serve};
use crate::blob::BlobKey;
use crate::blob::fs::FsBlobStore;
use crate::blob::records::RecordStore;
use crate::blob::records::fs::FsRecordStore;
use crate::format::StoreId;
use crate::format::xorb::RepackMode;
use crate::index::sqlite::SqliteIndex;
use crate::index::{RecordIndex, XorbHealth};
use crate::runtime::blocking::Pool;
use crate::runtime::clock::SystemClock;
use crate::runtime::durable::{TempDirectory, create_directory};
use crate::runtime::metrics::Metrics;
use crate::service::archive::Restored;
use crate::service::{Settings, Store, has_anything};

/// Restore a store from an archive.
///
/// The data directory must not exist, or be empty. It appears when the whole archive was verified:
/// every hash of every xorb and file, and those of the archive itself. Until then everything is in
/// a temporary directory beside it, so the parent directory must be writable. A damaged archive
/// changes nothing; the exit code is 1, and stderr says up to where it is valid.
///
/// With the settings database_url and s3_..., the store is restored into the database and the
/// bucket, which must be empty; create the schema with "zorb db migrate" before. No server can use
/// it until the whole archive was verified. If it is interrupted, the same command continues it.
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
    let archive = open_to_read(&args.archive)?;
    let source = Source { path: &args.archive, archive, include_keys: args.include_keys };
    let restored = if location.shared_database().is_some() {
        into_bucket(source, &location, &output)?
    } else {
        location.require_sqlite("zorb restore makes a store with an SQLite index, or one in a bucket")?;
        into_directory(source, &location.data_dir, &output)?
    };
    match (&restored.keys, args.include_keys) {
        (Some(_), false) => output.remark("the archive has keys, which were left out; --include-keys takes them"),
        (None, true) => output.remark("the archive has no keys; the server makes new ones"),
        _ => {}
    }
    Ok(())
}

/// The archive, and whether its keys are restored, too.
struct Source<'a> {
    path: &'a Path,
    archive: File,
    include_keys: bool,
}

impl Source<'_> {
    /// Restores the archive into the store with these settings.
    async fn restore(self, settings: Settings, output: &Output) -> anyhow::Result<Restored> {
        let store = Store::new(&Settings { verify_worker_count: worker_count(), ..settings });
        let watch = Progress::new(output, "restore");
        let restored = Box::pin(store.restore(self.archive, RepackMode::Compressed, watch)).await;
        restored.with_context(|| format!("cannot restore {}", self.path.display()))
    }
}

fn into_directory(source: Source<'_>, data_dir: &Path, output: &Output) -> anyhow::Result<Restored> {
    let target = free_place(data_dir)?;
    let (path, include_keys) = (source.path, source.include_keys);
    let dir = TempDirectory::create_beside(&target).with_context(|| cannot_write(data_dir))?;
    // When `run` returns, its runtime has ended, and no task writes into the directory any more.
    let restored = remote::run(async {
        let index = SqliteIndex::open(&dir.path().join("index.sqlite")).await?;
        let blobs = Arc::new(FsBlobStore::open(dir.path(), Pool::new(16))?);
        let records = Arc::new(FsRecordStore::open(dir.path(), Pool::new(1))?);
        let (clock, metrics) = (Arc::new(SystemClock), Arc::new(Metrics::new()));
        let settings = Settings::over(blobs, records, Arc::new(index.clone()), clock, metrics);
        let restored = source.restore(settings, output).await;
        let identified = identify(dir.path(), &index).await;
        index.close().await;
        restored.and_then(|restored| identified.map(|()| restored))
    })?;
    let ring = restored.keys.as_ref().filter(|_| include_keys);
    if let Some(ring) = ring {
        keys::write(dir.path(), ring)?;
    }
    dir.publish(&target).with_context(|| cannot_write(data_dir))?;
    report(path, &data_dir.to_string_lossy(), &restored, ring.is_some(), output)?;
    Ok(restored)
}

/// Restores into the database and the bucket of this location, while no other process uses them.
fn into_bucket(source: Source<'_>, location: &StoreLocation, output: &Output) -> anyhow::Result<Restored> {
    location.check_kind()?;
    check_place(&location.data_dir, false)?;
    let (path, include_keys) = (source.path, source.include_keys);
    let restored = remote::run(location.changing(async |membership| {
        let _lock = serve::lock(&location.data_dir)?;
        let opened = location.open_database(membership.as_ref()).await?;
        let index = opened.context("the restored index is not in a database")?;
        let restored = into_index(source, location, &index, output).await;
        index.close().await;
        restored.map_err(|error| advice::explain(location, error))
    }))?;
    let with_keys = restored.keys.is_some() && include_keys;
    report(path, &location.describe_blobs(), &restored, with_keys, output)?;
    Ok(restored)
}

async fn into_index(
    source: Source<'_>,
    location: &StoreLocation,
    index: &StoreIndex,
    output: &Output,
) -> anyhow::Result<Restored> {
    let bucket = location.new_bucket(index, worker_count())?.context("the restored blobs are not in a bucket")?;
    let keys = SharedKeys::of(location).context("the restored keys are not in a database")?;
    let id = begin(location, index, &bucket, output).await?;
    let restored = fill(source, index, (bucket, keys), id, output).await;
    restored.with_context(|| {
        "the database and the bucket have a part of the archive, which no server uses: repeat the command to continue, \
         or remove what is in these"
    })
}

/// Restores the archive and its keys, and gives the bucket the id.
async fn fill(
    source: Source<'_>,
    index: &StoreIndex,
    (bucket, keys): (StoreBlobs, SharedKeys),
    id: StoreId,
    output: &Output,
) -> anyhow::Result<Restored> {
    let (include_keys, StoreBlobs { blobs, records, .. }) = (source.include_keys, bucket);
    let (clock, metrics) = (Arc::new(SystemClock), Arc::new(Metrics::new()));
    let settings = Settings::over(blobs, Arc::clone(&records), index.shared(), clock, metrics);
    let restored = source.restore(settings, output).await?;
    if let Some(ring) = restored.keys.clone().filter(|_| include_keys) {
        keys.write(ring, index).await?;
    }
    // From here on a server can use the store. Until then the same command continues.
    records.set_store_id(id).await?;
    index.end_restore().await?;
    Ok(restored)
}

/// Continues an interrupted restore to this place. Otherwise checks that no store is in this index
/// or this bucket, and gives the index an id. Returns the id.
async fn begin(
    location: &StoreLocation,
    index: &StoreIndex,
    bucket: &StoreBlobs,
    output: &Output,
) -> anyhow::Result<StoreId> {
    let blobs = location.describe_blobs();
    if bucket.records.store_id().await?.is_some() {
        bail!("a store is in {blobs} already; name an empty bucket or another s3_prefix, and an empty database");
    }
    if let Some(id) = index.continue_restore(&blobs).await? {
        let stored = Count(check_stored(index, bucket).await?, "xorb");
        output.remark(format_args!("continuing an interrupted restore, which has stored {stored}"));
        return Ok(id);
    }
    let shared = index.shared();
    let (clock, metrics) = (Arc::new(SystemClock), Arc::new(Metrics::new()));
    let store = Store::new(&Settings::over(
        Arc::clone(&bucket.blobs),
        Arc::clone(&bucket.records),
        Arc::clone(&shared),
        clock,
        metrics,
    ));
    // A rebuild that was interrupted leaves rows and no id. A restore would take its xorbs as
    // stored.
    if store.has_index().await? {
        bail!(
            "the database has the index of another store, or of an interrupted rebuild, or of an interrupted restore to \
             another s3_bucket or s3_prefix; name an empty database, and another s3_prefix"
        );
    }
    if has_anything(bucket.blobs.as_ref(), bucket.records.as_ref()).await? {
        bail!("{blobs} has objects already; name an empty bucket or another s3_prefix");
    }
    let id = StoreId::from_bytes(rand::random());
    index.begin_restore(id, &blobs).await?;
    Ok(id)
}

/// Checks that the bucket has the blobs of all xorbs of an interrupted restore. Returns their
/// number.
async fn check_stored(index: &StoreIndex, bucket: &StoreBlobs) -> anyhow::Result<u64> {
    let present: HashSet<BlobKey> = bucket.blobs.list().await?.into_iter().collect();
    let (shared, mut stored_count, mut last) = (index.shared(), 0, None);
    loop {
        let page = shared.health_after(last, 1000).await?;
        let Some(end) = page.last() else { return Ok(stored_count) };
        last = Some(end.hash);
        stored_count += page.len() as u64;
        let is_missing = |xorb: &&XorbHealth| !present.contains(&BlobKey::new(xorb.hash, xorb.incarnation));
        if let Some(missing) = page.iter().find(is_missing) {
            bail!(
                "the bucket lacks xorb {}, which the interrupted restore had stored; name an empty database and another \
                 s3_prefix",
                missing.hash
            );
        }
    }
}

/// Gives the restored store a new id, because from now on its registrations differ from those of
/// the original store. So an index of the one cannot be used with the records of the other.
async fn identify(data_dir: &Path, index: &SqliteIndex) -> anyhow::Result<()> {
    let id = StoreId::from_bytes(rand::random());
    index.set_store(id, None).await?;
    Ok(FsRecordStore::open(data_dir, Pool::new(1))?.set_store_id(id).await?)
}

fn report(archive: &Path, to: &str, restored: &Restored, with_keys: bool, output: &Output) -> anyhow::Result<()> {
    let from = archive.to_string_lossy();
    output.record(&Record {
        archive: &from,
        data_dir: to,
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
