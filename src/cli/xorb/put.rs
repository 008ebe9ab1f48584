//! `zorb xorb put`: uploads xorb files to a server.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use futures_util::stream::{StreamExt, iter};
use serde::Serialize;

use crate::cli::output::{Output, OutputArgs};
use crate::cli::remote::{self, RemoteArgs, Shown};
use crate::cli::units::{Count, Size};
use crate::client::{Put, PutError, Server, Workers};
use crate::runtime::telemetry::chain;

/// Upload xorb files to a server.
///
/// Each file is verified before it is sent, so a damaged one never leaves this machine; a footer is
/// not sent. The output says for each xorb whether the server already had it. Temporary failures
/// (no connection, 408, 429, 5xx) are retried with growing delays, or after the delay that the
/// server asks for. A file that fails does not stop the others; the exit code is 1.
#[derive(Debug, Args)]
pub(in crate::cli) struct PutArgs {
    /// Xorb files
    #[arg(required = true, value_name = "X")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Files to send in parallel
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record of each file with `--json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Record<'a> {
    Done { path: &'a str, hash: String, was_inserted: bool, chunks: u32, serialized_len: u64, raw_len: u64 },
    Failed { path: &'a str, error: String, code: Option<&'a str> },
}

pub(super) fn run(args: PutArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let server = args.remote.server()?;
    let workers = Workers::new(args.jobs.into());
    remote::run(async {
        let mut done = iter(&args.files)
            .map(|path| {
                let (server, workers, output) = (&server, &workers, &output);
                async move { (path, put(server, path, workers, output).await) }
            })
            .buffer_unordered(args.jobs.into());
        let mut failed_count = 0;
        while let Some((path, result)) = done.next().await {
            report(&output, path, &result)?;
            match result {
                Ok(_) => {}
                // The error of an only file is the error of the command.
                Err(error) if args.files.len() == 1 => return Err(error.into()),
                Err(error) => {
                    failed_count += 1;
                    output.complain(chain(&error));
                }
            }
        }
        match failed_count {
            0 => Ok(()),
            count => bail!("{count} of {} not put", Count(args.files.len() as u64, "file")),
        }
    })
}

/// Uploads one file, and shows its progress.
async fn put(server: &Server, path: &Path, workers: &Workers, output: &Output) -> Result<Put, PutError> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let watch = Shown::new(output, name.into_owned());
    Box::pin(server.put(path, workers, watch)).await
}

/// Prints the result of one file. The caller prints the error for people.
fn report(output: &Output, path: &Path, result: &Result<Put, PutError>) -> anyhow::Result<()> {
    let name = path.to_string_lossy();
    match result {
        Ok(put) => {
            let Put { hash, was_inserted, chunk_count: chunks, serialized_len, raw_len } = *put;
            let hash = hash.to_string();
            let verdict = if was_inserted { "new  " } else { "known" };
            let (count, size) = (Count(chunks.into(), "chunk"), Size(serialized_len));
            output.line(format_args!("{verdict} {hash}  {count}, {size}"))?;
            output.record(&Record::Done { path: &name, hash, was_inserted, chunks, serialized_len, raw_len })?;
        }
        Err(error) => {
            let code = match error {
                PutError::Request { source, .. } => source.code(),
                PutError::Invalid { source, .. } => Some(source.class().code()),
                PutError::Read { .. } => None,
            };
            output.record(&Record::Failed { path: &name, error: chain(error), code })?;
        }
    }
    Ok(())
}
