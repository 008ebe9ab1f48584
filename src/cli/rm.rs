//! `zorb rm`: removes files from a server.

use anyhow::Context;
use clap::Args;

use super::named::{NamedFile, resolve};
use super::output::{Output, OutputArgs};
use super::remote::{self, Quiet, RemoteArgs};
use crate::client::RemovedFile;

/// Remove files from a server.
///
/// A token of a repository removes the registration of that repository; other repositories that
/// have the same file are not affected. An admin token of all repositories removes a file for all
/// of them, or with --repo for one. GC frees the bytes later. Files are named by their hashes, as
/// `zorb ls` prints them, or by unambiguous prefixes; nothing is removed if one is ambiguous.
#[derive(Debug, Args)]
pub(super) struct RmArgs {
    /// File hashes, or unambiguous prefixes of them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<NamedFile>,
    /// Remove the file only for this repository
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
    let rest = if removed.file_removed { "" } else { "; other repositories still have it" };
    format!("{file}  removed for {repos}{rest}")
}
