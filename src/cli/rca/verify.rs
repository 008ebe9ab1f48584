//! `zorb rca verify`: verifies an archive, and prints up to where it is valid.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::findings::Findings;
use super::ls::summary;
use super::{Fault, PIECE_LEN, describe, file_len, open_stream};
use crate::cli::output::{Output, OutputArgs};

/// Verify an archive: every blob decompresses, and every session has its stored hash.
///
/// Of a damaged archive the number of valid blobs and the position of the damage are printed; the
/// exit code is 1. An interrupted append is not damage. The hashes have 64 bits and no key: they
/// detect accidents, not attackers.
#[derive(Debug, Args)]
pub(in crate::cli) struct VerifyArgs {
    /// An archive; `-` is stdin
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record with `--json`.
#[derive(Debug, Serialize)]
struct Record {
    path: String,
    ok: bool,
    blobs: u64,
    verified: u64,
    sessions: u64,
    content_len: u64,
    trailing_garbage: Option<bool>,
    dialect: &'static str,
    error: Option<Fault>,
}

pub(super) fn run(args: VerifyArgs) -> anyhow::Result<()> {
    let (output, path) = (Output::new(args.output), &args.archive);
    let bar = output.bar(file_len(path), path.display().to_string());
    let source = open_stream(path, &bar)?;
    let mut piece = vec![0; PIECE_LEN];
    let findings = Findings::collect(source, |blob| {
        let mut length = 0;
        loop {
            match blob.read_content(&mut piece)? {
                0 => return Ok(length),
                len => length += len as u64,
            }
        }
    })?;
    bar.finish_and_clear();
    output.record(&Record {
        path: path.display().to_string(),
        ok: findings.error.is_none(),
        blobs: findings.blob_count,
        verified: findings.verified_count,
        sessions: findings.session_count,
        content_len: findings.content_len,
        trailing_garbage: findings.trailing_garbage,
        dialect: findings.dialect.as_str(),
        error: findings.error.as_ref().map(Fault::from),
    })?;
    let verdict = if findings.error.is_none() { "ok " } else { "" };
    output.line(format_args!("{verdict}{}  {}", path.display(), summary(&findings)))?;
    findings.error.map_or(Ok(()), |error| Err(describe(path, error)))
}
