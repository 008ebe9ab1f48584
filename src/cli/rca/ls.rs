//! `zorb rca ls`: lists the blobs of an archive, as far as it can be read.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::super::output::Plain;
use super::findings::Findings;
use super::{Fault, PIECE_LEN, describe, file_len, open_stream};
use crate::cli::output::{Output, OutputArgs};
use crate::cli::units::{Count, Size};
use crate::rca::Dialect;

/// List the blobs of an archive, in order, with the length and the SHA-256 of each.
///
/// Everything is decompressed and hashed. Of a damaged archive the blobs before the damage are
/// listed, then its position, and the exit code is 1. A hash covers a whole session and follows it:
/// the last line says how many of the listed blobs are verified.
#[derive(Debug, Args)]
pub(in crate::cli) struct LsArgs {
    /// An archive; `-` is stdin
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record of each blob with `--json`.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    length: u64,
    sha256: &'a str,
}

/// The last record with `--json`.
#[derive(Debug, Serialize)]
struct Last {
    blobs: u64,
    /// `null` if the end was not reached.
    trailing_garbage: Option<bool>,
    dialect: &'static str,
    error: Option<Fault>,
}

pub(super) fn run(args: LsArgs) -> anyhow::Result<()> {
    let (output, path) = (Output::new(args.output), &args.archive);
    let bar = output.bar(file_len(path), path.display().to_string());
    let source = open_stream(path, &bar)?;
    let mut piece = vec![0; PIECE_LEN];
    let findings = Findings::collect(source, |blob| {
        let (mut hash, mut length) = (Sha256::new(), 0);
        loop {
            let len = blob.read_content(&mut piece)?;
            if len == 0 {
                break;
            }
            hash.update(&piece[..len]);
            length += len as u64;
        }
        let sha256 = hex(&hash.finalize());
        output.record(&Row { name: blob.name(), length, sha256: &sha256 })?;
        output.line(format_args!("{:>6} {length:>12}  {sha256}  {}", blob.index(), Plain(blob.name())))?;
        Ok(length)
    })?;
    bar.finish_and_clear();
    output.record(&Last {
        blobs: findings.blob_count,
        trailing_garbage: findings.trailing_garbage,
        dialect: findings.dialect.as_str(),
        error: findings.error.as_ref().map(Fault::from),
    })?;
    output.line(summary(&findings))?;
    findings.error.map_or(Ok(()), |error| Err(describe(path, error)))
}

/// The last line for people, which `zorb rca verify` prints, too.
pub(super) fn summary(findings: &Findings) -> String {
    let (blobs, size) = (Count(findings.blob_count, "blob"), Size(findings.content_len));
    if findings.error.is_some() {
        let verified = findings.verified_count;
        return format!("{blobs} before the damage, {size}; verified: the first {verified}");
    }
    let sessions = Count(findings.session_count, "session");
    let garbage = if findings.trailing_garbage == Some(true) { "; followed by an interrupted append" } else { "" };
    let dialect = if findings.dialect == Dialect::Readme { "; the README's dialect" } else { "" };
    format!("{blobs} in {sessions}, {size}{garbage}{dialect}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
