//! Shared parts of the commands that talk to a server: their flags, progress, and the runtime,
//! which commands on a data directory use, too.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use tokio::runtime::Builder;

use super::Stopped;
use super::output::{Output, Plain};
use super::units::Wait;
use crate::client::{Authorities, RequestError, RetryPolicy, Server, ServerUrl, Token, Watch};
use crate::runtime::shutdown::StopSignal;
use crate::runtime::telemetry::chain;

/// The default address of `zorb serve`.
const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// The flags for a server: its address, the token, trusted certificates and retries.
#[derive(Debug, Args)]
pub(super) struct RemoteArgs {
    #[command(flatten)]
    address: AddressArgs,
    #[command(flatten)]
    trust: TrustArgs,
    /// Token for the server; sent to no other host
    #[arg(long, env = "ZORB_TOKEN", value_name = "T", hide_env_values = true)]
    token: Option<Typed>,
    /// File with the token, instead of --token, which other users of this machine can see
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Consecutive retries when the server cannot be reached or is overloaded
    #[arg(long, value_name = "N", default_value_t = RetryPolicy::default().count)]
    retries: u32,
}

impl RemoteArgs {
    pub(super) fn server(self) -> anyhow::Result<Server> {
        let authorities = self.trust.authorities()?;
        let server = self.address.server(RetryPolicy { count: self.retries }, authorities)?;
        let token = match (self.token, self.token_file) {
            // The file comes first, because the other token may be in the environment.
            (_, Some(path)) => Some(read_token(&path)?),
            (Some(Typed(text)), None) => Some(text.trim().parse().context("the token is invalid")?),
            (None, None) => None,
        };
        Ok(match token {
            Some(token) => server.with_token(token),
            None => server,
        })
    }
}

/// The flag for the address of a server.
#[derive(Debug, Args)]
pub(super) struct AddressArgs {
    /// URL of the server [default: http://127.0.0.1:8080]
    #[arg(long, env = "ZORB_SERVER", value_name = "URL")]
    server: Option<ServerUrl>,
}

impl AddressArgs {
    pub(super) fn server(self, retry: RetryPolicy, authorities: Authorities) -> anyhow::Result<Server> {
        let is_default = self.server.is_none();
        let url = self.server.map_or_else(|| DEFAULT_SERVER.parse(), Ok)?;
        let server = Server::trusting(url, retry, authorities)?;
        Ok(if is_default {
            server.with_hint(" (the default; name another one in ZORB_SERVER or with --server)")
        } else {
            server
        })
    }
}

/// The flag for the trusted certificate authorities.
#[derive(Debug, Args)]
pub(super) struct TrustArgs {
    /// PEM file with CA certificates to trust instead of the system's
    #[arg(long, env = "ZORB_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

impl TrustArgs {
    pub(super) fn authorities(self) -> anyhow::Result<Authorities> {
        // An empty variable counts as not set, as with the settings of the server.
        let Some(path) = self.ca_file.filter(|path| !path.as_os_str().is_empty()) else {
            return Ok(Authorities::default());
        };
        let pem = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Authorities::parse(&pem).with_context(|| format!("{} is invalid", path.display()))
    }
}

/// The text of a token, not parsed yet. clap does not parse it, because it would print an invalid
/// token in its error.
#[derive(Clone)]
struct Typed(String);

impl FromStr for Typed {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Typed(…)")
    }
}

/// Reads the token in a file. Ignores white space around it, such as a line break.
fn read_token(path: &Path) -> anyhow::Result<Token> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{} has no token", path.display()))
}

/// Runs the work of a command until it ends or a signal stops it. A signal drops the future, which
/// removes its temporary files. Returns only when all blocking work that the future has started has
/// ended.
pub(super) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    drive(work, false)
}

/// Like [`run`], for a command that saves its progress and continues when it is run again. After a
/// signal, the error says so.
pub(super) fn run_resumable<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    drive(work, true)
}

fn drive<T>(work: impl Future<Output = anyhow::Result<T>>, can_continue: bool) -> anyhow::Result<T> {
    // One thread is enough, because the work mostly waits, and blocking work has its own threads.
    // Dropping the runtime at the end waits for those.
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut stop = StopSignal::listen().context("cannot listen to signals")?;
        tokio::select! {
            result = work => result,
            signal = stop.received() => Err(Stopped { signal, can_continue }.into()),
        }
    })
}

/// Shows the progress of one transfer on the terminal, and prints retries.
#[derive(Debug)]
pub(super) struct Shown {
    what: String,
    bar: ProgressBar,
    output: Output,
}

impl Shown {
    pub(super) fn new(output: &Output, what: String) -> Arc<Self> {
        Arc::new(Self { bar: output.bar(0, &what), what, output: output.clone() })
    }
}

/// Prints retries, and shows no progress.
#[derive(Debug)]
pub(super) struct Quiet(Output);

impl Quiet {
    pub(super) fn watch(output: &Output) -> Arc<dyn Watch> {
        Arc::new(Self(output.clone()))
    }
}

impl Watch for Quiet {
    fn position(&self, _: u64) {}

    fn total(&self, _: u64) {}

    fn retrying(&self, error: &RequestError, delay: Duration) {
        self.0.remark(format_args!("{}; trying again in {}", chain(error), Wait(delay)));
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
        self.output.remark(format_args!("{}: {}; trying again in {}", Plain(&self.what), chain(error), Wait(delay)));
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
