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
    /// Links and special files in folders.
    pub(super) skipped_count: u64,
}

impl Found {
    fn push(&mut self, path: PathBuf, metadata: &Metadata) {
        self.len += metadata.len();
        self.paths.push(path);
        self.modes.push(metadata.mode());
    }
}

/// Follows what was typed: a link that is typed is followed, one that is found is not. What is no file and no folder is an
/// error where it was typed, and left out where it was found.
pub(super) fn walk(typed: &[PathBuf]) -> anyhow::Result<Found> {
    let mut found = Found::default();
    for path in typed {
        let metadata = fs::metadata(path).with_context(|| cannot_read(path))?;
        if metadata.is_dir() {
            walk_folder(path.clone(), &mut found)?;
        } else if metadata.is_file() {
            found.push(path.clone(), &metadata);
        } else {
            bail!("{} is neither a file nor a folder", path.display());
        }
    }
    Ok(found)
}

/// Goes through a folder, sorted by name. A stack of its own, so that a deep tree does not take the machine's.
fn walk_folder(folder: PathBuf, found: &mut Found) -> anyhow::Result<()> {
    let mut stack = list(&folder)?;
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

/// What is in a folder, the first name last.
fn list(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = entries.with_context(|| cannot_read(folder))?;
    paths.sort_by(|a, b| b.cmp(a));
    Ok(paths)
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}
