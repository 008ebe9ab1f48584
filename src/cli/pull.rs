//! `zorb pull`: a file, or some bytes of it, from a server.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use super::Usage;
use super::destination::Destination;
use super::output::{Output, OutputArgs, OutputError};
use super::remote::{self, RemoteArgs, Shown};
use super::units::Size;
use crate::client::{Pull, PullError, Pulled};
use crate::format::{ByteRange, ByteRangeSpec, FileHash};
use crate::runtime::blocking::Pool;

/// Fetch a file, or some bytes of it, from a server.
///
/// Every chunk is decompressed and hashed here, and all of them together have to give FILEHASH: neither the server nor
/// anybody in between has to be trusted. The file appears under its name when that is proven, never before; what had the
/// name is replaced then. Data for stdout is written as it comes: only the exit code says at the end whether it was right.
///
/// For a part of a file the server's summary of what surrounds it takes the place of the rest. A server that has none
/// cannot prove a part; then stderr says so.
#[derive(Debug, Args)]
pub(super) struct PullArgs {
    /// Which file: the hash that `zorb push` has printed
    #[arg(value_name = "FILEHASH")]
    file: FileHash,
    /// Only these bytes: A-B for [A,B), A- from A on, -N the last N, or just A
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    range: Option<ByteRangeSpec>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Parts of the file that are fetched at once, up to 64 MiB each
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
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
    start: u64,
    end: u64,
    proven: bool,
}

pub(super) fn run(args: PullArgs) -> anyhow::Result<()> {
    let destination = Destination::new(args.target.as_deref())?;
    if args.output.is_json() && destination.is_stdout() {
        bail!(Usage("with --json stdout carries JSON; give -o FILE for the data"));
    }
    let output = Output::new(args.output).beside_data(destination.is_stdout());
    let server = args.remote.server()?;
    let pull = Pull { file: args.file, range: args.range, job_count: args.jobs.into() };
    let Pulled { bytes, is_proven } = remote::run(async {
        let watch = Shown::new(&output, args.file.to_string().chars().take(16).collect());
        let pool = Pool::new(std::thread::available_parallelism().map_or(1, usize::from).max(2));
        let pulled = Box::pin(server.pull(&pull, destination.stream()?, &pool, watch)).await;
        let (pulled, stream) = pulled.map_err(|error| match error {
            PullError::Write(error) if error.kind() == ErrorKind::BrokenPipe => OutputError::Closed.into(),
            error => anyhow::Error::from(error),
        })?;
        destination.finish(stream)?;
        Ok(pulled)
    })?;
    let (start, end) = bytes.map_or((0, 0), |bytes| (bytes.start(), bytes.end()));
    if !is_proven {
        output.remark("the server gives no means to prove a part of a file; only lengths were checked");
    }
    output.record(&Record {
        hash: args.file.to_string(),
        path: destination.to_string(),
        start,
        end,
        proven: is_proven,
    })?;
    let verdict = if is_proven { "verified" } else { "not verified" };
    let part = match (args.range, bytes) {
        (Some(_), Some(bytes)) => format!("bytes {bytes}, "),
        _ => String::new(),
    };
    let size = Size(bytes.map_or(0, ByteRange::byte_len));
    output.line(format_args!("{}  {part}{size} to {destination}, {verdict}", args.file))?;
    Ok(())
}
