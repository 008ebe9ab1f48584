//! `zorb db migrate`: creates or migrates the schema of the PostgreSQL database of an index.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::output::{Output, OutputArgs};
use super::remote;
use super::store::postgres;
use crate::config::{DatabaseUrl, RawConfig};

/// Prepare the PostgreSQL database of the index
#[derive(Debug, Subcommand)]
pub(super) enum DbCommand {
    Migrate(MigrateArgs),
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
    }
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
