//! The only code that publishes files and removes them durably, for the store and for commands.
//!
//! After [`TempFile::publish`] has returned `Ok`, the file has exactly the written bytes, under its
//! final name, and both survive a power cut. This does not hold for a disk that acknowledges syncs
//! that it did not do.
//!
//! A crash can leave a temporary file. In a directory for temporary files, [`clear_directory`]
//! removes it at the next start. In any other directory it stays, as `.zorb-….tmp`, unless
//! [`remove_leftovers`] is called. A [`PartialFile`] stays, too, so that the next run can continue
//! it. All functions block.

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
pub(crate) use self::partial::{PartialFile, is_temporary_name};
pub(crate) use self::private::{MAX_PRIVATE_LEN, open_lock, read_private};
use self::private::{give_to_owner_of_directory, is_plain};
use super::system::{begin_writeback, set_direct};

/// The memory address, file offset and length of a direct write (past the page cache) must be
/// multiples of this. It is the largest block size of disks in use.
pub(crate) const DIRECT_ALIGNMENT: usize = 4096;

/// A file under a temporary name. If it is dropped unpublished, it is removed.
#[derive(Debug)]
pub(crate) struct TempFile {
    path: PathBuf,
    file: Option<File>,
    published: bool,
}

impl TempFile {
    /// A new empty file in `directory`. The final name must be on the same file system, because a
    /// rename cannot move a file to another one.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        Self::create_at(directory.join(own_name()))
    }

    /// A new empty file in the directory of `path`, where it will be published.
    pub(crate) fn create_beside(path: &Path) -> io::Result<Self> {
        Self::create_at(parent(path)?.join(own_name_beside()))
    }

    fn create_at(path: PathBuf) -> io::Result<Self> {
        // `create_new` opens the file for writing and for reading, which `copy_to` needs.
        let file = File::create_new(&path)?;
        give_to_owner_of_directory(&file, &path)?;
        Ok(Self { path, file: Some(file), published: false })
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file_mut().write_all(bytes)
    }

    /// Appends bytes past the page cache if the file system supports it, or else like
    /// [`write`](Self::write). Their address, length and file offset should be multiples of
    /// [`DIRECT_ALIGNMENT`]. If the kernel refuses the write, it is repeated through the page
    /// cache. The bytes are not durable yet.
    pub(crate) fn write_direct(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.file_mut();
        if set_direct(file, true).is_err() {
            return file.write_all(bytes);
        }
        // Write at an explicit offset: on ext4 of Linux 6.1.64 a direct write does not advance the
        // file's own offset, so the next write would overwrite these bytes.
        let begin = file.stream_position()?;
        let written = file.write_at(bytes, begin);
        // Direct mode is for this write only, because the next one may have any length.
        set_direct(file, false)?;
        self.write_rest(begin, written, bytes)
    }

    /// Completes the direct write at `begin`, whose result is `written`. If it was short or
    /// refused, writes the rest of the bytes through the page cache.
    fn write_rest(&mut self, begin: u64, written: io::Result<usize>, bytes: &[u8]) -> io::Result<()> {
        let written_len = written.unwrap_or(0);
        let file = self.file_mut();
        file.seek(SeekFrom::Start(begin + written_len as u64))?;
        file.write_all(&bytes[written_len..])
    }

    /// Asks the kernel to begin to write these bytes to the disk, and does not wait. Afterwards
    /// they are not durable, but the sync has less to do. The kernel may evict pages of the range
    /// that are on the disk already, so call this right after writing.
    pub(crate) fn begin_writeback(&mut self, bytes: Range<u64>) {
        begin_writeback(self.file_mut(), &bytes);
    }

    /// Restricts the file to its owner (mode 0600). To be called before writing.
    pub(crate) fn restrict_to_owner(&mut self) -> io::Result<()> {
        self.file_mut().set_permissions(Permissions::from_mode(0o600))
    }

    /// Discards the written bytes, so that the file is empty again.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        let file = self.file_mut();
        file.set_len(0)?;
        file.rewind()
    }

    /// Copies the written bytes to `target` instead of publishing the file.
    pub(crate) fn copy_to(mut self, target: &mut impl Write) -> io::Result<()> {
        let file = self.file_mut();
        file.rewind()?;
        io::copy(file, target).map(drop)
    }

    /// Reads this part of the written bytes.
    #[cfg(feature = "s3")]
    pub(crate) fn read_part(&mut self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        self.file_mut().read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    }

    fn file_mut(&mut self) -> &mut File {
        self.file.as_mut().expect("the file is open until publish takes self")
    }

    /// Gives the file its final name, durably: syncs the file, closes it, renames it, and syncs the
    /// directory. The directory must exist and be durable. Replaces an existing file of that name.
    #[expect(clippy::disallowed_methods, reason = "the only place that publishes files")]
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
    /// Like [`publish`](Self::publish), but replaces no file. If the name exists, the error is of
    /// kind [`io::ErrorKind::AlreadyExists`]. After another error it does not, if possible.
    #[expect(clippy::disallowed_methods, reason = "the only place that publishes files")]
    pub(crate) fn publish_new(mut self, path: &Path) -> io::Result<()> {
        let file = self.file.take().expect("the file is open until publish takes self");
        file.sync_all()?;
        drop(file);
        match renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE).map_err(io::Error::from) {
            Ok(()) => self.published = true,
            // The file system does not support `NOREPLACE`. A hard link does not replace a file,
            // either. Dropping `self` then removes the temporary name.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                fs::hard_link(&self.path, path)?;
            }
            Err(error) => return Err(error),
        }
        // What is reported as failed must not be read later. The first error is reported.
        sync_directory(parent(path)?).inspect_err(|_| _ = fs::remove_file(path))
    }
}

/// A directory under a temporary name, accessible only by its owner. If it is dropped unpublished,
/// it is removed with its contents.
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

    /// The path with the temporary name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the directory to its final name, durably. Its contents must be durable already. An
    /// empty directory of that name is replaced, and its permissions are copied. Any other file of
    /// that name is an error.
    #[expect(clippy::disallowed_methods, reason = "the only place that publishes files")]
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
            // An error is ignored for the same reasons as in `TempFile`.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.published {
            // An error is ignored. In a directory for temporary files the next start removes the
            // file, and in another directory it does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a directory and its parents if missing. Afterwards its name is durable, even if another
/// process created it and did not sync. The names of parents that this call created are durable,
/// too. Parents that existed before are assumed to be durable.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    // `components` removes a final `.`: the parent of `a/.` would be `a` itself.
    let path: PathBuf = path.components().collect();
    match make_directory(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = parent(&path)?;
            // The path is the current directory, which no longer exists, or in which no file can be
            // created. `parent` returns the same path, so the recursion would never end.
            if above == path {
                return Err(error);
            }
            create_directory(above)?;
            make_directory(&path)
        }
        result => result,
    }
}

#[expect(clippy::disallowed_methods, reason = "the only place that creates directories")]
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

/// Creates the directories `names` in `path`, if missing, and makes all of them durable with one
/// sync.
#[expect(clippy::disallowed_methods, reason = "the only place that creates directories")]
pub(crate) fn create_directories_in(path: &Path, names: impl Iterator<Item = String>) -> io::Result<()> {
    for name in names {
        match fs::create_dir(path.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    sync_directory(path)
}

/// Removes temporary files that a stopped process has left in the directory of `path`. Only for
/// directories that no other process writes to.
pub(crate) fn remove_leftovers(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent(path)?)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_own_name_beside) && is_plain(entry.metadata()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Opens a file for reading and writing. If the file is missing, creates an empty one whose name is
/// durable.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    match File::create_new(path) {
        Ok(file) => sync_directory(parent(path)?).map(|()| file),
        // The existing name may be a link without a target. Then the open fails, so that no file is
        // created through a link.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::options().read(true).write(true).open(path),
        Err(error) => Err(error),
    }
}

/// Removes a file durably. Returns whether it existed.
pub(crate) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(parent(path)?).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Renames a file within its directory, durably. The sync also makes earlier renames and removals
/// in the directory durable. The contents are not synced: see [`sync_file`]. Replaces an existing
/// file of that name.
#[expect(clippy::disallowed_methods, reason = "the only place that renames files durably")]
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

/// Removes every temporary file in a directory, and returns their number. Entries with another name
/// and entries that are not files stay, because this program did not create them.
pub(crate) fn clear_directory(path: &Path) -> io::Result<usize> {
    let paths = temp_files(path)?;
    paths.iter().try_for_each(fs::remove_file)?;
    Ok(paths.len())
}

/// The number of temporary files in a directory.
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

/// A random name for a file in a directory of temporary files.
fn own_name() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn is_own_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A random name for a temporary file or directory in a directory with other files.
fn own_name_beside() -> String {
    format!(".zorb-{}.tmp", own_name())
}

fn is_own_name_beside(name: &str) -> bool {
    let name = name.strip_prefix(".zorb-").and_then(|name| name.strip_suffix(".tmp"));
    name.is_some_and(is_own_name)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::fail_as_told()?;
    File::open(path)?.sync_all()?;
    trace("sync the directory");
    Ok(())
}

/// Records a step, so that the tests of this module can check the order of the steps.
#[cfg(test)]
use self::tests::trace;

#[cfg(not(test))]
const fn trace(_: &'static str) {}

fn parent(path: &Path) -> io::Result<&Path> {
    match path.parent() {
        // The parent of a name without a directory is the current directory. The standard library
        // returns it as the empty path.
        Some(parent) if parent.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(parent) => Ok(parent),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the root directory has no parent")),
    }
}

#[cfg(test)]
mod tests;
