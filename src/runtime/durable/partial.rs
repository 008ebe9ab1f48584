//! Files that a program receives in several runs. The temporary name identifies the complete file,
//! so that the next run finds the bytes of the previous ones.

use std::ffi::OsStr;
use std::fs::{File, Permissions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, open, openat, renameat, statat, unlinkat};

use super::parent;
use crate::runtime::system::begin_writeback;

/// Maximum number of attempts to open a file that other processes publish at the same time.
const MAX_OPEN_COUNT: u32 = 8;

/// The beginning of a file (the data), and a second file with notes about its chunks, so that the
/// next run can continue. One process at a time holds both.
///
/// Neither file is durable before `publish`, so the next run must verify them. A crash leaves both.
#[derive(Debug)]
pub(crate) struct PartialFile {
    directory: File,
    name: String,
    data: File,
    notes: File,
    is_removed_or_published: bool,
}

impl PartialFile {
    /// The partial file in the directory of `path`, where it will be published. `None` if another
    /// process holds it, or if its name belongs to another kind of file.
    pub(crate) fn open_beside(path: &Path, id: &str) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::open_in(File::from(open(parent(path)?, flags, Mode::empty())?), id, 0o666)
    }

    /// Like [`open_beside`](Self::open_beside), in this directory. A new file gets the permissions
    /// `mode`, subject to the umask.
    pub(crate) fn open_in(directory: File, id: &str, mode: u32) -> io::Result<Option<Self>> {
        let name = format!(".zorb-{id}.part");
        for _ in 0..MAX_OPEN_COUNT {
            let Some(data) = open_own(&directory, &name, mode)? else { return Ok(None) };
            match data.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Another process may have published the file between the open and the lock.
            let (ours, named) = (data.metadata()?, statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW));
            if named.is_ok_and(|named| named.st_ino == ours.ino()) {
                let Some(notes) = open_own(&directory, &notes_name(&name), 0o600)? else { return Ok(None) };
                return Ok(Some(Self { directory, name, data, notes, is_removed_or_published: false }));
            }
        }
        Ok(None)
    }

    /// Sets the permission bits of the data, which the published file keeps.
    pub(crate) fn set_mode(&mut self, mode: u32) -> io::Result<()> {
        self.data.set_permissions(Permissions::from_mode(mode))
    }

    /// The data and the notes, each with its own file offset.
    pub(crate) fn files(&mut self) -> (&mut File, &mut File) {
        (&mut self.data, &mut self.notes)
    }

    /// Writes bytes to the data, and asks the kernel to begin to write them to the disk. Otherwise
    /// the sync in `publish` would wait for all bytes of a large file.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let begin = self.data.stream_position()?;
        self.data.write_all(bytes)?;
        begin_writeback(&self.data, &(begin..begin.saturating_add(bytes.len() as u64)));
        Ok(())
    }

    /// Makes the data durable, renames it within its directory, and deletes the notes. Replaces an
    /// existing file of that name.
    pub(crate) fn publish(mut self, name: &OsStr) -> io::Result<()> {
        self.data.sync_all()?;
        renameat(&self.directory, &self.name, &self.directory, name)?;
        self.is_removed_or_published = true;
        remove(&self.directory, &notes_name(&self.name));
        self.directory.sync_all()
    }

    /// Removes both files, because the next run could not continue with them.
    pub(crate) fn discard(mut self) {
        self.remove();
    }

    fn remove(&mut self) {
        remove(&self.directory, &self.name);
        remove(&self.directory, &notes_name(&self.name));
        self.is_removed_or_published = true;
    }
}

impl Drop for PartialFile {
    /// Removes an empty partial file, and releases the lock: a process that is being started at
    /// this moment has the open file until it runs its program, so closing it here would not.
    fn drop(&mut self) {
        if !self.is_removed_or_published && self.data.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            self.remove();
        }
        let _ = self.data.unlock();
    }
}

/// Whether this is the name of a temporary file or partial file, of this program or another one of
/// its kind. Files of others must not get such a name: it would be published or removed.
pub(crate) fn is_temporary_name(name: &str) -> bool {
    let is_ours = |end: &str| name.ends_with(end);
    name.starts_with(".zorb-") && [".tmp", ".part", ".part.chunks"].into_iter().any(is_ours)
}

fn notes_name(name: &str) -> String {
    format!("{name}.chunks")
}

/// Opens or creates a regular file of this user. `None` if the name belongs to another kind of
/// file, to a file of another user, or to a file with further hard links.
fn open_own(directory: &File, name: &str, mode: u32) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(directory, name, flags, Mode::from_raw_mode(mode | 0o600)) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::ISDIR | rustix::io::Errno::ACCESS) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    let is_own = metadata.is_file() && metadata.nlink() == 1 && metadata.uid() == rustix::process::geteuid().as_raw();
    Ok(is_own.then_some(file))
}

/// Removes a file. An error is ignored, because the next run finds the file and verifies it.
fn remove(directory: impl AsFd, name: &str) {
    let _ = unlinkat(directory, name, AtFlags::empty());
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn next_run_finds_the_written_bytes_and_no_other_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("target");
        let names = || {
            let mut names: Vec<_> =
                directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        drop(PartialFile::open_beside(&path, "id").unwrap().unwrap());
        assert!(names().is_empty(), "an empty file is removed");
        let mut first = PartialFile::open_beside(&path, "id").unwrap().unwrap();
        first.files().0.write_all(b"begun").unwrap();
        assert!(PartialFile::open_beside(&path, "id").unwrap().is_none(), "one at a time");
        drop(first);
        assert_eq!(names(), [".zorb-id.part", ".zorb-id.part.chunks"]);
        let mut second = PartialFile::open_beside(&path, "id").unwrap().unwrap();
        assert_eq!(second.files().0.metadata().unwrap().len(), 5);
        second.publish("target".as_ref()).unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names().len()), (b"begun".to_vec(), 1));
        let mut third = PartialFile::open_beside(&path, "id").unwrap().unwrap();
        third.files().0.write_all(b"x").unwrap();
        third.discard();
        assert_eq!(names(), ["target"]);
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        #[expect(clippy::disallowed_methods, reason = "a test's file need not survive a crash")]
        std::fs::write(&other, b"other").unwrap();
        std::os::unix::fs::symlink(&other, directory.path().join(".zorb-id.part")).unwrap();
        assert!(PartialFile::open_beside(&directory.path().join("target"), "id").unwrap().is_none());
        assert_eq!(std::fs::read(&other).unwrap(), b"other");
    }
}
