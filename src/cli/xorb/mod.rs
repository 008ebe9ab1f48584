//! `zorb xorb`: xorb files without a server.

mod pack;

use std::fs::File;
use std::io::{self, Read, stdin};
use std::path::Path;

use anyhow::Context;
use clap::Subcommand;

use crate::client::verify_reader;
use crate::format::xorb::{VerifiedXorb, XorbError};

#[derive(Debug, Subcommand)]
pub(super) enum XorbCommand {
    /// Cut files into chunks and form xorbs of them
    Pack(pack::PackArgs),
}

pub(super) fn run(command: XorbCommand) -> anyhow::Result<()> {
    match command {
        XorbCommand::Pack(args) => pack::run(args),
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

    /// The length of a file, as far as it is known before it is read.
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

/// Reads a xorb file and says what it is.
fn verify_file(path: &Path) -> anyhow::Result<Result<VerifiedXorb, XorbError>> {
    verify_reader(Input::open(path)?).with_context(|| cannot_read(path))
}
