//! `zorb pull`: downloads files, or a byte range of one, from a server.

mod many;
mod shown;
mod tree;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::Mode;
use serde::Serialize;

use self::many::{Wanted, pull_all};
use super::Usage;
use super::destination::Destination;
use super::manifest::{self, ManifestFile};
use super::named::{NamedFile, resolve};
use super::output::{Output, OutputArgs, OutputError};
use super::remote::{self, Quiet, RemoteArgs, Shown};
use super::units::Size;
use crate::client::{Pull, PullError, Pulled, Workers};
use crate::format::{ByteRange, ByteRangeSpec, FileHash};

/// Download files, or a byte range of one, from a server.
///
/// Every chunk is decompressed and hashed locally, and all chunks together must hash to FILEHASH:
/// neither the server nor the network has to be trusted. A file appears under its name only after
/// it was verified, and replaces an existing file then. Data for stdout is written as it arrives:
/// only the exit code tells whether it was right.
///
/// An interrupted pull can be repeated: chunks received so far are stored beside the file and
/// verified again. Of several files, those that already exist with the right contents are left
/// unchanged.
///
/// A part of a file is verified with the server's summary of the chunks around it. A server without
/// such a summary cannot prove a part; stderr says so.
#[derive(Debug, Args)]
pub(super) struct PullArgs {
    /// File hashes as printed by `zorb push`, or unambiguous prefixes of them
    #[arg(value_name = "FILEHASH", required_unless_present = "manifest", conflicts_with = "manifest")]
    files: Vec<NamedFile>,
    /// Pull all files of this manifest, into the directory of -o; `zorb push --manifest` writes one
    #[arg(long, value_name = "FILE", conflicts_with = "range")]
    manifest: Option<PathBuf>,
    /// Only these bytes: A-B for [A,B), A- from A on, -N the last N, or just A
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    range: Option<ByteRangeSpec>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Parts of the file to fetch in parallel, up to 64 MiB each
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Output file, or a directory for several files, which are named by their hashes; `-` is
    /// stdout, the default for one file unless stdout is a terminal
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
    start: u64,
    end: u64,
    proven: bool,
    resumed_len: u64,
}

pub(super) fn run(args: PullArgs) -> anyhow::Result<()> {
    match (&args.manifest, &args.files[..]) {
        (Some(manifest), _) => {
            let wanted = |file: ManifestFile| {
                let ManifestFile { path, hash, size, mode } = file;
                Wanted { path, hash, len: Some(size), mode }
            };
            let wanted = manifest::read(manifest)?.into_iter().map(wanted).collect();
            run_many(args, "a manifest needs -o DIRECTORY", wanted)
        }
        (None, [file]) => {
            let file = file.clone();
            run_one(args, file)
        }
        (None, _) if args.range.is_some() => bail!(Usage("--range is for one file")),
        (None, _) => run_many(args, "several files need -o DIRECTORY", Vec::new()),
    }
}

/// Pulls several files into a directory: the files of the command line if it names any, else
/// `wanted`. `need` is the text of the error if no directory is given.
fn run_many(args: PullArgs, need: &'static str, mut wanted: Vec<Wanted>) -> anyhow::Result<()> {
    let directory = args.target.filter(|path| path != Path::new("-")).ok_or(Usage(need))?;
    let output = Output::new(args.output);
    let server = args.remote.server()?;
    // The only way to read the umask is to set another one. No other thread runs yet, so that no
    // file is created with the other one.
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    remote::run_resumable(async {
        if !args.files.is_empty() {
            let files = resolve(&server, &args.files, &Quiet::watch(&output)).await?;
            wanted =
                files.into_iter().map(|hash| Wanted { path: hash.to_string(), hash, len: None, mode: 0o666 }).collect();
        }
        Box::pin(pull_all(&server, (&directory, umask.bits()), wanted, args.jobs.into(), &output)).await
    })
}

/// Pulls one file, or a range of it, to a file or to stdout.
fn run_one(args: PullArgs, file: NamedFile) -> anyhow::Result<()> {
    let destination = Destination::new(args.target.as_deref())?;
    if args.output.is_json() && destination.is_stdout() {
        bail!(Usage("with --json stdout carries JSON; give -o FILE for the data"));
    }
    let output = Output::new(args.output).beside_data(destination.is_stdout());
    let server = args.remote.server()?;
    let range = args.range;
    let job_count = args.jobs.into();
    let work = async {
        let file = match file {
            NamedFile::Hash(file) => file,
            prefix => resolve(&server, &[prefix], &Quiet::watch(&output)).await?.first().copied().context("no file")?,
        };
        let pull = Pull { file, range, job_count };
        let watch = Shown::new(&output, file.to_string().chars().take(16).collect());
        // At least two, so that decompressing and writing overlap.
        let workers = Workers::new(std::thread::available_parallelism().map_or(1, usize::from).max(2));
        // A range is not resumable, because a partial file always begins at byte 0.
        let stream = if range.is_none() { destination.resumable(file)? } else { destination.stream()? };
        let pulled = Box::pin(server.pull(&pull, stream, &workers, watch)).await;
        let (pulled, stream) = pulled.map_err(|error| match error {
            PullError::Write(error) if error.kind() == ErrorKind::BrokenPipe => OutputError::Closed.into(),
            error => {
                // The received data may be wrong, so the next run must not continue with it.
                if range.is_none() && !error.is_resumable() {
                    destination.discard(file);
                }
                anyhow::Error::from(error)
            }
        })?;
        destination.finish(stream)?;
        Ok((file, pulled))
    };
    let can_continue = range.is_none() && matches!(destination, Destination::File(_));
    let (file, pulled) = if can_continue { remote::run_resumable(work) } else { remote::run(work) }?;
    report(&output, &destination, (file, range), pulled)
}

/// Prints the result.
fn report(
    output: &Output,
    destination: &Destination,
    (file, range): (FileHash, Option<ByteRangeSpec>),
    pulled: Pulled,
) -> anyhow::Result<()> {
    let Pulled { bytes, resumed_len, is_proven } = pulled;
    let (start, end) = bytes.map_or((0, 0), |bytes| (bytes.start(), bytes.end()));
    if !is_proven {
        // Also with --quiet: a server that does not send a proof must not go unnoticed.
        output.complain("the server cannot prove parts of a file; only lengths were checked");
    }
    let hash = file.to_string();
    output.record(&Record { hash, path: destination.to_string(), start, end, proven: is_proven, resumed_len })?;
    let verdict = if is_proven { "verified" } else { "not verified" };
    let part = match (range, bytes) {
        (Some(_), Some(bytes)) => format!("bytes {bytes}, "),
        _ => String::new(),
    };
    let resumed = if resumed_len > 0 { format!("; {} reused", Size(resumed_len)) } else { String::new() };
    let size = Size(bytes.map_or(0, ByteRange::byte_len));
    output.line(format_args!("{file}  {part}{size} to {destination}, {verdict}{resumed}"))?;
    Ok(())
}
