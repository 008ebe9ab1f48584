//! `zorb xorb get`: a xorb, or some chunks of it, from a server.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use crate::cli::Usage;
use crate::cli::destination::Destination;
use crate::cli::output::{Output, OutputArgs};
use crate::cli::remote::{self, RemoteArgs, Shown};
use crate::cli::units::{Count, Size};
use crate::client::{Got, Wanted};
use crate::format::{ChunkRangeSpec, XorbHash};
use crate::runtime::blocking::Pool;

/// Fetch a xorb, or some of its chunks, from a server.
///
/// Nothing is shown that is not proven. A whole xorb is decompressed, hashed and compared with HASH. For a part, the
/// server's list of the xorb's chunks is fetched first; it is trusted because the hashes and lengths in it aggregate to
/// HASH, and then every chunk that arrives is hashed and compared with its entry. With --raw the same bytes come over
/// the wire, are verified the same way, and are decompressed here.
///
/// The file appears under its name when everything has arrived and is proven, never before; data for stdout waits in a
/// temporary file. A transfer that breaks off goes on where it was (Range with If-Range).
#[derive(Debug, Args)]
pub(in crate::cli) struct GetArgs {
    /// Which xorb
    hash: XorbHash,
    /// Only these chunks: A-B for [A,B), A- from A on, -N the last N, or just A
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    range: Option<ChunkRangeSpec>,
    /// The decompressed contents instead of the serialized chunks
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Where to write; `-` is stdout, which is also the default unless it is a terminal
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    target: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Record {
    hash: String,
    path: String,
    raw: bool,
    start: u32,
    end: u32,
    serialized_len: u64,
    raw_len: u64,
}

pub(super) fn run(args: GetArgs) -> anyhow::Result<()> {
    let destination = Destination::new(args.target.as_deref())?;
    if args.output.is_json() && destination.is_stdout() {
        bail!(Usage("with --json stdout carries JSON; give -o FILE for the data"));
    }
    let output = Output::new(args.output).beside_data(destination.is_stdout());
    let server = args.remote.server()?;
    let wanted = Wanted { hash: args.hash, range: args.range, raw: args.raw };
    let got = remote::run(async {
        let watch = Shown::new(&output, args.hash.to_string().chars().take(16).collect());
        let draft = destination.draft()?;
        let (got, draft) = Box::pin(server.get(wanted, draft, &Pool::new(1), watch)).await?;
        destination.publish(draft)?;
        Ok(got)
    })?;
    let Got { chunks, serialized_len, raw_len } = got;
    output.record(&Record {
        hash: args.hash.to_string(),
        path: destination.to_string(),
        raw: args.raw,
        start: chunks.start(),
        end: chunks.end(),
        serialized_len,
        raw_len,
    })?;
    let size = Size(if args.raw { raw_len } else { serialized_len });
    let count = Count(chunks.count().into(), "chunk");
    output.line(format_args!("{}  chunks {chunks} ({count}), {size} to {destination}, verified", args.hash))?;
    Ok(())
}
