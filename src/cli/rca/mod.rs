//! `zorb rca`: creates, extends and reads archives of named blobs. Needs no server.

mod append;
mod cat;
mod create;
mod extract;
mod findings;
mod ls;
mod names;
mod sources;
mod verify;

use std::fs::{self, File};
use std::io::{Read, stdin};
use std::path::Path;

use anyhow::{Context, bail};
use clap::Subcommand;
use indicatif::ProgressBar;
use serde::Serialize;

pub(super) use self::names::Place;
use crate::rca::Error;

/// Length of the buffer for reads of content.
const PIECE_LEN: usize = 128 << 10;

#[derive(Debug, Subcommand)]
pub(super) enum RcaCommand {
    Create(create::CreateArgs),
    Append(append::AppendArgs),
    Ls(ls::LsArgs),
    Cat(cat::CatArgs),
    Extract(extract::ExtractArgs),
    Verify(verify::VerifyArgs),
}

pub(super) fn run(command: RcaCommand) -> anyhow::Result<()> {
    match command {
        RcaCommand::Create(args) => create::run(args),
        RcaCommand::Append(args) => append::run(args),
        RcaCommand::Ls(args) => ls::run(args),
        RcaCommand::Cat(args) => cat::run(args),
        RcaCommand::Extract(args) => extract::run(args),
        RcaCommand::Verify(args) => verify::run(args),
    }
}

/// The error of an archive, in a record with `--json`.
#[derive(Debug, Serialize)]
struct Fault {
    code: &'static str,
    /// `null` if the error has no position.
    offset: Option<u64>,
}

impl From<&Error> for Fault {
    fn from(error: &Error) -> Self {
        Self { code: error.code(), offset: error.offset() }
    }
}

/// The error for an archive that could not be read to its end.
fn describe(path: &Path, error: Error) -> anyhow::Error {
    let name = path.display();
    let what = if error.is_damage() { format!("{name} is damaged") } else { cannot_read(path) };
    anyhow::Error::new(error).context(what)
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}

/// Opens an archive that is read more than once, so that stdin is not possible.
fn open_file(path: &Path) -> anyhow::Result<File> {
    let file = File::open(path).with_context(|| cannot_read(path))?;
    let metadata = file.metadata().with_context(|| cannot_read(path))?;
    // Opening a directory would succeed, and reading it would fail with a confusing message.
    if metadata.is_dir() {
        bail!("{}: is a directory", cannot_read(path));
    }
    Ok(file)
}

/// Opens an archive that is read once, from front to back; `-` is stdin. Reads from a file advance
/// the progress bar.
fn open_stream(path: &Path, bar: &ProgressBar) -> anyhow::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(stdin()));
    }
    Ok(Box::new(bar.wrap_read(open_file(path)?)))
}

/// The length of an archive, for the progress bar; 0 if it is not known.
fn file_len(path: &Path) -> u64 {
    if path == Path::new("-") { 0 } else { fs::metadata(path).map_or(0, |metadata| metadata.len()) }
}
