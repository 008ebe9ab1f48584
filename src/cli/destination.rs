//! Where a command's data goes: a file that appears whole or not at all, or stdout.

use std::fs::File;
use std::io::{self, IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::Usage;
use super::output::{OutputError, write_stdout};
use super::partial::{Partial, partial_id};
use crate::client::Sink;
use crate::format::{ChunkHash, FileHash};
use crate::runtime::durable::{PartialFile, TempFile};

/// A place for data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Stdout,
    /// A file, which may be there already.
    File(PathBuf),
    /// Something that has a name and cannot be replaced, such as `/dev/null`.
    Device(PathBuf),
}

impl Destination {
    /// What was typed after `-o`. Without it data goes to stdout, unless that is a terminal.
    pub(super) fn new(path: Option<&Path>) -> anyhow::Result<Self> {
        match path {
            None if stdout().is_terminal() => bail!(Usage("the data is binary; give -o FILE, or -o - for stdout")),
            None => Ok(Self::Stdout),
            Some(path) if path == Path::new("-") => Ok(Self::Stdout),
            Some(path) => match path.metadata() {
                Ok(metadata) if metadata.is_dir() => bail!(Usage("-o is a directory, not a file")),
                Ok(metadata) if !metadata.is_file() => Ok(Self::Device(path.to_owned())),
                // The file that a link leads to is replaced, never the link: it may be
                // `/dev/stdout`.
                Ok(_) if path.is_symlink() => {
                    let target = path.canonicalize().with_context(|| cannot_write(path))?;
                    Ok(Self::File(target))
                }
                // One that cannot be looked at cannot be written either, which will be said then.
                _ => Ok(Self::File(path.to_owned())),
            },
        }
    }

    pub(super) const fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Begins data that is not to be seen until it is complete. Beside the file, if it is to be
    /// one.
    pub(super) fn draft(&self) -> anyhow::Result<Draft> {
        let file = match self {
            Self::File(path) => TempFile::create_beside(path).with_context(|| cannot_write(path))?,
            Self::Stdout | Self::Device(_) => {
                let directory = std::env::temp_dir();
                TempFile::create(&directory).with_context(|| cannot_write(&directory))?
            }
        };
        Ok(Draft(file))
    }

    /// Begins data that is verified as a whole. A file stays hidden until then; other output is
    /// written as it arrives, because it may be larger than any temporary directory.
    pub(super) fn stream(&self) -> anyhow::Result<Stream> {
        match self {
            Self::File(_) => Ok(Stream::Draft(self.draft()?)),
            Self::Stdout => Ok(Stream::Stdout),
            Self::Device(path) => {
                let file = File::options().write(true).open(path).with_context(|| cannot_write(path))?;
                Ok(Stream::Device(file))
            }
        }
    }

    /// The same for all of this file: what an interrupted run leaves of it is there for the next
    /// one.
    pub(super) fn resumable(&self, file: FileHash) -> anyhow::Result<Stream> {
        let Self::File(path) = self else { return self.stream() };
        let Some(name) = path.file_name() else { return self.stream() };
        let id = partial_id(file, &name.to_string_lossy());
        match PartialFile::open_beside(path, &id).with_context(|| cannot_write(path))? {
            Some(partial) => Ok(Stream::Partial(Partial::new(partial))),
            // Another process is receiving it, or the name is taken.
            None => self.stream(),
        }
    }

    /// Discards the partial download of this file.
    pub(super) fn discard(&self, file: FileHash) {
        if let Ok(Stream::Partial(partial)) = self.resumable(file) {
            partial.discard();
        }
    }

    /// The streamed data is complete and right: shows what was hidden.
    pub(super) fn finish(&self, stream: Stream) -> anyhow::Result<()> {
        match stream {
            Stream::Draft(draft) => self.publish(draft),
            Stream::Partial(partial) => match self {
                Self::File(path) => {
                    let name = path.file_name().unwrap_or_default();
                    partial.publish(name).with_context(|| cannot_write(path))
                }
                Self::Stdout | Self::Device(_) => unreachable!("only files can be resumed"),
            },
            Stream::Stdout | Stream::Device(_) => Ok(()),
        }
    }

    /// The data is complete: shows it.
    pub(super) fn publish(&self, draft: Draft) -> anyhow::Result<()> {
        match self {
            Self::Stdout => Ok(write_stdout(|mut stdout| draft.0.copy_to(&mut stdout))?),
            Self::File(path) => draft.0.publish(path).with_context(|| cannot_write(path)),
            Self::Device(path) => {
                let copy = || draft.0.copy_to(&mut File::options().write(true).open(path)?);
                copy().with_context(|| cannot_write(path))
            }
        }
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) | Self::Device(path) => path.display().fmt(f),
        }
    }
}

/// Data that is not published yet.
#[derive(Debug)]
pub(super) struct Draft(TempFile);

impl Sink for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write(bytes)
    }

    fn restart(&mut self) -> io::Result<()> {
        self.0.restart()
    }
}

/// Data that is written once from front to back.
pub(super) enum Stream {
    Draft(Draft),
    Partial(Partial),
    Stdout,
    Device(File),
}

impl Sink for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Draft(draft) => draft.write(bytes),
            Self::Partial(partial) => partial.write(bytes),
            Self::Stdout => write_stdout(|stdout| stdout.write_all(bytes)).map_err(|error| match error {
                OutputError::Closed => io::ErrorKind::BrokenPipe.into(),
                OutputError::Write(error) => error,
            }),
            Self::Device(file) => file.write_all(bytes),
        }
    }

    fn restart(&mut self) -> io::Result<()> {
        match self {
            Self::Draft(draft) => draft.restart(),
            Self::Partial(partial) => partial.restart(),
            Self::Stdout | Self::Device(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the data was \
                already printed",
            )),
        }
    }

    fn written(&mut self, chunks: &[(ChunkHash, u64)]) -> io::Result<()> {
        match self {
            Self::Partial(partial) => partial.written(chunks),
            Self::Draft(_) | Self::Stdout | Self::Device(_) => Ok(()),
        }
    }

    fn resume(&mut self) -> io::Result<Vec<(ChunkHash, u64)>> {
        match self {
            Self::Partial(partial) => partial.resume(),
            Self::Draft(_) | Self::Stdout | Self::Device(_) => Ok(Vec::new()),
        }
    }
}

pub(super) fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
