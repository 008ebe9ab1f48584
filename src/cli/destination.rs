//! Where a command writes its data: to a regular file, to stdout, or to a device.
//!
//! A regular file appears under its name only when it is complete. After an interruption it does
//! not exist, or has its previous contents. Stdout and devices have no such guarantee.

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

/// The place to which a command writes its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Stdout,
    /// A file, which may exist already.
    File(PathBuf),
    /// A path that is not a regular file, such as `/dev/null`. Data is written to the device,
    /// because a rename to its path would replace the device with a regular file.
    Device(PathBuf),
}

impl Destination {
    /// The destination that the option `-o` names. Without the option, data goes to stdout.
    ///
    /// # Errors
    ///
    /// The path is a directory, or there is no option and stdout is a terminal.
    pub(super) fn new(path: Option<&Path>) -> anyhow::Result<Self> {
        match path {
            None if stdout().is_terminal() => bail!(Usage("the data is binary; give -o FILE, or -o - for stdout")),
            None => Ok(Self::Stdout),
            Some(path) if path == Path::new("-") => Ok(Self::Stdout),
            Some(path) => match path.metadata() {
                Ok(metadata) if metadata.is_dir() => bail!(Usage("-o is a directory, not a file")),
                Ok(metadata) if !metadata.is_file() => Ok(Self::Device(path.to_owned())),
                // Replace the target of a symbolic link, not the link itself: with `/dev/stdout`,
                // that would replace a link in `/dev`.
                Ok(_) if path.is_symlink() => {
                    let target = path.canonicalize().with_context(|| cannot_write(path))?;
                    Ok(Self::File(target))
                }
                // A regular file, or no file yet. If the path cannot be read for another reason,
                // writing to it fails later with that reason.
                _ => Ok(Self::File(path.to_owned())),
            },
        }
    }

    pub(super) const fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Begins data that stays in a temporary file until it is published. For a destination file,
    /// the temporary file is in the same directory, so that publishing can rename it.
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

    /// Begins data that is only verified when its last byte was received. Data for a file stays in
    /// a temporary file until then. Data for stdout or a device is written as it arrives, because a
    /// temporary directory may be too small for it.
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

    /// Begins a pull of the whole file `file`, as [`stream`](Self::stream) does. For a destination
    /// file, the received bytes stay in a partial file if the run is interrupted, and the next run
    /// continues with them.
    pub(super) fn resumable(&self, file: FileHash) -> anyhow::Result<Stream> {
        let Self::File(path) = self else { return self.stream() };
        let Some(name) = path.file_name() else { return self.stream() };
        let id = partial_id(file, &name.to_string_lossy());
        match PartialFile::open_beside(path, &id).with_context(|| cannot_write(path))? {
            Some(partial) => Ok(Stream::Partial(Partial::new(partial))),
            // Another process is receiving the same file, or something else has the name of the
            // partial file. Then this run receives the file without being resumable.
            None => self.stream(),
        }
    }

    /// Discards the partial file of `file`, if there is one, because its data may be wrong.
    pub(super) fn discard(&self, file: FileHash) {
        if let Ok(Stream::Partial(partial)) = self.resumable(file) {
            partial.discard();
        }
    }

    /// Publishes streamed data. The caller has verified that it is complete and right. Nothing is
    /// left to do for stdout and devices.
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

    /// Publishes the data of a draft: renames it to the destination file, or copies it to stdout or
    /// to the device.
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

/// Data in a temporary file. Dropping it without publishing discards the data.
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

/// Data that is written in order while it is received.
pub(super) enum Stream {
    /// A temporary file that an interruption discards.
    Draft(Draft),
    /// A partial file with which the next run continues.
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
            // Bytes that were written there cannot be taken back.
            Self::Stdout | Self::Device(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "the data was already printed"))
            }
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

/// The text of an error about this path.
pub(super) fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
