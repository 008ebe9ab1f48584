//! `zorb xorb verify`: checks whether a file is a valid xorb with the expected hash.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use super::verify_file;
use crate::cli::output::{Output, OutputArgs};
use crate::cli::units::{Count, Share, Size};
use crate::format::XorbHash;

/// Verify that a file is a valid xorb, and that it has the expected hash.
///
/// Every chunk is decompressed and hashed, and a footer is compared with the chunks. The expected
/// hash is --hash; without it, the hash in the file's name, if the name is a hash and `.xorb`.
#[derive(Debug, Args)]
pub(in crate::cli) struct VerifyArgs {
    /// A xorb file; `-` is stdin
    #[arg(value_name = "X")]
    file: PathBuf,
    /// The expected hash
    #[arg(long, value_name = "H")]
    hash: Option<XorbHash>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The record with `--json`.
#[derive(Debug, Default, Serialize)]
struct Record {
    path: String,
    ok: bool,
    hash: Option<String>,
    expected: Option<String>,
    chunks: Option<u32>,
    raw_len: Option<u64>,
    serialized_len: Option<u64>,
    code: Option<&'static str>,
    offset: Option<u64>,
    error: Option<String>,
}

pub(super) fn run(args: VerifyArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let (path, name) = (&args.file, args.file.display());
    let expected = args.hash.or_else(|| hash_of_name(path));
    let mut record =
        Record { path: name.to_string(), expected: expected.map(|hash| hash.to_string()), ..Record::default() };
    let xorb = match verify_file(path)? {
        Ok(xorb) => xorb,
        Err(error) => {
            record.code = Some(error.class().code());
            record.offset = Some(error.offset);
            record.error = Some(error.to_string());
            output.record(&record)?;
            bail!("{name} is not a valid xorb: {error}");
        }
    };
    let (hash, layout) = (xorb.hash(), xorb.layout());
    let (raw_len, serialized_len) = (layout.raw_len(), layout.serialized_len());
    record.hash = Some(hash.to_string());
    record.chunks = Some(layout.chunk_count());
    record.raw_len = Some(raw_len);
    record.serialized_len = Some(serialized_len);
    if let Some(expected) = expected.filter(|expected| *expected != hash) {
        record.code = Some("hash_mismatch");
        record.error = Some(format!("expected {expected}"));
        output.record(&record)?;
        bail!("{name} is a valid xorb, but it is {hash}, not {expected}");
    }
    record.ok = true;
    output.record(&record)?;
    let chunks = Count(layout.chunk_count().into(), "chunk");
    let share = Share { part: serialized_len, whole: raw_len };
    output.line(format_args!("ok {hash}  {chunks}, {} → {} ({share})", Size(raw_len), Size(serialized_len)))?;
    Ok(())
}

/// The hash in the name of a file, if the name is `<hash>.xorb`.
fn hash_of_name(path: &Path) -> Option<XorbHash> {
    path.file_name()?.to_str()?.strip_suffix(".xorb")?.parse().ok()
}
