//! Files under untrusted names, in a directory that those names cannot lead out of.
//!
//! Every directory on the path is opened by itself, relative to the previous one, and never through
//! a link: a link that exists, or is created meanwhile, fails only that file. Whole paths would be
//! resolved anew by each call.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, mkdirat, open, openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::{create_folder, own_name_beside, trace};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Readable and writable for everybody whom the umask lets.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);

/// A directory for files with untrusted names.
#[derive(Debug)]
pub(crate) struct Enclosure {
    root: File,
    /// The directory of the last file, below the root; names in it may not be durable yet.
    last: Option<(Vec<String>, File)>,
}

impl Enclosure {
    /// The directory at `path`, created if missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            create_folder(path)?;
        }
        Ok(Self { root: File::from(open(path, FOLDER, Mode::empty())?), last: None })
    }

    /// The same directory, for another thread.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { root: self.root.try_clone()?, last: None })
    }

    /// A regular file that is there, for reading; never through a link, and nothing is made on the
    /// way.
    pub(crate) fn open_file(&self, folders: &[&str], name: &str) -> io::Result<File> {
        let mut folder = self.root.try_clone()?;
        for name in folders {
            folder = File::from(openat(&folder, *name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?);
        }
        // A pipe would keep this waiting for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&folder, name, flags, Mode::empty())?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// The directory at the path `folders`, created if missing.
    pub(crate) fn folder(&mut self, folders: &[&str]) -> io::Result<File> {
        self.enter(folders)?.try_clone()
    }

    /// A new unpublished file in the directory at the path `folders`, created if missing.
    ///
    /// None of them may be empty, `.` or `..`, or have a `/` in it.
    pub(crate) fn create(&mut self, folders: &[&str]) -> io::Result<EnclosedFile<'_>> {
        let folder = self.enter(folders)?;
        let name = own_name_beside();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(folder, &name, flags, FILE_MODE)?;
        Ok(EnclosedFile { folder, name, file: File::from(file), is_published: false })
    }

    fn enter(&mut self, folders: &[&str]) -> io::Result<&File> {
        if self.last.as_ref().is_none_or(|(last, _)| last != folders) {
            // Before the next one is begun: so one sync is enough for consecutive files of a
            // directory.
            self.sync()?;
            let mut folder = self.root.try_clone()?;
            for name in folders {
                folder = enter(&folder, name)?;
            }
            self.last = Some((folders.iter().map(|name| (*name).to_owned()).collect(), folder));
        }
        let (_, folder) = self.last.as_ref().expect("it was set a moment ago");
        Ok(folder)
    }

    /// Makes the names of all published files durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let Some((_, folder)) = self.last.take() else { return Ok(()) };
        sync_folder(&folder)
    }
}

/// Opens a directory in a directory; creates it if missing.
fn enter(folder: &File, name: &str) -> io::Result<File> {
    debug_assert!(!name.contains('/') && !["", ".", ".."].contains(&name));
    let open = || openat(folder, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
    let found = match open() {
        Err(Errno::NOENT) => {
            match mkdirat(folder, name, FOLDER_MODE) {
                Ok(()) => sync_folder(folder)?,
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

/// Not `fsync` of rustix, which leaves bytes in the cache of the disk on macOS.
fn sync_folder(folder: &File) -> io::Result<()> {
    folder.sync_all()?;
    trace("sync the directory");
    Ok(())
}

/// A file under a temporary name. Dropped unpublished, it is removed.
#[derive(Debug)]
pub(crate) struct EnclosedFile<'a> {
    folder: &'a File,
    name: String,
    file: File,
    is_published: bool,
}

impl EnclosedFile<'_> {
    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Lets these read, write and run it, in the bits of a mode.
    pub(crate) fn set_mode(&mut self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Makes the bytes durable, then gives the file its name. The name is durable after
    /// [`Enclosure::sync`].
    ///
    /// Something else of that name is replaced, itself and not what it leads to, or is an error.
    pub(crate) fn publish(mut self, name: &str, replace: bool) -> io::Result<()> {
        self.file.sync_all()?;
        trace("sync the file");
        if replace {
            renameat(self.folder, &self.name, self.folder, name)?;
        } else {
            rename_to_free_name(self.folder.as_fd(), &self.name, name)?;
        }
        trace("rename");
        self.is_published = true;
        Ok(())
    }
}

impl Drop for EnclosedFile<'_> {
    fn drop(&mut self) {
        if !self.is_published {
            // Only a courtesy: its name says whose it was.
            let _ = unlinkat(self.folder, &self.name, AtFlags::empty());
        }
    }
}

fn rename_to_free_name(folder: impl AsFd, from: &str, to: &str) -> io::Result<()> {
    let folder = folder.as_fd();
    match renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
        // File systems that cannot do it atomically: another process can create the name between
        // the two steps.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => match statat(folder, to, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(renameat(folder, from, folder, to)?),
            Err(error) => Err(error.into()),
            Ok(_) => Err(Errno::EXIST.into()),
        },
        done => Ok(done?),
    }
}
