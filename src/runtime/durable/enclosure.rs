//! Files with untrusted names, in a directory that no such name can leave.
//!
//! Every directory on the path is opened singly, relative to the previous one, and never through a
//! link. If a link exists, or is created meanwhile, only the file behind it fails. With a whole
//! path, each call would resolve links in the path again.
//!
//! After [`Enclosure::sync`] has returned `Ok`, all published files and their names are durable. A
//! crash before that can leave files without names, or temporary files.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, mkdirat, open, openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::{create_directory, own_name_beside, trace};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The mode of a new file, from which the kernel removes the bits of the umask.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
/// The mode of a new directory, likewise.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);

/// A directory for files with untrusted names.
#[derive(Debug)]
pub(crate) struct Enclosure {
    root: File,
    /// The path of the last file's directory, relative to the root, and the directory. Names in it
    /// may not be durable yet.
    last: Option<(Vec<String>, File)>,
}

impl Enclosure {
    /// The directory at `path`, created if missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            create_directory(path)?;
        }
        Ok(Self { root: File::from(open(path, DIRECTORY, Mode::empty())?), last: None })
    }

    /// The same directory, for another thread.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { root: self.root.try_clone()?, last: None })
    }

    /// Opens an existing regular file for reading. Follows no link and creates no directory.
    pub(crate) fn open_file(&self, directories: &[&str], name: &str) -> io::Result<File> {
        let mut directory = self.root.try_clone()?;
        for name in directories {
            directory = File::from(openat(&directory, *name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?);
        }
        // `NONBLOCK`, because the open of a pipe would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&directory, name, flags, Mode::empty())?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// The directory at the path `directories`, created if missing.
    pub(crate) fn directory(&mut self, directories: &[&str]) -> io::Result<File> {
        self.enter(directories)?.try_clone()
    }

    /// A new unpublished file in the directory at the path `directories`, which is created if
    /// missing.
    ///
    /// No name in `directories` may be empty, `.` or `..`, or contain a `/`. The caller checks
    /// this.
    pub(crate) fn create(&mut self, directories: &[&str]) -> io::Result<EnclosedFile<'_>> {
        let directory = self.enter(directories)?;
        let name = own_name_beside();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, &name, flags, FILE_MODE)?;
        Ok(EnclosedFile { directory, name, file: File::from(file), is_published: false })
    }

    /// Opens the directory at this path as the last one; creates it if missing.
    fn enter(&mut self, directories: &[&str]) -> io::Result<&File> {
        if self.last.as_ref().is_none_or(|(last, _)| last != directories) {
            // The previous directory is synced only now, so that consecutive files of one directory
            // need one sync.
            self.sync()?;
            let mut dir = self.root.try_clone()?;
            for name in directories {
                dir = enter(&dir, name)?;
            }
            self.last = Some((directories.iter().map(|name| (*name).to_owned()).collect(), dir));
        }
        let (_, dir) = self.last.as_ref().expect("it was set a moment ago");
        Ok(dir)
    }

    /// Makes the names of all published files durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let Some((_, directory)) = self.last.take() else { return Ok(()) };
        sync_directory(&directory)
    }
}

/// Opens a subdirectory; creates it if missing.
fn enter(directory: &File, name: &str) -> io::Result<File> {
    debug_assert!(!name.contains('/') && !["", ".", ".."].contains(&name));
    let open = || openat(directory, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
    let found = match open() {
        Err(Errno::NOENT) => {
            match mkdirat(directory, name, DIRECTORY_MODE) {
                Ok(()) => sync_directory(directory)?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            open()
        }
        found => found,
    };
    match found {
        Err(Errno::NOTDIR | Errno::LOOP) => {
            Err(io::Error::new(io::ErrorKind::NotADirectory, format!("{name} exists and is a link or a file")))
        }
        found => Ok(File::from(found?)),
    }
}

/// Syncs with `sync_all`, because `fsync` leaves bytes in the cache of the disk on macOS.
fn sync_directory(dir: &File) -> io::Result<()> {
    dir.sync_all()?;
    trace("sync the directory");
    Ok(())
}

/// A file under a temporary name. If it is dropped unpublished, it is removed.
#[derive(Debug)]
pub(crate) struct EnclosedFile<'a> {
    directory: &'a File,
    name: String,
    file: File,
    is_published: bool,
}

impl EnclosedFile<'_> {
    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Sets the permission bits of the file.
    pub(crate) fn set_mode(&mut self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Makes the bytes durable, then gives the file its name. The name is durable after
    /// [`Enclosure::sync`].
    ///
    /// With `replace`, an existing file of that name is replaced; if it is a link, the link itself
    /// is replaced and not its target. Without `replace`, an existing name is an error.
    pub(crate) fn publish(mut self, name: &str, replace: bool) -> io::Result<()> {
        self.file.sync_all()?;
        trace("sync the file");
        if replace {
            renameat(self.directory, &self.name, self.directory, name)?;
        } else {
            rename_to_free_name(self.directory.as_fd(), &self.name, name)?;
        }
        trace("rename");
        self.is_published = true;
        Ok(())
    }
}

impl Drop for EnclosedFile<'_> {
    fn drop(&mut self) {
        if !self.is_published {
            // An error is ignored. The name of the file shows that it is a temporary file of zorb.
            let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Renames a file. If the new name exists, this is an error.
fn rename_to_free_name(directory: impl AsFd, from: &str, to: &str) -> io::Result<()> {
    let directory = directory.as_fd();
    match renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
        // The file system cannot do this atomically. If another process creates the name between
        // the following two calls, its file is replaced.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => match statat(directory, to, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(renameat(directory, from, directory, to)?),
            Err(error) => Err(error.into()),
            Ok(_) => Err(Errno::EXIST.into()),
        },
        done => Ok(done?),
    }
}
