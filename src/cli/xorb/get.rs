//! `zorb xorb get`: downloads a xorb, or some of its chunks.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use crate::cli::Usage;
use crate::cli::destination::Destination;
use crate::cli::output::{Output, OutputArgs};
use crate::cli::remote::{self, RemoteArgs, Shown};
use crate::cli::units::{Count, Size};
use crate::client::{Got, Wanted, Workers};
use crate::format::{ChunkRangeSpec, XorbHash};

/// Download a xorb, or some of its chunks, from a server.
///
/// All data is verified before it is written. A whole xorb is decompressed, hashed and compared
/// with HASH. For a part, the server's chunk list of the xorb is fetched first; it is trusted
/// because its hashes and lengths aggregate to HASH, and each received chunk is hashed and compared
/// with its entry. With --raw the same bytes are transferred and verified, and decompressed
/// locally.
///
/// The file appears under its name after it was received and verified; data for stdout is buffered
/// in a temporary file. An interrupted transfer is resumed (Range with If-Range).
#[derive(Debug, Args)]
pub(in crate::cli) struct GetArgs {
    /// Hash of the xorb
    hash: XorbHash,
    /// Only these chunks: A-B for [A,B), A- from A on, -N the last N, or just A
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    range: Option<ChunkRangeSpec>,
    /// Write the decompressed contents instead of the serialized chunks
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Output file; `-` is stdout, the default unless it is a terminal
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    target: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record with `--json`.
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
        let (got, draft) = Box::pin(server.get(wanted, draft, &Workers::new(1), watch)).await?;
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
