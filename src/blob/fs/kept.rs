//! Files of blobs that are kept open: opening one is a hop to another thread and a walk along its path, and the next
//! range of a xorb is asked for soon after the last one.
//!
//! What is got is what opening the file now would give. What this process removes or replaces is forgotten, in whatever
//! order that and the opening happen. What another process removes has no name any more, and its descriptor says so; only
//! where somebody has given it another name, by a hard link, it is read on, which is harmless: the same bytes.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use moka::sync::Cache;

use crate::blob::BlobKey;

/// Open files, the latest used ones.
#[derive(Clone, Debug)]
pub(super) struct KeptFiles {
    files: Cache<BlobKey, Arc<File>>,
    /// Counts what was removed or replaced.
    changes: Arc<AtomicU64>,
}

/// How much had changed when a file was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening(u64);

impl KeptFiles {
    /// Room for so many files; none with 0.
    pub(super) fn new(count: u64) -> Self {
        Self { files: Cache::new(count), changes: Arc::default() }
    }

    /// The file of this blob, if it is open. Does not block: what is asked for is in memory as long as it is open.
    pub(super) fn get(&self, key: BlobKey) -> Option<Arc<File>> {
        let file = self.files.get(&key)?;
        if is_named(&file) {
            return Some(file);
        }
        self.files.invalidate(&key);
        None
    }

    /// To be called before a file is opened.
    pub(super) fn opening(&self) -> Opening {
        Opening(self.changes.load(Ordering::SeqCst))
    }

    /// Keeps a file that was opened since then.
    pub(super) fn insert(&self, key: BlobKey, file: Arc<File>, Opening(seen): Opening) {
        self.files.insert(key, file);
        if self.changes.load(Ordering::SeqCst) != seen {
            // It may be this one that changed: opened before, and forgotten before it was kept.
            self.files.invalidate(&key);
        }
    }

    /// The file was removed or replaced.
    pub(super) fn forget(&self, key: BlobKey) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.files.invalidate(&key);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.files.run_pending_tasks();
        self.files.entry_count()
    }

    /// Closes those that were removed or replaced: their room comes back when nobody reads them any more.
    pub(super) fn close_removed(&self) {
        for (key, file) in &self.files {
            if !is_named(&file) {
                self.files.invalidate(&*key);
            }
        }
        self.files.run_pending_tasks();
    }
}

fn is_named(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}
