//! The one door to publishing files, and durable removal, for the store and for commands.
//!
//! After [`TempFile::publish`] returned `Ok`, the file has exactly the bytes written, under its
//! final name, and both survive a power cut. A crash can leave a temporary file. In a directory for
//! temporary files [`clear_directory`] removes it at the next start. Beside a file of another name
//! it stays, as `.zorb-….tmp`, unless [`remove_leftovers`] is called. A [`PartialFile`] stays to be
//! continued. Not covered: a disk that acknowledges syncs that it did not do.
//!
//! All functions block.

mod enclosure;
mod partial;
mod private;

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

pub(crate) use self::enclosure::{EnclosedFile, Enclosure};
pub(crate) use self::partial::PartialFile;
use self::private::is_plain;
pub(crate) use self::private::{open_lock, read_private};
use super::system::{begin_writeback, set_direct};

/// What has to divide addresses, places and lengths of what is written past the page cache: the
/// largest block of a disk in use.
pub(crate) const DIRECT_ALIGNMENT: usize = 4096;

/// A file under a temporary name. Dropped unpublished, it is removed.
#[derive(Debug)]
pub(crate) struct TempFile {
    path: PathBuf,
    file: Option<File>,
    published: bool,
}

impl TempFile {
    /// A new empty file in the directory `directory`, which must be on the file system of the final
    /// name: rename needs that.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        Self::create_at(directory.join(own_name()))
    }

    /// A new empty file in the directory of `path`, where it will be published.
    pub(crate) fn create_beside(path: &Path) -> io::Result<Self> {
        Self::create_at(parent(path)?.join(own_name_beside()))
    }

    fn create_at(path: PathBuf) -> io::Result<Self> {
        // Readable too, for `copy_to`: `create_new` opens for both.
        let file = File::create_new(&path)?;
        Ok(Self { path, file: Some(file), published: false })
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file_mut().write_all(bytes)
    }

    /// Appends bytes past the page cache where the file system can do that, and as
    /// [`write`](Self::write) does where it cannot. Their address, their length and their place in
    /// the file are to be multiples of [`DIRECT_ALIGNMENT`]. Nothing is durable by that, either.
    pub(crate) fn write_direct(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.file_mut();
        if set_direct(file, true).is_err() {
            return file.write_all(bytes);
        }
        // At an explicit offset: on ext4 of Linux 6.1.64 a direct write does not advance the file's
        // own offset, and the next write would overwrite it.
        let begin = file.stream_position()?;
        let written = file.write_at(bytes, begin);
        // For this only: what follows may be of any length.
        set_direct(file, false)?;
        self.write_rest(begin, written, bytes)
    }

    /// Writes through the page cache what a direct write at `begin` left out, because it was cut
    /// short (as by a full disk) or refused. If that fails too, its error is the one returned.
    fn write_rest(&mut self, begin: u64, written: io::Result<usize>, bytes: &[u8]) -> io::Result<()> {
        let written_len = written.unwrap_or(0);
        let file = self.file_mut();
        file.seek(SeekFrom::Start(begin + written_len as u64))?;
        file.write_all(&bytes[written_len..])
    }

    /// Asks the kernel to begin to write out these bytes, and does not wait: nothing is durable by
    /// that, but the sync will have less to do. Pages that are clean by then may leave memory, so
    /// this is for bytes that were written just now.
    pub(crate) fn begin_writeback(&mut self, bytes: Range<u64>) {
        begin_writeback(self.file_mut(), &bytes);
    }

    /// Restricts the file to its owner (mode 0600); call it before writing.
    pub(crate) fn restrict_to_owner(&mut self) -> io::Result<()> {
        self.file_mut().set_permissions(Permissions::from_mode(0o600))
    }

    /// Forgets what was written.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        let file = self.file_mut();
        file.set_len(0)?;
        file.rewind()
    }

    /// Copies what was written to somewhere else instead of publishing it.
    pub(crate) fn copy_to(mut self, target: &mut impl Write) -> io::Result<()> {
        let file = self.file_mut();
        file.rewind()?;
        io::copy(file, target).map(drop)
    }

    fn file_mut(&mut self) -> &mut File {
        self.file.as_mut().expect("the file is open until publish takes self")
    }

    /// Makes the bytes durable, then the name: sync, close, rename, sync of the directory, which
    /// must exist and be durable. Replaces an existing file of that name.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub(crate) fn publish(mut self, path: &Path) -> io::Result<()> {
        let file = self.file.take().expect("the file is open until publish takes self");
        file.sync_all()?;
        trace("sync the file");
        drop(file);
        fs::rename(&self.path, path)?;
        trace("rename");
        self.published = true;
        sync_directory(parent(path)?)
    }
}

impl TempFile {
    /// The same for a name that must be free: an error of kind [`io::ErrorKind::AlreadyExists`]
    /// where it is not.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub(crate) fn publish_new(mut self, path: &Path) -> io::Result<()> {
        let file = self.file.take().expect("the file is open until publish takes self");
        file.sync_all()?;
        drop(file);
        match renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE).map_err(io::Error::from) {
            Ok(()) => self.published = true,
            // File systems without it have links; dropping `self` removes the temporary name.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                fs::hard_link(&self.path, path)?;
            }
            Err(error) => return Err(error),
        }
        sync_directory(parent(path)?)
    }
}

/// A directory under a temporary name, accessible only by its owner. Removed with its contents if
/// it is dropped unpublished.
#[derive(Debug)]
pub(crate) struct TempDirectory {
    path: PathBuf,
    published: bool,
}

impl TempDirectory {
    /// A new empty directory in `directory`.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let path = directory.join(own_name_beside());
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, published: false })
    }

    /// A new empty directory beside `path`, where it will be published.
    pub(crate) fn create_beside(path: &Path) -> io::Result<Self> {
        Self::create(parent(path)?)
    }

    /// Its temporary name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the directory to its final name, durably; its contents must be durable already. An
    /// empty directory of that name is replaced and its permissions are taken over; anything else
    /// of that name is an error.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub(crate) fn publish(mut self, path: &Path) -> io::Result<()> {
        match fs::metadata(path) {
            Ok(metadata) => fs::set_permissions(&self.path, metadata.permissions())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        sync_directory(&self.path)?;
        fs::rename(&self.path, path)?;
        self.published = true;
        sync_directory(parent(path)?)
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        if !self.published {
            // A courtesy, like that of a temporary file.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.published {
            // Only a courtesy: a start removes what is left in a directory for temporary files, and
            // what is left beside other files does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a directory and its parents if missing. Afterwards its name is durable, also if another
/// process created it and did not sync, and so are the names of parents made here. Parents that
/// existed before are taken to be durable.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    // Without a dot at its end: the part before the dot is not the parent directory.
    let path: PathBuf = path.components().collect();
    match make_directory(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = parent(&path)?;
            // The current directory no longer exists, or nothing can be created here: then the
            // parent is not what is missing, and continuing would never end.
            if above == path {
                return Err(error);
            }
            create_directory(above)?;
            make_directory(&path)
        }
        result => result,
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => sync_directory(parent(path)?),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
            match sync_directory(parent(path)?) {
                // A directory that this process may not read belongs to another user, who is
                // responsible for its durability.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                result => result,
            }
        }
        Err(error) => Err(error),
    }
}

/// Creates missing ones of these directories in `path`, and makes all of them durable with one
/// sync.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) fn create_directories_in(path: &Path, names: impl Iterator<Item = String>) -> io::Result<()> {
    for name in names {
        match fs::create_dir(path.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    sync_directory(path)
}

/// Removes temporary files of a dead process in the directory of `path`. Only for directories that
/// no other process writes to.
pub(crate) fn remove_leftovers(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent(path)?)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_own_name_beside) && is_plain(entry.metadata()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Opens a file for reading and writing, and where there is none, makes an empty one whose name is
/// durable.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    match File::create_new(path) {
        Ok(file) => sync_directory(parent(path)?).map(|()| file),
        // Also of a link that leads nowhere, which cannot be opened then: nothing is made where a
        // link points.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::options().read(true).write(true).open(path),
        Err(error) => Err(error),
    }
}

/// Removes a file durably; returns whether it was there.
pub(crate) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(parent(path)?).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Renames a file within its directory, durably, and with it all earlier renames and removals
/// there. The contents are not synced: see [`sync_file`]. Replaces an existing file of that name.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    trace("rename");
    sync_directory(parent(to)?)
}

/// Makes a file durable that other code has written.
pub(crate) fn sync_file(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    trace("sync the file");
    Ok(())
}

/// Removes every temporary file in a directory; returns how many there were. What has another name,
/// or is not a file, was not put there by this program, and stays.
pub(crate) fn clear_directory(path: &Path) -> io::Result<usize> {
    let paths = temp_files(path)?;
    paths.iter().try_for_each(fs::remove_file)?;
    Ok(paths.len())
}

/// How many temporary files there are in a directory.
pub(crate) fn count_temp_files(path: &Path) -> io::Result<usize> {
    Ok(temp_files(path)?.len())
}

fn temp_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_own_name) && is_plain(entry.metadata()) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// A name in a directory for temporary files.
fn own_name() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn is_own_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A name beside files of other names.
fn own_name_beside() -> String {
    format!(".zorb-{}.tmp", own_name())
}

fn is_own_name_beside(name: &str) -> bool {
    let name = name.strip_prefix(".zorb-").and_then(|name| name.strip_suffix(".tmp"));
    name.is_some_and(is_own_name)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    trace("sync the directory");
    Ok(())
}

/// Tells the tests of this module in which order things were done.
#[cfg(test)]
fn trace(step: &'static str) {
    tests::STEPS.with_borrow_mut(|steps| steps.push(step));
}

#[cfg(not(test))]
const fn trace(_: &'static str) {}

fn parent(path: &Path) -> io::Result<&Path> {
    match path.parent() {
        // The parent of a bare name is the current directory, which std spells as the empty path.
        Some(parent) if parent.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(parent) => Ok(parent),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the root directory has no parent")),
    }
}

#[cfg(test)]
mod tests;
