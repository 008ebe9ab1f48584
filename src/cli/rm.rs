//! `zorb rm`: files of a server that nobody is to have any more.

use anyhow::Context;
use clap::Args;

use super::named::{NamedFile, resolve};
use super::output::{Output, OutputArgs};
use super::remote::{self, Quiet, RemoteArgs};
use crate::client::RemovedFile;

/// Remove files from a server.
///
/// A token of a repository removes what that repository has registered; others who have the same file keep it. A token
/// that administers all repositories removes a file for everybody, unless --repo says for whom. The bytes come back
/// later, when the server collects garbage. Files are named by their hashes, as `zorb ls` shows them,
/// or by the first digits of these; nothing is removed unless all of them are clear.
#[derive(Debug, Args)]
pub(super) struct RmArgs {
    /// Hashes of files, or beginnings of them that only one file has
    #[arg(value_name = "FILE", required = true)]
    files: Vec<NamedFile>,
    /// Remove the file for this repository alone
    #[arg(long, value_name = "NAME")]
    repo: Option<String>,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: RmArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let server = args.remote.server()?;
    remote::run(async {
        let watch = Quiet::watch(&output);
        for file in resolve(&server, &args.files, &watch).await? {
            let removed = server.remove_file(file, args.repo.as_deref(), &watch).await;
            let removed = removed.with_context(|| format!("cannot remove {file}"))?;
            output.line(line(&removed))?;
            output.record(&removed)?;
        }
        Ok(())
    })
}

fn line(removed: &RemovedFile) -> String {
    let (file, repos) = (&removed.file, removed.claims_removed.join(", "));
    let rest = if removed.file_removed { "" } else { "; others still have it" };
    format!("{file}  removed for {repos}{rest}")
}
