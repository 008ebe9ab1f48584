//! Which files a command line stands for.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The files, in order.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) paths: Vec<PathBuf>,
    /// The permission bits of each.
    pub(super) modes: Vec<u32>,
    /// Bytes of all of them.
    pub(super) len: u64,
    /// Links and special files in directories.
    pub(super) skipped_count: u64,
}

impl Found {
    fn push(&mut self, path: PathBuf, metadata: &Metadata) {
        self.len += metadata.len();
        self.paths.push(path);
        self.modes.push(metadata.mode());
    }
}

/// Links given as arguments are followed, links found in directories are not. A special file is an
/// error as an argument, and skipped in a directory.
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

/// Walks a directory, sorted by name, with an explicit stack, so that a deep tree does not overflow
/// the thread's.
fn walk_directory(directory: PathBuf, found: &mut Found) -> anyhow::Result<()> {
    let mut stack = list(&directory)?;
    while let Some(path) = stack.pop() {
        let metadata = fs::symlink_metadata(&path).with_context(|| cannot_read(&path))?;
        if metadata.is_dir() {
            stack.extend(list(&path)?);
        } else if metadata.is_file() {
            found.push(path, &metadata);
        } else {
            found.skipped_count += 1;
        }
    }
    Ok(())
}

/// The entries of a directory, the first name last.
fn list(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = entries.with_context(|| cannot_read(directory))?;
    paths.sort_by(|a, b| b.cmp(a));
    Ok(paths)
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}
