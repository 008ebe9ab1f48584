//! Blobs as files of a local directory.
//!
//! ```text
//! <root>/tmp/<32 hex>                  drafts
//! <root>/xorbs/ee/eea2…7632.<16 hex>   one file per blob, by the first two digits of its hash
//! <root>/xorbs/ee/eea2…7632            a blob of an older version, which has no incarnation
//! ```
//!
//! Files are published and removed with `runtime::durable`, which guarantees durability. Every
//! operation runs in closures on the disk pool. A closure that has begun runs to its end even if
//! the caller's future is dropped.
//!
//! Reads are an exception: if bytes of an open file are in the page cache, they are read on the
//! caller's thread, by a system call that fails instead of blocking. A read continues even if the
//! file is removed meanwhile, because the stream holds the file open.

mod blocks;
mod buffers;
mod draft;
mod kept;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, try_unfold};

use self::blocks::Blocks;
use self::buffers::{Buffers, Piece};
use self::draft::FsDraft;
use self::kept::{Found, OpenFileCache};
use super::{BlobError, BlobKey, BlobStore, BlobStream, Draft, free_len_of};
use crate::format::ByteRange;
use crate::runtime::blocking::Pool;
use crate::runtime::durable::{
    TempFile, clear_directory, count_temp_files, create_directories_in, create_directory, remove,
};
use crate::runtime::system::read_cached;

/// A local directory as a [`BlobStore`].
#[derive(Clone, Debug)]
pub struct FsBlobStore {
    tmp: PathBuf,
    xorbs: PathBuf,
    pool: Pool,
    /// For reads of bytes that are not in the page cache.
    reads: Pool,
    /// The cache of open files.
    kept: OpenFileCache,
    buffers: Buffers,
    blocks: Blocks,
    /// Whether drafts are written past the page cache (`O_DIRECT`).
    is_direct: bool,
}

impl FsBlobStore {
    /// Opens the store in `root`, and creates missing directories, which are durable afterwards.
    /// Blocks.
    ///
    /// # Errors
    ///
    /// A directory cannot be created.
    pub fn open(root: &Path, pool: Pool) -> Result<Self, BlobError> {
        let store = Self::open_existing(root, pool);
        // All 256 directories are created now, so that a draft is always renamed into a durable
        // directory.
        let groups = (0..=u8::MAX).map(|group| format!("{group:02x}"));
        create_directory(&store.tmp)
            .and_then(|()| create_directory(&store.xorbs))
            .and_then(|()| create_directories_in(&store.xorbs, groups))
            .map_err(|error| BlobError::io("create the directories tmp and xorbs", None, error))?;
        Ok(store)
    }

    /// Opens the store in `root` for reading. Creates no directory. If the store is missing, no
    /// blob is found.
    #[must_use]
    pub fn open_existing(root: &Path, pool: Pool) -> Self {
        let (kept, buffers, blocks) = (OpenFileCache::new(0), Buffers::default(), Blocks::default());
        let reads = pool.clone();
        Self { tmp: root.join("tmp"), xorbs: root.join("xorbs"), pool, reads, kept, buffers, blocks, is_direct: false }
    }

    /// The same store with at most `count` concurrent reads from the disk. A low limit leaves CPU
    /// time for reads from the page cache.
    #[must_use]
    pub fn with_read_limit(self, count: usize) -> Self {
        Self { reads: Pool::new(count), ..self }
    }

    /// The same store with direct writes on or off. With direct writes, full blocks of drafts are
    /// written past the page cache if the file system supports it.
    #[must_use]
    pub fn writing_directly(self, is_direct: bool) -> Self {
        Self { is_direct, ..self }
    }

    /// The same store with a cache of up to `count` open files, which were read before. The caller
    /// must call [`BlobStore::close_removed`] regularly.
    #[must_use]
    pub fn with_open_files(self, count: usize) -> Self {
        Self { kept: OpenFileCache::new(count), ..self }
    }

    /// Opens the file of a blob and caches it. `removed` is a cached file of this blob that another
    /// process has removed. It is dropped on the pool, because closing it may block.
    async fn open_file(&self, key: BlobKey, removed: Option<Arc<File>>) -> Result<Option<Arc<File>>, BlobError> {
        let (path, kept) = (self.path(key), self.kept.clone());
        let open = move || {
            drop(removed);
            let opening = kept.opening();
            let file = Arc::new(File::open(path)?);
            kept.insert(key, Arc::clone(&file), opening);
            Ok::<_, io::Error>(file)
        };
        match self.pool.run(open).await {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(BlobError::io("open", Some(key), error)),
        }
    }

    fn path(&self, key: BlobKey) -> PathBuf {
        let name = key.to_string();
        let (directory, _) = name.split_at(2);
        self.xorbs.join(directory).join(&name)
    }
}

impl BlobStore for FsBlobStore {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        let file = TempFile::create(&self.tmp).map_err(|error| BlobError::io("begin a draft", None, error))?;
        Ok(Box::new(FsDraft::new(file, self.clone())))
    }

    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        async move {
            let file = match self.kept.get(key) {
                Found::File(file) => Some(file),
                Found::Removed(file) => self.open_file(key, Some(file)).await?,
                Found::Nothing => self.open_file(key, None).await?,
            };
            let Some(file) = file else { return Ok(None) };
            let reader = FsReader { file, key, range, at: range.start(), buffers: self.buffers.clone() };
            Ok(Some(stream(reader, self.reads.clone())))
        }
        .boxed()
    }

    fn close_removed(&self) -> BoxFuture<'_, ()> {
        let kept = self.kept.clone();
        async move { self.pool.run(move || kept.close_removed()).await }.boxed()
    }

    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        let path = self.path(key);
        async move {
            let len = self.pool.run(move || blob_len(&path)).await;
            len.map_err(|error| BlobError::io("look up", Some(key), error))
        }
        .boxed()
    }

    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>> {
        let (path, kept) = (self.path(key), self.kept.clone());
        async move {
            let remove = move || {
                let removed = remove(&path);
                kept.forget(key);
                removed
            };
            let removed = self.pool.run(remove).await;
            removed.map_err(|error| BlobError::io("delete", Some(key), error))
        }
        .boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        let dir = self.xorbs.clone();
        async move {
            let keys = self.pool.run(move || list_keys(&dir)).await;
            keys.map_err(|error| BlobError::io("list the directory xorbs", None, error))
        }
        .boxed()
    }

    fn list_group(&self, group: u8) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        let dir = self.xorbs.join(format!("{group:02x}"));
        async move {
            let keys = self.pool.run(move || list_group(&dir)).await;
            keys.map_err(|error| BlobError::io("list a directory of xorbs", None, error))
        }
        .boxed()
    }

    fn draft_count(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        let dir = self.tmp.clone();
        async move {
            let count = self.pool.run(move || count_temp_files(&dir)).await;
            count.map_err(|error| BlobError::io("list the directory tmp", None, error))
        }
        .boxed()
    }

    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        let dir = self.tmp.clone();
        async move {
            let count = self.pool.run(move || clear_directory(&dir)).await;
            count.map_err(|error| BlobError::io("remove stray drafts from the directory tmp", None, error))
        }
        .boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        let dir = self.tmp.clone();
        async move {
            let probed = self.pool.run(move || TempFile::create(&dir)?.write(b"probe")).await;
            probed.map_err(|error| BlobError::io("write to the directory tmp", None, error))
        }
        .boxed()
    }

    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        let directory = self.tmp.clone();
        async move {
            let asked = self.pool.run(move || free_len_of(&directory)).await;
            asked.map(Some).map_err(|error| BlobError::io("query the free space", None, error))
        }
        .boxed()
    }
}

/// A file whose `range` is read from front to back.
struct FsReader {
    file: Arc<File>,
    key: BlobKey,
    range: ByteRange,
    /// The offset of the next piece.
    at: u64,
    buffers: Buffers,
}

/// Streams the pieces of a reader. Bytes that are not in the page cache are read on `pool`.
fn stream(reader: FsReader, pool: Pool) -> BlobStream {
    try_unfold((reader, pool), |(mut reader, pool)| async move {
        if reader.at == reader.range.end() {
            return Ok(None);
        }
        let (mut piece, resident_len) = reader.read_resident();
        if resident_len < piece.bytes_mut().len() {
            let read = pool.run(move || (reader.read_rest(&mut piece, resident_len), piece, reader)).await;
            let result;
            (result, piece, reader) = read;
            result?;
        }
        reader.at += piece.bytes_mut().len() as u64;
        Ok(Some((piece.freeze(), (reader, pool))))
    })
    .boxed()
}

impl FsReader {
    /// Takes a buffer for the next piece, and fills it with bytes from the page cache as far as
    /// possible. Returns the number of bytes that were read.
    fn read_resident(&self) -> (Piece, usize) {
        let wanted = usize::try_from(self.range.end() - self.at).unwrap_or(usize::MAX);
        let mut piece = self.buffers.take(wanted);
        let read_len = read_cached(&self.file, piece.bytes_mut(), self.at);
        (piece, read_len)
    }

    /// Reads the bytes of a piece after the first `have_len`. Blocks.
    fn read_rest(&self, piece: &mut Piece, mut have_len: usize) -> Result<(), BlobError> {
        let bytes = piece.bytes_mut();
        while have_len < bytes.len() {
            let at = self.at + have_len as u64;
            match self.file.read_at(&mut bytes[have_len..], at) {
                Ok(0) => return Err(BlobError::short(self.key, self.range, at)),
                Ok(len) => have_len += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(BlobError::io("read", Some(self.key), error)),
            }
        }
        Ok(())
    }
}

fn list_keys(directory: &Path) -> io::Result<Vec<BlobKey>> {
    let mut keys = Vec::new();
    for group in fs::read_dir(directory)? {
        keys.extend(list_group(&group?.path())?);
    }
    Ok(keys)
}

fn list_group(directory: &Path) -> io::Result<Vec<BlobKey>> {
    let mut keys = Vec::new();
    for file in fs::read_dir(directory)? {
        // A file whose name is not a key does not belong to the store, and is ignored.
        keys.extend(file?.file_name().to_str().and_then(BlobKey::parse));
    }
    Ok(keys)
}

fn blob_len(path: &Path) -> io::Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        // The directories are created when the store is opened. If this directory is missing, the
        // disk is probably not mounted, so the blob may still exist.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(Path::is_dir) => Ok(None),
        Err(error) => Err(error),
    }
}
