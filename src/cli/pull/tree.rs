//! A directory into which files with untrusted names are pulled. No name leads to a write outside
//! of it: neither `..` nor an absolute path nor a symbolic link.

use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow, bail};

use crate::cli::destination::cannot_write;
use crate::cli::partial::{Partial, partial_id};
use crate::cli::rca::Place;
use crate::client::hash_reader;
use crate::format::FileHash;
use crate::runtime::durable::{EnclosedFile, Enclosure, PartialFile, is_temporary_name};

/// Length of the buffer for a copy.
const PIECE_LEN: usize = 1 << 20;

/// The directory. Its methods block, and can be called on several threads at once.
#[derive(Debug)]
pub(super) struct Tree {
    root: Enclosure,
    /// Idle handles of the directory. Each handle has the subdirectory open that it used last. When
    /// it changes to another one, it makes the names in the previous one durable.
    spare: Mutex<Vec<Enclosure>>,
    /// Permission bits that are removed from every file.
    umask: u32,
}

impl Tree {
    /// Opens the directory at `path`; creates it if missing.
    pub(super) fn open(path: &Path, umask: u32) -> anyhow::Result<Self> {
        let root = Enclosure::open(path).with_context(|| cannot_write(path))?;
        Ok(Self { root, spare: Mutex::default(), umask })
    }

    /// Whether the file exists with this hash, and this length if given.
    pub(super) fn has(&self, path: &str, file: FileHash, len: Option<u64>) -> bool {
        let has = || -> anyhow::Result<bool> {
            let place = place(path)?;
            let found = self.root.open_file(&place.directories, place.file)?;
            let found_len = found.metadata()?.len();
            Ok(len.is_none_or(|len| len == found_len) && hash_reader(found)? == file)
        };
        // On any failure the file is pulled: writing it then succeeds or reports the cause.
        has().unwrap_or(false)
    }

    /// Writes a whole file. Replaces an existing one.
    pub(super) fn write(&self, path: &str, mode: u32, bytes: &[u8]) -> anyhow::Result<()> {
        self.put(path, mode, |file| file.write(bytes))
    }

    /// Copies a file within the directory. Replaces an existing one.
    pub(super) fn copy(&self, from: &str, to: &str, mode: u32) -> anyhow::Result<()> {
        let place = place(from)?;
        let mut source = self.root.open_file(&place.directories, place.file)?;
        source.rewind()?;
        self.put(to, mode, |file| {
            let mut piece = vec![0; PIECE_LEN];
            loop {
                let len = source.read(&mut piece)?;
                if len == 0 {
                    return Ok(());
                }
                file.write(piece.get(..len).unwrap_or_default())?;
            }
        })
    }

    /// Creates a file, lets `fill` write its contents, and publishes it.
    fn put(
        &self,
        path: &str,
        mode: u32,
        fill: impl FnOnce(&mut EnclosedFile<'_>) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let place = place(path)?;
        self.with(|enclosure| {
            let mut file = enclosure.create(&place.directories)?;
            fill(&mut file)?;
            file.set_mode(mode & !self.umask)?;
            file.publish(place.file, true)
        })
    }

    /// Begins a partial file, or opens the one of an earlier run. `None` if another process is
    /// writing it, or if something else has its name.
    pub(super) fn begin(&self, path: &str, file: FileHash) -> anyhow::Result<Option<Partial>> {
        let place = place(path)?;
        let id = partial_id(file, place.file);
        let partial =
            self.with(|enclosure| PartialFile::open_in(enclosure.directory(&place.directories)?, &id, 0o666))?;
        Ok(partial.map(Partial::new))
    }

    /// Renames a complete partial file to its final name, and makes the name durable.
    pub(super) fn finish(&self, path: &str, mode: u32, mut partial: Partial) -> anyhow::Result<()> {
        let place = place(path)?;
        partial.set_mode(mode & !self.umask)?;
        Ok(partial.publish(place.file.as_ref())?)
    }

    /// Makes the names of all files durable. No other call may be running.
    pub(super) fn sync(&self) -> io::Result<()> {
        let spare = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
        spare.into_iter().try_for_each(|mut enclosure| enclosure.sync())
    }

    /// Runs `work` with an idle handle, or with a new one if all are in use.
    fn with<T>(&self, work: impl FnOnce(&mut Enclosure) -> io::Result<T>) -> anyhow::Result<T> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut enclosure = match spare {
            Some(enclosure) => enclosure,
            None => self.root.try_clone()?,
        };
        let done = work(&mut enclosure);
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(enclosure);
        Ok(done?)
    }
}

/// Parses an untrusted path into directories and a file name.
fn place(path: &str) -> anyhow::Result<Place<'_>> {
    let place = Place::of(path).map_err(|refusal| anyhow!("its path is not usable: {refusal}"))?;
    // Such a file would take the place of the received part of another one, which has another hash.
    if is_temporary_name(place.file) || place.directories.iter().any(|name| is_temporary_name(name)) {
        bail!("its path is not usable: it is that of a temporary file of zorb");
    }
    Ok(place)
}
