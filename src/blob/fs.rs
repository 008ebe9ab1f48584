//! Blobs as files of a local folder.
//!
//! ```text
//! <root>/tmp/<32 hex>              drafts
//! <root>/xorbs/ea/eea2…7632        one file per xorb, by the first two digits of its hash
//! ```
//!
//! Durability is that of `runtime::durable`. Every operation is one closure on the disk pool, never a sequence of hops,
//! so a caller that goes away cannot leave a half-done one behind. Reads of a file that was removed meanwhile go on:
//! the stream holds it open.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{StreamExt, try_unfold};
use rustix::fs::statvfs;

use super::{BlobError, BlobKey, BlobStore, BlobStream, Draft};
use crate::format::ByteRange;
use crate::runtime::blocking::Pool;
use crate::runtime::durable::{TempFile, clear_folder, create_folder, create_folders_in, remove};

/// Bytes that one hop to the disk pool reads, at most. Large enough that the hop's cost does not show, small enough
/// that a thousand slow readers hold a gigabyte and not a hundred.
const READ_LEN: u64 = 1 << 20;

/// A local folder as a [`BlobStore`].
#[derive(Clone, Debug)]
pub struct FsBlobStore {
    tmp: PathBuf,
    xorbs: PathBuf,
    pool: Pool,
}

impl FsBlobStore {
    /// Opens the store in `root`, creating its folders where needed. Blocks.
    ///
    /// # Errors
    ///
    /// A folder cannot be created.
    pub fn open(root: &Path, pool: Pool) -> Result<Self, BlobError> {
        let store = Self { tmp: root.join("tmp"), xorbs: root.join("xorbs"), pool };
        // All of them now, so that publishing never has to wonder whether the folder it renames into is durable.
        let groups = (0..=u8::MAX).map(|group| format!("{group:02x}"));
        create_folder(&store.tmp)
            .and_then(|()| create_folder(&store.xorbs))
            .and_then(|()| create_folders_in(&store.xorbs, groups))
            .map_err(|error| BlobError::io("create the folders tmp and xorbs", None, error))?;
        Ok(store)
    }

    /// The store that is in `root`, to be read: makes no folder, so that a blob of a store that is not there is just
    /// not found.
    #[must_use]
    pub fn open_existing(root: &Path, pool: Pool) -> Self {
        Self { tmp: root.join("tmp"), xorbs: root.join("xorbs"), pool }
    }

    fn path(&self, key: BlobKey) -> PathBuf {
        let name = key.xorb_hash().to_string();
        let (folder, _) = name.split_at(2);
        self.xorbs.join(folder).join(&name)
    }
}

impl BlobStore for FsBlobStore {
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError> {
        let file = TempFile::create(&self.tmp).map_err(|error| BlobError::io("begin a draft", None, error))?;
        Ok(Box::new(FsDraft { file, store: self.clone() }))
    }

    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>> {
        async move {
            let path = self.path(key);
            let opened = self.pool.run(move || open_at(&path, range.start())).await;
            let file = match opened {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(BlobError::io("open", Some(key), error)),
            };
            let reader = FsReader { file, key, range, at: range.start() };
            Ok(Some(stream(reader, self.pool.clone())))
        }
        .boxed()
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
        let path = self.path(key);
        async move {
            let removed = self.pool.run(move || remove(&path)).await;
            removed.map_err(|error| BlobError::io("delete", Some(key), error))
        }
        .boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        let folder = self.xorbs.clone();
        async move {
            let keys = self.pool.run(move || list_keys(&folder)).await;
            keys.map_err(|error| BlobError::io("list the folder xorbs", None, error))
        }
        .boxed()
    }

    fn list_group(&self, group: u8) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        let folder = self.xorbs.join(format!("{group:02x}"));
        async move {
            let keys = self.pool.run(move || list_group(&folder)).await;
            keys.map_err(|error| BlobError::io("list a folder of xorbs", None, error))
        }
        .boxed()
    }

    fn draft_count(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        let folder = self.tmp.clone();
        async move {
            let count = self.pool.run(move || fs::read_dir(folder).map(Iterator::count)).await;
            count.map_err(|error| BlobError::io("list the folder tmp", None, error))
        }
        .boxed()
    }

    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        let folder = self.tmp.clone();
        async move {
            let count = self.pool.run(move || clear_folder(&folder)).await;
            count.map_err(|error| BlobError::io("remove stray drafts from the folder tmp", None, error))
        }
        .boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        let folder = self.tmp.clone();
        async move {
            let probed = self.pool.run(move || TempFile::create(&folder)?.write(b"probe")).await;
            probed.map_err(|error| BlobError::io("write to the folder tmp", None, error))
        }
        .boxed()
    }

    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        let folder = self.tmp.clone();
        async move {
            let asked = self.pool.run(move || statvfs(&folder)).await;
            let space = asked.map_err(|error| BlobError::io("ask for the free space", None, error.into()))?;
            // What this process may use: file systems keep some for root.
            Ok(Some(space.f_bavail.saturating_mul(space.f_frsize)))
        }
        .boxed()
    }
}

#[derive(Debug)]
struct FsDraft {
    file: TempFile,
    store: FsBlobStore,
}

impl Draft for FsDraft {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.file.write(bytes).map_err(|error| BlobError::io("write a draft", None, error))
    }

    fn publish(self: Box<Self>, key: BlobKey) -> BoxFuture<'static, Result<(), BlobError>> {
        let Self { file, store } = *self;
        let path = store.path(key);
        async move {
            let published = store.pool.run(move || file.publish(&path)).await;
            published.map_err(|error| BlobError::io("publish", Some(key), error))
        }
        .boxed()
    }
}

/// A file that is read from front to back.
struct FsReader {
    file: File,
    key: BlobKey,
    range: ByteRange,
    at: u64,
}

fn open_at(path: &Path, offset: u64) -> io::Result<File> {
    let mut file = File::open(path)?;
    if offset > 0 {
        file.seek(SeekFrom::Start(offset))?;
    }
    Ok(file)
}

fn stream(reader: FsReader, pool: Pool) -> BlobStream {
    try_unfold((reader, pool), |(mut reader, pool)| async move {
        if reader.at == reader.range.end() {
            return Ok(None);
        }
        let (piece, reader) = pool.run(move || (reader.next_piece(), reader)).await;
        Ok(Some((piece?, (reader, pool))))
    })
    .boxed()
}

impl FsReader {
    fn next_piece(&mut self) -> Result<Bytes, BlobError> {
        let wanted = (self.range.end() - self.at).min(READ_LEN);
        let mut piece = Vec::with_capacity(usize::try_from(wanted).expect("1 MiB fits in memory"));
        let read = (&mut self.file).take(wanted).read_to_end(&mut piece);
        let read_len = read.map_err(|error| BlobError::io("read", Some(self.key), error))?;
        self.at += read_len as u64;
        if (read_len as u64) < wanted {
            return Err(BlobError::short(self.key, self.range, self.at));
        }
        Ok(piece.into())
    }
}

fn list_keys(folder: &Path) -> io::Result<Vec<BlobKey>> {
    let mut keys = Vec::new();
    for group in fs::read_dir(folder)? {
        keys.extend(list_group(&group?.path())?);
    }
    Ok(keys)
}

fn list_group(folder: &Path) -> io::Result<Vec<BlobKey>> {
    let mut keys = Vec::new();
    for file in fs::read_dir(folder)? {
        // A name that is no hash was not put there by us, and is none of our business.
        if let Some(hash) = file?.file_name().to_str().and_then(|name| name.parse().ok()) {
            keys.push(BlobKey::xorb(hash));
        }
    }
    Ok(keys)
}

fn blob_len(path: &Path) -> io::Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        // The folders are made when the store is opened. Without this one it is not a blob that is missing, but a disk.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(Path::is_dir) => Ok(None),
        Err(error) => Err(error),
    }
}
