//! The one place that publishes and removes files.
//!
//! What is true after [`TempFile::publish`] returned `Ok`: the file has exactly the bytes written, under its final
//! name, and both survive a power cut. What a crash can leave behind: a temporary file, which [`clear_folder`] removes
//! at the next start. What this does not protect from: a disk that says "synced" and lies.
//!
//! All functions block.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file under a temporary name. Dropped unpublished, it is removed.
#[derive(Debug)]
pub(super) struct TempFile {
    path: PathBuf,
    file: Option<File>,
    published: bool,
}

impl TempFile {
    /// A new empty file in `folder`, which must be on the same file system as the final name: rename needs that.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!("{:032x}", rand::random::<u128>()));
        let file = File::create_new(&path)?;
        Ok(Self { path, file: Some(file), published: false })
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().expect("the file is open until publish takes self").write_all(bytes)
    }

    /// Makes the bytes durable, then the name: sync, close, rename, sync the folder. Replaces what had that name.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub(super) fn publish(mut self, path: &Path) -> io::Result<()> {
        let file = self.file.take().expect("the file is open until publish takes self");
        file.sync_all()?;
        drop(file);
        let folder = parent(path)?;
        create_folder(folder)?;
        fs::rename(&self.path, path)?;
        self.published = true;
        sync_folder(folder)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.published {
            // Only a courtesy: the next start removes every temporary file, whatever happens to this call.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a folder unless it is there; a new one, and a new parent, is durable afterwards.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => sync_folder(parent(path)?),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_folder(parent(path)?)?;
            create_folder(path)
        }
        Err(error) => Err(error),
    }
}

/// Removes a file durably; returns whether it was there.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_folder(parent(path)?).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes every file in a folder; returns how many there were.
pub(super) fn clear_folder(path: &Path) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(path)? {
        fs::remove_file(entry?.path())?;
        count += 1;
    }
    Ok(count)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn parent(path: &Path) -> io::Result<&Path> {
    match path.parent() {
        // The parent of a bare name is the current folder, which std spells as the empty path.
        Some(parent) if parent.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(parent) => Ok(parent),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the root folder has no parent")),
    }
}
