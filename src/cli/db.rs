//! `zorb db migrate`: creates or migrates the schema of the PostgreSQL database of an index.
//! `zorb db rebuild`: fills a new database from the blobs and records of a store.
//!
//! A rebuild gives the database the id of the store at its end. Until then no server starts with it
//! (`Gap::EmptyIndex`), and no other rebuild begins there. So what a failure, a signal or a crash
//! leaves must be discarded. Blobs and records are not changed; with a bucket, a record of nothing
//! is added, which is the last applied one.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::backup::worker_count;
use super::collector::DeletionLock;
use super::index::{Place, report};
use super::output::{Output, OutputArgs};
use super::store::{Progress, StoreArgs, StoreBlobs, StoreIndex, StoreLocation, advice, check_place, postgres};
use super::{remote, serve};
use crate::config::{DatabaseUrl, RawConfig};
use crate::runtime::clock::SystemClock;
use crate::runtime::metrics::Metrics;
use crate::service::archive::Watch;
use crate::service::{Rebuilt, Settings, Store};

/// Blobs that are read at once from a bucket. Each waits for the S3 store most of the time.
const DISK_WORKER_COUNT: usize = 16;

/// Prepare the PostgreSQL database of the index
#[derive(Debug, Subcommand)]
pub(super) enum DbCommand {
    Migrate(MigrateArgs),
    Rebuild(RebuildArgs),
}

/// Create the schema of the database, or bring it to the version of this zorb.
///
/// `zorb serve` never changes the schema. Run this command once before the first start, and after
/// each update of zorb while the server is stopped. It changes nothing if the schema is current.
/// The database must exist, and its user must be allowed to create tables.
#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    /// The database; better set ZORB_DATABASE_URL, because other users can see arguments
    #[arg(long, value_name = "URL")]
    database_url: Option<DatabaseUrl>,
    /// TOML file with settings; only database_url is used
    #[arg(long, env = "ZORB_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record with `--json`.
#[derive(Debug, Serialize)]
struct Record<'a> {
    database: &'a str,
}

pub(super) fn run(command: DbCommand) -> anyhow::Result<()> {
    match command {
        DbCommand::Migrate(args) => migrate(args),
        DbCommand::Rebuild(args) => rebuild(args),
    }
}

/// Fill a new database from the blobs and registration records of a store.
///
/// Use it when the database is lost, or was set back. Stop all servers, create a new database, run
/// "zorb db migrate", and then this command with the settings of the servers and the new database.
/// Every blob is read and verified, so the run takes as long as reading the whole store. Blobs and
/// records are not changed. A run that fails or is killed leaves a part, with which no server
/// starts: create the database anew.
///
/// Tokens, users and organizations were in the lost database: issue and add them again.
///
/// Damaged blobs and records are reported and left out, with the files that need them; everything
/// else is in the database, and the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct RebuildArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn rebuild(args: RebuildArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let location = args.store.location()?;
    let Some(url) = &location.database else {
        bail!(
            "no database: set database_url, for example with ZORB_DATABASE_URL; zorb index rebuild rebuilds an index \
             in a data directory"
        );
    };
    location.check_kind()?;
    // With a bucket, the data directory may be that of a new machine.
    check_place(&location.data_dir, location.s3.is_none())?;
    let rebuilt = remote::run(location.changing(async |membership| {
        let _lock = serve::lock(&location.data_dir)?;
        let deletion = location.s3.is_none().then(|| DeletionLock::take(&location.data_dir)).transpose()?;
        if let Some(None) = deletion {
            bail!("GC is running in {}; try again later", location.data_dir.display());
        }
        let opened = location.open_database(membership.as_ref()).await?;
        let index = opened.context("the rebuilt index is not in a database")?;
        let rebuilt = fill(&location, &index, &output).await;
        index.close().await;
        rebuilt.map_err(|error| advice::explain(&location, error))
    }))?;
    report(Place::Database { database: &postgres::describe(url) }, &rebuilt, &output)
}

/// Fills this index, which must be new, from the blobs and records of this location.
async fn fill(location: &StoreLocation, index: &StoreIndex, output: &Output) -> anyhow::Result<Rebuilt> {
    let StoreBlobs { blobs, records, .. } = location.existing_blobs(index, DISK_WORKER_COUNT)?;
    let place = location.describe_blobs();
    if records.store_id().await?.is_none() {
        bail!("no store in {place}; check the settings");
    }
    if !records.is_complete().await? {
        bail!(
            "some files in {place} may have no record, because no server has run since the store was made or restored: \
             restore it from the backup (docs/backup.md)"
        );
    }
    let settings = Settings::over(blobs, records, index.shared(), Arc::new(SystemClock), Arc::new(Metrics::new()));
    let store = Store::new(&Settings { verify_worker_count: worker_count(), ..settings });
    if store.has_index().await? {
        bail!("the database has an index already, or a part of one; name a new database, after \"zorb db migrate\"");
    }
    let watch: Arc<dyn Watch> = Progress::new(output, "rebuild");
    Ok(Box::pin(store.rebuild(&watch)).await?)
}

fn migrate(args: MigrateArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let flags = RawConfig { database_url: args.database_url, ..RawConfig::default() };
    let environment = RawConfig::from_env(|name| std::env::var(name).ok())?;
    let file = args.config.as_deref().map(RawConfig::read).transpose()?.unwrap_or_default();
    let Some(url) = DatabaseUrl::of(flags.or(environment).or(file).database_url)? else {
        bail!("no database: set database_url, for example with ZORB_DATABASE_URL");
    };
    remote::run(postgres::migrate(&url))?;
    let database = postgres::describe(&url);
    output.record(&Record { database: &database })?;
    output.line(format_args!("the schema of {database} is current"))?;
    Ok(())
}
