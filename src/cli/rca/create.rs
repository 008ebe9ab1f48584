//! `zorb rca create`: creates an archive, and appends files to it if some are given.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

use super::append::{append_all, check_kind, refused};
use super::sources::{self, SourceArgs};
use crate::cli::output::{Output, OutputArgs};
use crate::cli::units::Count;
use crate::rca::{Error, WriteOptions, Writer};
use crate::runtime::durable::open_or_create;

/// Create an archive, and append files to it. Each file becomes a blob: bytes with a name.
///
/// ARCHIVE must be missing or an empty file. If a file fails, the files before it are in the
/// archive, and `append` can continue.
#[derive(Debug, Args)]
pub(in crate::cli) struct CreateArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Files; `-` is stdin and needs --name
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    sources: SourceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: CreateArgs) -> anyhow::Result<()> {
    let (output, path) = (Output::new(args.output), args.archive.as_path());
    let sources = sources::find(path, &args.files, &args.sources, &output)?;
    let file = open_or_create(path).with_context(|| format!("cannot create {}", path.display()))?;
    check_kind(&file, path)?;
    let options = WriteOptions { level: args.sources.level, ..WriteOptions::default() };
    match Writer::create(file, options) {
        Ok(writer) => append_all(writer, path, &sources, &output),
        Err(Error::NotEmpty { len }) => {
            let len = Count(len, "byte");
            bail!("{} already exists with {len}; `zorb rca append` adds to an archive", path.display())
        }
        Err(error) => Err(refused(path, error)),
    }
}
