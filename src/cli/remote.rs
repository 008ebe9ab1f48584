//! What the commands that talk to a server have in common.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;
use tokio::runtime::Builder;

use super::output::Output;
use super::units::Wait;
use crate::client::{RequestError, RetryPolicy, Server, ServerUrl, Watch};
use crate::runtime::shutdown::StopSignal;
use crate::runtime::telemetry::chain;

/// Which server, and how patiently.
#[derive(Debug, Args)]
pub(super) struct RemoteArgs {
    /// Address of the server
    #[arg(long, env = "ZORB_SERVER", value_name = "URL")]
    server: ServerUrl,
    /// Times to try again, in a row, when the server cannot be reached or is overloaded
    #[arg(long, value_name = "N", default_value_t = RetryPolicy::default().count)]
    retries: u32,
}

impl RemoteArgs {
    pub(super) fn server(self) -> Result<Server, RequestError> {
        Server::new(self.server, RetryPolicy { count: self.retries })
    }
}

/// Runs a command that talks to a server. A signal drops it where it stands, so that its temporary files are removed.
pub(super) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // Its work is waiting, so one thread drives it; what blocks goes to a pool.
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut stop = StopSignal::listen().context("cannot listen to signals")?;
        tokio::select! {
            result = work => result,
            signal = stop.received() => bail!("stopped by {signal}"),
        }
    })
}

/// Shows a transfer to whoever looks at the terminal.
#[derive(Debug)]
pub(super) struct Shown {
    what: String,
    bar: ProgressBar,
    output: Output,
}

impl Shown {
    pub(super) fn new(output: &Output, what: String) -> Arc<Self> {
        Arc::new(Self { bar: output.bar(0, what.clone()), what, output: output.clone() })
    }
}

impl Watch for Shown {
    fn position(&self, len: u64) {
        self.bar.set_position(len);
    }

    fn total(&self, len: u64) {
        self.bar.set_length(len);
    }

    fn retrying(&self, error: &RequestError, delay: Duration) {
        self.output.remark(format_args!("{}: {}; trying again in {}", self.what, chain(error), Wait(delay)));
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
