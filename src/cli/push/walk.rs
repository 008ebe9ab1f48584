//! Finds the files that the arguments of a command name.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::runtime::durable::is_temporary_name;

/// The files that were found, in the order of the arguments.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) paths: Vec<PathBuf>,
    /// The mode of each file: permission bits and file type.
    pub(super) modes: Vec<u32>,
    /// Total length of the files.
    pub(super) len: u64,
    /// Number of links, special files and temporary files in directories, which are skipped.
    pub(super) skipped_count: u64,
}

impl Found {
    fn push(&mut self, path: PathBuf, metadata: &Metadata) {
        self.len += metadata.len();
        self.paths.push(path);
        self.modes.push(metadata.mode());
    }
}

/// Finds the files that the arguments name, and those below directories. A link is followed if it
/// is an argument, and skipped in a directory. A special file is an error if it is an argument, and
/// skipped in a directory, and so is what an interrupted command has left.
pub(super) fn walk(typed: &[PathBuf]) -> anyhow::Result<Found> {
    let mut found = Found::default();
    for path in typed {
        let metadata = fs::metadata(path).with_context(|| cannot_read(path))?;
        if metadata.is_dir() {
            walk_directory(path.clone(), &mut found)?;
        } else if metadata.is_file() {
            found.push(path.clone(), &metadata);
        } else {
            bail!("{} is neither a file nor a directory", path.display());
        }
    }
    Ok(found)
}

/// Finds the files below a directory, sorted by name. The stack is a vector, because recursion into
/// a deep tree could overflow the stack of the thread.
fn walk_directory(directory: PathBuf, found: &mut Found) -> anyhow::Result<()> {
    let mut stack = list(&directory)?;
    while let Some(path) = stack.pop() {
        let metadata = fs::symlink_metadata(&path).with_context(|| cannot_read(&path))?;
        if is_temporary(&path) {
            found.skipped_count += 1;
        } else if metadata.is_dir() {
            stack.extend(list(&path)?);
        } else if metadata.is_file() {
            found.push(path, &metadata);
        } else {
            found.skipped_count += 1;
        }
    }
    Ok(())
}

/// The entries of a directory in descending order, because `walk_directory` takes the last entry
/// first.
fn list(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = entries.with_context(|| cannot_read(directory))?;
    paths.sort_by(|a, b| b.cmp(a));
    Ok(paths)
}

/// Whether this is a temporary file or directory of a command that was interrupted or is under way.
fn is_temporary(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(is_temporary_name)
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}
