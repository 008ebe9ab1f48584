//! A cache of open files of blobs. It saves opening a file again, which costs a context switch and
//! a path lookup: the next range of a xorb is usually requested soon after the last one.
//!
//! The cache returns only files that still have a name. A file that this process removes or
//! replaces leaves the cache, even if another thread opens it at the same time. A file that another
//! process has removed or replaced is detected by its link count of 0. It is not detected if it has
//! another hard link, which is harmless because its bytes are still those of the blob.
//!
//! When the last descriptor of a removed file is closed, the kernel frees its disk blocks, which
//! can take long. So [`get`](OpenFileCache::get) returns such a file, and the caller drops it where
//! blocking is allowed. The other methods may close files, so they block.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::blob::BlobKey;

/// The most recently used files, held open.
#[derive(Clone, Debug)]
pub(super) struct OpenFileCache {
    table: Arc<Mutex<Table>>,
    max_count: usize,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<BlobKey, CachedFile>,
    /// A logical clock that counts uses of the cache.
    now: u64,
    /// The number of files that this process has removed or replaced.
    change_count: u64,
}

#[derive(Debug)]
struct CachedFile {
    file: Arc<File>,
    /// The value of `now` when the file was last used.
    used: u64,
}

/// The result of a lookup.
#[derive(Debug)]
pub(super) enum Found {
    /// The open file of the blob.
    File(Arc<File>),
    /// A file that another process has removed or replaced. The caller must drop it where blocking
    /// is allowed.
    Removed(Arc<File>),
    /// The file is not in the cache.
    Nothing,
}

/// The value of `change_count` before a file was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening(u64);

impl OpenFileCache {
    /// A cache of at most this many files; 0 turns it off.
    pub(super) fn new(max_count: usize) -> Self {
        Self { table: Arc::default(), max_count }
    }

    /// The file of this blob, if it is in the cache. Does not block, because the metadata of an
    /// open file is in memory.
    pub(super) fn get(&self, key: BlobKey) -> Found {
        let file = {
            let mut table = self.table();
            table.now += 1;
            let now = table.now;
            let Some(cached) = table.files.get_mut(&key) else { return Found::Nothing };
            cached.used = now;
            Arc::clone(&cached.file)
        };
        if is_named(&file) {
            return Found::File(file);
        }
        self.take(key, &file);
        Found::Removed(file)
    }

    /// To be called before a file is opened that is to be cached.
    pub(super) fn opening(&self) -> Opening {
        Opening(self.table().change_count)
    }

    /// Caches a file that was opened after the given [`opening`](OpenFileCache::opening). If the
    /// cache is full, evicts the least recently used file. Blocks.
    pub(super) fn insert(&self, key: BlobKey, file: Arc<File>, Opening(seen): Opening) {
        let mut table = self.table();
        // If any file was removed since `opening`, it may be this one: another thread may have
        // removed it after this thread opened it, and called `forget` before this call.
        if self.max_count == 0 || table.change_count != seen {
            return;
        }
        let is_new = !table.files.contains_key(&key);
        let oldest = table.files.iter().min_by_key(|(_, cached)| cached.used).map(|(key, _)| *key);
        let evicted = match oldest {
            Some(oldest) if is_new && table.files.len() >= self.max_count => table.files.remove(&oldest),
            _ => None,
        };
        table.now += 1;
        let used = table.now;
        let before = table.files.insert(key, CachedFile { file, used });
        drop(table);
        drop((before, evicted));
    }

    /// Drops the cached file of a blob that was removed or replaced. Blocks.
    pub(super) fn forget(&self, key: BlobKey) {
        let mut table = self.table();
        table.change_count += 1;
        let forgotten = table.files.remove(&key);
        drop(table);
        drop(forgotten);
    }

    /// Closes files that other processes have removed or replaced. Their disk blocks are freed when
    /// the last reader is done. Blocks.
    pub(super) fn close_removed(&self) {
        let files: Vec<_> = self.table().files.iter().map(|(key, cached)| (*key, Arc::clone(&cached.file))).collect();
        for (key, file) in files {
            if !is_named(&file) {
                self.take(key, &file);
            }
        }
    }

    /// Removes this file from the cache, unless another file of this blob is cached by now.
    fn take(&self, key: BlobKey, file: &Arc<File>) {
        let mut table = self.table();
        if table.files.get(&key).is_some_and(|cached| Arc::ptr_eq(&cached.file, file)) {
            table.files.remove(&key);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the file still has a name, so that no process has removed or replaced it.
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

    /// Creates and caches a file. The weak reference tells whether it is still open.
    fn cache_file(cache: &OpenFileCache, directory: &Path, byte: u8) -> Weak<File> {
        let file = Arc::new(File::create(directory.join(byte.to_string())).unwrap());
        let weak = Arc::downgrade(&file);
        cache.insert(key(byte), file, cache.opening());
        weak
    }

    fn is_open(file: &Weak<File>) -> bool {
        file.strong_count() > 0
    }

    #[test]
    fn least_recently_used_file_is_evicted_and_closed_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let cache = OpenFileCache::new(2);
        let [first, second] = [1, 2].map(|byte| cache_file(&cache, directory.path(), byte));
        assert!(matches!(cache.get(key(1)), Found::File(_)));
        let third = cache_file(&cache, directory.path(), 3);
        assert_eq!([&first, &second, &third].map(is_open), [true, false, true]);
        assert!(matches!(cache.get(key(2)), Found::Nothing));
    }

    #[test]
    fn file_that_is_cached_again_evicts_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let cache = OpenFileCache::new(2);
        let [first, second] = [1, 2].map(|byte| cache_file(&cache, directory.path(), byte));
        let again = cache_file(&cache, directory.path(), 2);
        assert_eq!([&first, &second, &again].map(is_open), [true, false, true]);
    }

    #[test]
    fn cache_of_no_files_closes_each_file() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_open(&cache_file(&OpenFileCache::new(0), directory.path(), 1)));
    }

    /// An open that began before `forget` must not put the old file back into the cache.
    #[test]
    fn forgotten_file_is_closed_and_an_earlier_open_not_cached() {
        let directory = tempfile::tempdir().unwrap();
        let cache = OpenFileCache::new(2);
        let file = cache_file(&cache, directory.path(), 1);
        let opening = cache.opening();
        cache.forget(key(1));
        assert!(!is_open(&file));
        cache.insert(key(1), Arc::new(File::open(directory.path().join("1")).unwrap()), opening);
        assert!(matches!(cache.get(key(1)), Found::Nothing));
    }

    #[test]
    fn removed_file_is_returned_to_be_closed_and_not_cached() {
        let directory = tempfile::tempdir().unwrap();
        let cache = OpenFileCache::new(2);
        let file = cache_file(&cache, directory.path(), 1);
        std::fs::remove_file(directory.path().join("1")).unwrap();
        let found = cache.get(key(1));
        assert!(matches!(found, Found::Removed(_)), "{found:?}");
        assert!(is_open(&file));
        drop(found);
        assert!(!is_open(&file));
        assert!(matches!(cache.get(key(1)), Found::Nothing));
    }

    #[test]
    fn close_removed_closes_removed_files_only() {
        let directory = tempfile::tempdir().unwrap();
        let cache = OpenFileCache::new(2);
        let [removed, named] = [1, 2].map(|byte| cache_file(&cache, directory.path(), byte));
        std::fs::remove_file(directory.path().join("1")).unwrap();
        cache.close_removed();
        assert_eq!([&removed, &named].map(is_open), [false, true]);
    }
}
