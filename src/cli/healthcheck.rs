//! `zorb healthcheck`: whether a server is ready, as an exit code.

use std::time::Duration;

use clap::Args;

use super::output::{Output, OutputArgs};
use super::remote::{self, TrustArgs};
use crate::client::{RetryPolicy, Server, ServerUrl};

/// Time for an answer. A container's health check has the same.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct HealthcheckArgs {
    /// Address of the server
    #[arg(long, env = "ZORB_SERVER", value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: ServerUrl,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: HealthcheckArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let server = Server::trusting(args.server, RetryPolicy { count: 0 }, args.trust.authorities()?)?;
    remote::run(async { Ok(server.ready(LIMIT).await?) })?;
    output.record(&serde_json::json!({ "server": server.url().to_string(), "ready": true }))?;
    output.line(format_args!("{} is ready", server.url()))?;
    Ok(())
}
