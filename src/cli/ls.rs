//! `zorb ls`: lists the files or xorbs of a server.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::output::{Output, OutputArgs};
use super::remote::{self, Quiet, RemoteArgs};
use super::units::{Count, Size};
use crate::client::{Listed, ListedFile, ListedXorb, Server};

/// List the files or xorbs on a server, in the order of the hashes' bytes.
///
/// A line per file: hash, length, and the sha256 claimed by its client. A line per xorb: hash,
/// chunks, raw and stored bytes. Only files that the token may read are listed; listing xorbs
/// requires a token for all repositories.
#[derive(Debug, Args)]
pub(super) struct LsArgs {
    /// What to list
    #[arg(value_enum, default_value_t)]
    what: What,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum What {
    /// Registered files
    #[default]
    Files,
    /// Xorbs, referenced by files or not
    Xorbs,
}

pub(super) fn run(args: LsArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let server = args.remote.server()?;
    remote::run(async {
        match args.what {
            What::Files => list(&server, &output, file_line).await,
            What::Xorbs => list(&server, &output, xorb_line).await,
        }
    })
}

async fn list<E>(server: &Server, output: &Output, line: fn(&E) -> String) -> anyhow::Result<()>
where
    E: Listed + Serialize,
{
    let watch = Quiet::watch(output);
    let mut after = None;
    loop {
        let page = server.list::<E>(after, &watch).await?;
        for entry in &page.entries {
            output.line(line(entry))?;
            output.record(entry)?;
        }
        if page.next.is_none() {
            return Ok(());
        }
        after = page.next;
    }
}

fn file_line(file: &ListedFile) -> String {
    let sha256 = file.sha256.as_deref().unwrap_or("-");
    format!("{}  {:>10}  {sha256}", file.hash, Size(file.len))
}

fn xorb_line(xorb: &ListedXorb) -> String {
    let (chunks, stored, raw) = (Count(xorb.chunks.into(), "chunk"), Size(xorb.serialized_len), Size(xorb.raw_len));
    format!("{}  {chunks}, {raw} → {stored}", xorb.hash)
}
