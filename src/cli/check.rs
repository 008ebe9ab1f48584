//! `zorb check`: tries out the database and the bucket of the settings, before a server uses them.
//!
//! It changes nothing of a store. In the bucket it writes objects of its own, and deletes them.

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use super::output::{Output, OutputArgs};
use super::remote;
use super::store::{Finding, StoreArgs, StoreLocation, postgres};
use super::units::Count;

/// Try out the database and the bucket of the settings.
///
/// Finds out whether zorb can use the PostgreSQL database, and what the S3 store can do: parts,
/// ranges, lists, and signed URLs if s3_public_endpoint is set. It can run beside servers, and
/// needs no store. In the bucket it writes two objects below check/, and deletes them. The exit
/// code is 1 if something does not work.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record of one finding with `--json`.
#[derive(Debug, Serialize)]
struct Record<'a> {
    check: &'a str,
    ok: bool,
    detail: &'a str,
}

pub(super) fn run(args: CheckArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let location = args.store.location()?;
    if location.database.is_none() {
        bail!("nothing to check: neither database_url nor s3_bucket is set; zorb fsck checks a store");
    }
    let findings = remote::run(async { Ok(try_out(&location).await) })?;
    let mut failed_count = 0;
    for (check, finding) in &findings {
        let detail = finding.as_ref().map_or_else(|error| format!("{error:#}"), Clone::clone);
        output.record(&Record { check, ok: finding.is_ok(), detail: &detail })?;
        output.line(format_args!("{} {check}: {detail}", if finding.is_ok() { "ok    " } else { "failed" }))?;
        failed_count += u64::from(finding.is_err());
    }
    if failed_count > 0 {
        bail!("{} failed", Count(failed_count, "check"));
    }
    Ok(())
}

async fn try_out(location: &StoreLocation) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(url) = &location.database {
        findings.push(("database", postgres::try_out(url).await));
    }
    if location.s3.is_some() {
        match location.try_out_bucket().await {
            Ok(of_bucket) => findings.extend(of_bucket),
            Err(error) => findings.push(("bucket", Err(error))),
        }
    }
    findings
}
