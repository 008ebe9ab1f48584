//! `zorb xorb`: commands for xorb files. Only `put` and `get` need a server.

mod get;
mod inspect;
mod pack;
mod put;
mod unpack;
mod verify;

use std::fs::File;
use std::io::{self, Read, stdin};
use std::path::Path;

use anyhow::Context;
use clap::Subcommand;

use crate::client::verify_reader;
use crate::format::limits::MAX_XORB_BODY_LEN;
use crate::format::xorb::{VerifiedXorb, XorbError};

#[derive(Debug, Subcommand)]
pub(super) enum XorbCommand {
    Pack(pack::PackArgs),
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
    Unpack(unpack::UnpackArgs),
    Put(put::PutArgs),
    Get(get::GetArgs),
}

pub(super) fn run(command: XorbCommand) -> anyhow::Result<()> {
    match command {
        XorbCommand::Pack(args) => pack::run(args),
        XorbCommand::Inspect(args) => inspect::run(args),
        XorbCommand::Verify(args) => verify::run(args),
        XorbCommand::Unpack(args) => unpack::run(args),
        XorbCommand::Put(args) => put::run(args),
        XorbCommand::Get(args) => get::run(args),
    }
}

/// A file that is read from front to back, or stdin.
enum Input {
    File(File),
    Stdin,
}

impl Input {
    /// Opens a file; `-` is stdin.
    fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdin);
        }
        File::open(path).map(Self::File).with_context(|| cannot_read(path))
    }

    /// The length of a file; 0 if it is not known before reading.
    fn len(path: &Path) -> anyhow::Result<u64> {
        if path == Path::new("-") {
            return Ok(0);
        }
        let metadata = path.metadata().with_context(|| cannot_read(path))?;
        Ok(if metadata.is_file() { metadata.len() } else { 0 })
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Stdin => stdin().read(buffer),
        }
    }
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}

/// Reads a file that may be a xorb. Reads at most one byte more than the longest xorb, which is
/// enough for the caller to refuse a longer file.
fn read_xorb(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut input = Input::open(path)?.take(MAX_XORB_BODY_LEN + 1);
    input.read_to_end(&mut bytes).with_context(|| cannot_read(path))?;
    Ok(bytes)
}

/// Reads and verifies a xorb file. The outer error says that the file cannot be read, the inner one
/// that it is not a valid xorb.
fn verify_file(path: &Path) -> anyhow::Result<Result<VerifiedXorb, XorbError>> {
    verify_reader(Input::open(path)?).with_context(|| cannot_read(path))
}
