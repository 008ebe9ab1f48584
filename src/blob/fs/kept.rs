//! Cache of open files of blobs. Opening a file costs a switch to another thread and a path lookup,
//! and the next range of a xorb is usually requested soon after the last one.
//!
//! A cached file is always the file that an open would return now. Files that this process removes
//! or replaces leave the cache, in whatever order that and the opening happen. The descriptor of a
//! file that another process removed has a link count of 0. Only a file that got another name by a
//! hard link is still read, which is harmless: it has the same bytes.
//!
//! Closing the last descriptor of a removed file frees its blocks, which can take the file system
//! long. So every file that leaves the cache is dropped at a place of the caller's choice:
//! [`get`](KeptFiles::get) returns it, all other methods block.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::blob::BlobKey;

/// Open files, the latest used ones.
#[derive(Clone, Debug)]
pub(super) struct KeptFiles {
    table: Arc<Mutex<Table>>,
    max_count: usize,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<BlobKey, Kept>,
    /// Counts what was asked for.
    now: u64,
    /// Counts what was removed or replaced.
    change_count: u64,
}

#[derive(Debug)]
struct Kept {
    file: Arc<File>,
    /// When it was asked for last.
    used: u64,
}

/// What there is of a blob.
#[derive(Debug)]
pub(super) enum Found {
    /// Its file, open.
    File(Arc<File>),
    /// A file that was removed or replaced behind our back; to be dropped where that may block.
    Removed(Arc<File>),
    /// No open file.
    Nothing,
}

/// How much had changed when a file was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening(u64);

impl KeptFiles {
    /// A cache of at most this many files; 0 turns it off.
    pub(super) fn new(max_count: usize) -> Self {
        Self { table: Arc::default(), max_count }
    }

    /// The file of this blob, if it is open. Does not block: what is asked for is in memory as long
    /// as it is open.
    pub(super) fn get(&self, key: BlobKey) -> Found {
        let file = {
            let mut table = self.table();
            table.now += 1;
            let now = table.now;
            let Some(kept) = table.files.get_mut(&key) else { return Found::Nothing };
            kept.used = now;
            Arc::clone(&kept.file)
        };
        if is_named(&file) {
            return Found::File(file);
        }
        self.take(key, &file);
        Found::Removed(file)
    }

    /// To be called before a file is opened.
    pub(super) fn opening(&self) -> Opening {
        Opening(self.table().change_count)
    }

    /// Caches a file that was opened since then; evicts the least recently used one. Blocks.
    pub(super) fn insert(&self, key: BlobKey, file: Arc<File>, Opening(seen): Opening) {
        let mut table = self.table();
        // Where something has changed it may be this one: opened before, and forgotten before it
        // was kept.
        if self.max_count == 0 || table.change_count != seen {
            return;
        }
        let is_new = !table.files.contains_key(&key);
        let oldest = table.files.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key);
        let evicted = match oldest {
            Some(oldest) if is_new && table.files.len() >= self.max_count => table.files.remove(&oldest),
            _ => None,
        };
        table.now += 1;
        let used = table.now;
        let before = table.files.insert(key, Kept { file, used });
        drop(table);
        drop((before, evicted));
    }

    /// The file was removed or replaced. Blocks.
    pub(super) fn forget(&self, key: BlobKey) {
        let mut table = self.table();
        table.change_count += 1;
        let forgotten = table.files.remove(&key);
        drop(table);
        drop(forgotten);
    }

    /// Closes files that other processes removed or replaced; their blocks are freed when the last
    /// reader is done. Blocks.
    pub(super) fn close_removed(&self) {
        let files: Vec<_> = self.table().files.iter().map(|(key, kept)| (*key, Arc::clone(&kept.file))).collect();
        for (key, file) in files {
            if !is_named(&file) {
                self.take(key, &file);
            }
        }
    }

    /// Takes out this file, if it is still the one of this blob.
    fn take(&self, key: BlobKey, file: &Arc<File>) {
        let mut table = self.table();
        if table.files.get(&key).is_some_and(|kept| Arc::ptr_eq(&kept.file, file)) {
            table.files.remove(&key);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_named(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Weak;

    use super::*;
    use crate::format::XorbHash;
    use crate::runtime::incarnation::Incarnation;

    fn key(byte: u8) -> BlobKey {
        BlobKey::new(XorbHash::from_bytes([byte; 32]), Incarnation::from_number(7))
    }

    /// Keeps a new file, and gives what tells whether it is open.
    fn keep(kept: &KeptFiles, directory: &Path, byte: u8) -> Weak<File> {
        let file = Arc::new(File::create(directory.join(byte.to_string())).unwrap());
        let weak = Arc::downgrade(&file);
        kept.insert(key(byte), file, kept.opening());
        weak
    }

    fn is_open(file: &Weak<File>) -> bool {
        file.strong_count() > 0
    }

    #[test]
    fn least_recently_used_file_is_evicted_and_closed_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let kept = KeptFiles::new(2);
        let [first, second] = [1, 2].map(|byte| keep(&kept, directory.path(), byte));
        assert!(matches!(kept.get(key(1)), Found::File(_)));
        let third = keep(&kept, directory.path(), 3);
        assert_eq!([&first, &second, &third].map(is_open), [true, false, true]);
        assert!(matches!(kept.get(key(2)), Found::Nothing));
    }

    #[test]
    fn a_file_that_is_kept_again_takes_the_place_of_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let kept = KeptFiles::new(2);
        let [first, second] = [1, 2].map(|byte| keep(&kept, directory.path(), byte));
        let again = keep(&kept, directory.path(), 2);
        assert_eq!([&first, &second, &again].map(is_open), [true, false, true]);
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_open(&keep(&KeptFiles::new(0), directory.path(), 1)));
    }

    /// An open that began before it must not put the old file back.
    #[test]
    fn forgotten_file_is_closed_and_an_earlier_open_not_cached() {
        let directory = tempfile::tempdir().unwrap();
        let kept = KeptFiles::new(2);
        let file = keep(&kept, directory.path(), 1);
        let opening = kept.opening();
        kept.forget(key(1));
        assert!(!is_open(&file));
        kept.insert(key(1), Arc::new(File::open(directory.path().join("1")).unwrap()), opening);
        assert!(matches!(kept.get(key(1)), Found::Nothing));
    }

    #[test]
    fn removed_file_is_returned_to_be_closed_and_not_cached() {
        let directory = tempfile::tempdir().unwrap();
        let kept = KeptFiles::new(2);
        let file = keep(&kept, directory.path(), 1);
        std::fs::remove_file(directory.path().join("1")).unwrap();
        let found = kept.get(key(1));
        assert!(matches!(found, Found::Removed(_)), "{found:?}");
        assert!(is_open(&file));
        drop(found);
        assert!(!is_open(&file));
        assert!(matches!(kept.get(key(1)), Found::Nothing));
    }

    #[test]
    fn removed_files_are_closed_unasked_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let kept = KeptFiles::new(2);
        let [removed, named] = [1, 2].map(|byte| keep(&kept, directory.path(), byte));
        std::fs::remove_file(directory.path().join("1")).unwrap();
        kept.close_removed();
        assert_eq!([&removed, &named].map(is_open), [false, true]);
    }
}
