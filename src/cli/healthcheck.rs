//! `zorb healthcheck`: reports with its exit code whether a server is ready.

use std::time::Duration;

use clap::Args;

use super::output::{Output, OutputArgs};
use super::remote::{self, AddressArgs, TrustArgs};
use crate::client::RetryPolicy;

/// Time limit for connecting and for the response. Shorter than the 5 s of `HEALTHCHECK` in the
/// Dockerfile, so that the error is printed.
const LIMIT: Duration = Duration::from_secs(4);

#[derive(Debug, Args)]
pub(super) struct HealthcheckArgs {
    #[command(flatten)]
    address: AddressArgs,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: HealthcheckArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let server = args.address.server(RetryPolicy { count: 0 }, args.trust.authorities()?)?;
    remote::run(async { Ok(server.ready(LIMIT).await?) })?;
    output.record(&serde_json::json!({ "server": server.url().to_string(), "ready": true }))?;
    output.line(format_args!("{} is ready", server.url()))?;
    Ok(())
}
