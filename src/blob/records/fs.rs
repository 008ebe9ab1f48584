//! Records as files of a local directory.
//!
//! ```text
//! <root>/tmp/<32 hex>                          records that are being written
//! <root>/shards/0000000000002/0000000000002a7f one file per record, 4096 numbers per directory
//! <root>/shards/complete                       empty; marks the records as complete
//! <root>/store                                 the id of the store, 32 hexadecimal digits
//! ```
//!
//! Files are published and removed with `runtime::durable`, which guarantees durability. A record
//! never replaces an existing file, so two processes that append at once get different numbers.
//! The next number follows from the names of the files in the last directory. A crash leaves a
//! file in `tmp/`, which the next start removes, or a record that was not acknowledged.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{BlobError, MAX_RECORD_LEN, PAGE_COUNT, RecordStore, Seq};
use crate::format::StoreId;
use crate::runtime::blocking::Pool;
use crate::runtime::durable::{TempFile, create_directory, remove};

/// The number of last digits that distinguish the files of one directory. The digits before them
/// are the name of the directory.
const DIGIT_COUNT_IN_GROUP: usize = 3;

/// The number of hexadecimal digits in the name of a record.
const DIGIT_COUNT: usize = 16;

/// The file that marks the records as complete.
const COMPLETE: &str = "complete";

/// The file with the id of the store.
const STORE_ID: &str = "store";

/// Maximum number of bytes that are read from the file with the id. The id and a newline have fewer
/// bytes, so that other contents are detected.
const MAX_STORE_ID_LEN: u64 = 64;

/// A local directory as a [`RecordStore`].
#[derive(Clone, Debug)]
pub struct FsRecordStore {
    store_id: PathBuf,
    tmp: PathBuf,
    shards: PathBuf,
    pool: Pool,
    next: Arc<Mutex<Next>>,
}

#[derive(Debug)]
struct Next {
    /// The number that the next record gets if no other process has used it.
    seq: Seq,
    /// The directory of the last taken number, which is known to exist.
    group: Option<PathBuf>,
}

impl FsRecordStore {
    /// Opens the store in `root`, and creates missing directories. Blocks. Lists one directory of
    /// records and its parent, whatever the number of records.
    ///
    /// # Errors
    ///
    /// A directory cannot be created or read.
    pub fn open(root: &Path, pool: Pool) -> Result<Self, BlobError> {
        let (tmp, shards) = (root.join("tmp"), root.join("shards"));
        let last = create_directory(&tmp).and_then(|()| create_directory(&shards)).and_then(|()| find_last(&shards));
        let last = last.map_err(|error| BlobError::io("open the directory shards", None, error))?;
        let next = Next { seq: last.map_or(Seq::new(0), Seq::next), group: None };
        Ok(Self { store_id: root.join(STORE_ID), tmp, shards, pool, next: Arc::new(Mutex::new(next)) })
    }

    /// Opens the store in `root` for reading. Creates no directory. A missing store is empty.
    #[must_use]
    pub fn open_existing(root: &Path, pool: Pool) -> Self {
        // If number 0 is in use, an append fails to publish under it and then finds the last one.
        let next = Arc::new(Mutex::new(Next { seq: Seq::new(0), group: None }));
        Self { store_id: root.join(STORE_ID), tmp: root.join("tmp"), shards: root.join("shards"), pool, next }
    }

    fn path(&self, seq: Seq) -> PathBuf {
        let name = seq.to_string();
        let (group, _) = name.split_at(DIGIT_COUNT - DIGIT_COUNT_IN_GROUP);
        self.shards.join(group).join(&name)
    }

    /// Reserves a number that is unique in this process, and creates its directory. Blocks.
    fn take_number(&self) -> io::Result<(Seq, PathBuf)> {
        // A poisoned lock is harmless, because the number only increases.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = next.seq;
        let path = self.path(seq);
        let group = path.parent().unwrap_or(&self.shards);
        if next.group.as_deref() != Some(group) {
            create_directory(group)?;
            next.group = Some(group.to_owned());
        }
        next.seq = seq.next();
        Ok((seq, path))
    }

    /// Appends a record. Blocks.
    fn write(&self, record: &[u8]) -> io::Result<Seq> {
        loop {
            let mut file = TempFile::create(&self.tmp)?;
            file.write(record)?;
            let (seq, path) = self.take_number()?;
            match file.publish_new(&path) {
                Ok(()) => return Ok(seq),
                // Another process has appended a record with this number. Continue after the last
                // stored one.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    let last = find_last(&self.shards)?;
                    let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                    next.seq = last.map_or(next.seq, |last| next.seq.max(last.next()));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl RecordStore for FsRecordStore {
    fn append(&self, record: Bytes) -> BoxFuture<'_, Result<Seq, BlobError>> {
        let op = "append a record";
        let store = self.clone();
        async move {
            if record.len() as u64 > MAX_RECORD_LEN {
                return Err(BlobError::too_long(op, record.len() as u64));
            }
            let written = self.pool.run(move || store.write(&record)).await;
            written.map_err(|error| BlobError::io(op, None, error))
        }
        .boxed()
    }

    fn list(&self, after: Option<Seq>) -> BoxFuture<'_, Result<Vec<Seq>, BlobError>> {
        let shards = self.shards.clone();
        async move {
            let listed = self.pool.run(move || list_page(&shards, after)).await;
            listed.map_err(|error| BlobError::io("list the directory shards", None, error))
        }
        .boxed()
    }

    fn last(&self) -> BoxFuture<'_, Result<Option<Seq>, BlobError>> {
        let shards = self.shards.clone();
        async move {
            let last = self.pool.run(move || find_last(&shards)).await;
            last.map_err(|error| BlobError::io("list the directory shards", None, error))
        }
        .boxed()
    }

    fn read(&self, seq: Seq) -> BoxFuture<'_, Result<Option<Bytes>, BlobError>> {
        let path = self.path(seq);
        async move {
            match self.pool.run(move || read_file(&path)).await {
                Ok(record) => Ok(Some(record.into())),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(BlobError::record("read a record", seq, error)),
            }
        }
        .boxed()
    }

    fn remove(&self, seq: Seq) -> BoxFuture<'_, Result<bool, BlobError>> {
        let path = self.path(seq);
        async move {
            match self.pool.run(move || remove(&path)).await {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                removed => removed.map_err(|error| BlobError::record("remove a record", seq, error)),
            }
        }
        .boxed()
    }

    fn is_complete(&self) -> BoxFuture<'_, Result<bool, BlobError>> {
        let path = self.shards.join(COMPLETE);
        async move {
            let found = self.pool.run(move || path.try_exists()).await;
            found.map_err(|error| BlobError::io("look for shards/complete", None, error))
        }
        .boxed()
    }

    fn set_complete(&self) -> BoxFuture<'_, Result<(), BlobError>> {
        let (tmp, path) = (self.tmp.clone(), self.shards.join(COMPLETE));
        async move {
            let made = self.pool.run(move || TempFile::create(&tmp)?.publish(&path)).await;
            made.map_err(|error| BlobError::io("make shards/complete", None, error))
        }
        .boxed()
    }

    fn store_id(&self) -> BoxFuture<'_, Result<Option<StoreId>, BlobError>> {
        let path = self.store_id.clone();
        async move {
            let read = self.pool.run(move || read_store_id(&path)).await;
            read.map_err(|error| BlobError::io("read the file store", None, error))
        }
        .boxed()
    }

    fn set_store_id(&self, id: StoreId) -> BoxFuture<'_, Result<(), BlobError>> {
        let (tmp, path) = (self.tmp.clone(), self.store_id.clone());
        async move {
            let write = move || {
                let mut file = TempFile::create(&tmp)?;
                file.write(format!("{id}\n").as_bytes())?;
                file.publish_new(&path)
            };
            let written = self.pool.run(write).await;
            written.map_err(|error| BlobError::io("make the file store", None, error))
        }
        .boxed()
    }

    fn reserve_through(&self, seq: Seq) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.seq = next.seq.max(seq.next());
    }
}

fn read_store_id(path: &Path) -> io::Result<Option<StoreId>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = String::new();
    file.take(MAX_STORE_ID_LEN).read_to_string(&mut text)?;
    text.trim_end().parse().map(Some).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Reads a record. Fails if it is too long.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut record = Vec::with_capacity(usize::try_from(len.min(MAX_RECORD_LEN)).unwrap_or(0));
    // The length is checked again while reading, because the file may grow meanwhile.
    if len > MAX_RECORD_LEN || file.take(MAX_RECORD_LEN + 1).read_to_end(&mut record)? as u64 > MAX_RECORD_LEN {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "it exceeds the maximum record length"));
    }
    Ok(record)
}

/// The numbers that names in a directory represent, ascending. Other names are ignored.
fn numbers(directory: &Path, digit_count: usize) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let name = name.to_str().filter(|name| name.len() == digit_count);
        let name = name.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
        numbers.extend(name.and_then(|name| u64::from_str_radix(name, 16).ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Directories of records, as the numbers in their names, ascending.
fn groups(shards: &Path) -> io::Result<Vec<u64>> {
    match numbers(shards, DIGIT_COUNT - DIGIT_COUNT_IN_GROUP) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        groups => groups,
    }
}

fn group_path(shards: &Path, group: u64) -> PathBuf {
    shards.join(format!("{group:0width$x}", width = DIGIT_COUNT - DIGIT_COUNT_IN_GROUP))
}

fn find_last(shards: &Path) -> io::Result<Option<Seq>> {
    for group in groups(shards)?.into_iter().rev() {
        // A directory is empty if all of its records were removed.
        if let Some(last) = numbers(&group_path(shards, group), DIGIT_COUNT)?.last() {
            return Ok(Some(Seq::new(*last)));
        }
    }
    Ok(None)
}

fn list_page(shards: &Path, after: Option<Seq>) -> io::Result<Vec<Seq>> {
    let first = after.map_or(0, |after| after.next().number());
    let mut page = Vec::new();
    for group in groups(shards)?.into_iter().filter(|group| *group >= first >> (4 * DIGIT_COUNT_IN_GROUP)) {
        let found = numbers(&group_path(shards, group), DIGIT_COUNT)?.into_iter();
        page.extend(found.filter(|number| *number >= first).map(Seq::new));
        if page.len() >= PAGE_COUNT {
            break;
        }
    }
    page.truncate(PAGE_COUNT);
    Ok(page)
}
