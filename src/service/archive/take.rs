//! Takes a backup, also of a store that is being written to.
//!
//! There is no lock and no snapshot. Xorbs are listed once and come first. Files follow page by
//! page, and a file is added only if the archive has all of its xorbs. So a file that was
//! registered before the run began is in the archive when it ends: its xorbs were in the list. Or a
//! compaction has switched it to new xorbs meanwhile, and a second pass over both finds them. A
//! file that is registered meanwhile is added whole or left to the next run.
//!
//! A blob is verified while it is read, so damage does not get into the archive. It is reported,
//! its files are left out, and the rest continues.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use thiserror::Error;

use super::catalog::{Known, RecordDigest};
use super::error::{ArchiveError, BackupError};
use super::pages::{Page, encode_with_digest};
use super::record::is_readable;
use super::record::{KeysHead, frame};
use super::write::BackupArchive;
use super::{Kind, Watch};
use crate::blob::{BlobKey, BlobStore};
use crate::format::xorb::{Unpacked, Unpacker, VerifiedXorb};
use crate::format::{ByteRange, FileHash, XorbHash};
use crate::index::{FileRecord, Index, XorbRow};
use crate::rca::Storage;
use crate::runtime::blocking::{Pool, Running};
use crate::runtime::incarnation::Incarnation;
use crate::service::access::KeyRing;
use crate::service::{ReadError, StoreError};

/// Contents at which a blob is written. Small xorbs share one: each blob costs two syncs and is
/// committed as a whole.
const PAGE_LEN: u64 = 8 << 20;

/// A store to be backed up.
#[derive(Debug)]
pub struct Origin {
    /// Its blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// Its index; only read.
    pub index: Arc<dyn Index>,
    /// Verifies blobs and writes the archive; up to two threads are used.
    pub pool: Pool,
}

/// The result of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackedUp {
    /// Xorbs that the archive did not have.
    pub xorb_count: u64,
    /// Bytes of their blobs.
    pub serialized_len: u64,
    /// Files that the archive did not have, or not in their current state.
    pub file_count: u64,
    /// Whether keys were added.
    pub added_keys: bool,
    /// Xorbs that could not be read; each was reported.
    pub problem_count: u64,
    /// Files that need one of them.
    pub left_out_count: u64,
    /// Files whose xorbs were added during the run; the next one adds them.
    pub waiting_count: u64,
    /// Bytes by which the archive has grown.
    pub added_len: u64,
    /// Bytes of the archive.
    pub archive_len: u64,
    /// Bytes of the archive that were read to learn its contents.
    pub archive_read_len: u64,
}

impl Origin {
    /// Adds everything that the archive does not have yet.
    ///
    /// # Errors
    ///
    /// See [`BackupError`]. Unreadable parts of the store are no error but counted.
    pub async fn back_up<S>(
        &self,
        storage: S,
        keys: Option<&KeyRing>,
        watch: Arc<dyn Watch>,
    ) -> Result<BackedUp, BackupError>
    where
        S: Storage + Send + 'static,
    {
        let (archive, known) = self.pool.run(move || BackupArchive::open(storage)).await?;
        let pipe = Pipe { pool: self.pool.clone(), idle: Some(archive), running: None };
        let mut run = Run {
            origin: self,
            known,
            pipe,
            watch,
            done: BackedUp::default(),
            unreadable: HashSet::new(),
            too_long: HashSet::new(),
        };
        run.take_xorbs().await?;
        run.take_files().await?;
        if run.done.waiting_count > 0 {
            // A compaction may have switched an old file to new xorbs while this run listed the old
            // ones. The new ones existed before the switch, so a second pass finds them.
            (run.done.waiting_count, run.done.left_out_count) = (0, 0);
            run.take_xorbs().await?;
            run.take_files().await?;
        }
        if let Some(keys) = keys {
            run.take_keys(keys).await?;
        }
        run.finish().await
    }

    /// The xorb in its unpacked form, verified; `None` where the index no longer has it either.
    async fn read_xorb(&self, listed: &ListedXorb) -> Result<Option<Unpacked>, ReadError> {
        let hash = listed.hash;
        let mut listed = *listed;
        let mut blob = loop {
            let range = ByteRange::new(0, listed.len).expect("a layout has at least one chunk");
            let key = BlobKey::new(hash, listed.incarnation);
            if let Some(blob) = self.blobs.read(key, range).await.map_err(StoreError::from)? {
                break blob;
            }
            match self.find(hash).await? {
                None => return Ok(None),
                // Replaced long ago.
                Some(row) if row.incarnation != listed.incarnation => listed = ListedXorb::new(&row),
                Some(_) => return Err(ReadError::Missing { hash }),
            }
        };
        let mut unpacker = Unpacker::new(listed.raw_len);
        while let Some(piece) = blob.try_next().await.map_err(StoreError::from)? {
            let push = move || unpacker.push(&piece).map(|()| unpacker);
            let pushed = self.pool.run(push).await;
            unpacker = pushed.map_err(|source| ReadError::Damaged { hash, source })?;
        }
        let (xorb, unpacked) = unpacker.finish().map_err(|source| ReadError::Damaged { hash, source })?;
        if xorb.hash() == hash { Ok(Some(unpacked)) } else { Err(self.altered(hash, &xorb).await?) }
    }

    /// Finds the first chunk of a blob that differs from the uploaded one.
    async fn altered(&self, hash: XorbHash, read: &VerifiedXorb) -> Result<ReadError, ReadError> {
        let columns = self.index.find_chunks(hash).await.map_err(StoreError::from)?;
        let expected = columns.map(|columns| columns.hashes).unwrap_or_default();
        let same = expected.iter().zip(read.chunk_hashes()).take_while(|(expected, read)| expected == read).count();
        Ok(ReadError::Altered { hash, chunk: u32::try_from(same).unwrap_or(u32::MAX) })
    }

    async fn find(&self, hash: XorbHash) -> Result<Option<XorbRow>, StoreError> {
        Ok(self.index.find_xorb(hash).await?)
    }
}

/// A xorb of the list at the beginning.
#[derive(Clone, Copy)]
struct ListedXorb {
    hash: XorbHash,
    incarnation: Incarnation,
    len: u64,
    raw_len: u64,
}

impl ListedXorb {
    fn new(row: &XorbRow) -> Self {
        let XorbRow { hash, incarnation, layout, .. } = row;
        Self { hash: *hash, incarnation: *incarnation, len: layout.serialized_len(), raw_len: layout.raw_len() }
    }
}

/// One run.
struct Run<'a, S> {
    origin: &'a Origin,
    known: Known,
    pipe: Pipe<S>,
    watch: Arc<dyn Watch>,
    done: BackedUp,
    unreadable: HashSet<XorbHash>,
    too_long: HashSet<FileHash>,
}

impl<S: Storage + Send + 'static> Run<'_, S> {
    async fn take_xorbs(&mut self) -> Result<(), BackupError> {
        let mut rows = Vec::new();
        for hash in self.origin.index.list_xorbs().await.map_err(StoreError::from)? {
            if self.known.xorbs.contains(&hash) || self.unreadable.contains(&hash) {
                continue;
            }
            // A xorb that was deleted meanwhile was not needed.
            if let Some(row) = self.origin.find(hash).await? {
                rows.push(ListedXorb::new(&row));
            }
        }
        self.watch.total(rows.iter().map(|xorb| xorb.len).sum());
        let (mut page, mut position) = (Page::default(), 0);
        for listed in rows {
            let ListedXorb { hash, len, .. } = listed;
            match self.origin.read_xorb(&listed).await {
                Ok(Some(unpacked)) => {
                    page.push_xorb(hash, unpacked);
                    self.known.xorbs.insert(hash);
                    self.done.xorb_count += 1;
                    self.done.serialized_len += len;
                }
                Ok(None) => {}
                Err(problem) => {
                    self.watch.problem(&problem);
                    self.unreadable.insert(hash);
                    self.done.problem_count += 1;
                }
            }
            position += len;
            self.watch.position(position);
            if page.content_len() >= PAGE_LEN {
                self.pipe.append(Kind::Xorbs, std::mem::take(&mut page)).await?;
            }
        }
        self.pipe.append(Kind::Xorbs, page).await
    }

    async fn take_files(&mut self) -> Result<(), BackupError> {
        let (mut page, mut after) = (Page::default(), None);
        loop {
            let files = self.origin.index.file_records(after).await.map_err(StoreError::from)?;
            let Some(last) = files.last() else { break };
            after = Some(last.hash);
            for file in files {
                let (encoded, digest) = encode_with_digest(&file);
                if self.known.files.get(&file.hash) == Some(&digest) || !self.has_xorbs_of(&file) {
                    continue;
                }
                if !is_readable(&encoded) {
                    // An archive with it could never be restored, and nothing can be removed from
                    // one.
                    if self.too_long.insert(file.hash) {
                        self.watch.problem(&RecordTooLong { file: file.hash });
                        self.done.problem_count += 1;
                    }
                    self.done.left_out_count += 1;
                    continue;
                }
                self.known.files.insert(file.hash, digest);
                self.done.file_count += 1;
                page.push_file(&file, encoded, digest);
                if page.content_len() >= PAGE_LEN {
                    self.pipe.append(Kind::Files, std::mem::take(&mut page)).await?;
                }
            }
        }
        self.pipe.append(Kind::Files, page).await
    }

    /// Whether the archive has all xorbs of the file. If not, the file is counted.
    fn has_xorbs_of(&mut self, file: &FileRecord) -> bool {
        let is_missing = |xorb: &XorbHash| !self.known.xorbs.contains(xorb);
        let mut missing = file.terms.iter().map(|term| term.xorb).filter(is_missing).peekable();
        if missing.peek().is_none() {
            return true;
        }
        if missing.any(|xorb| self.unreadable.contains(&xorb)) {
            self.done.left_out_count += 1;
        } else {
            self.done.waiting_count += 1;
        }
        false
    }

    async fn take_keys(&mut self, keys: &KeyRing) -> Result<(), BackupError> {
        let text = keys.to_file_text();
        let digest = RecordDigest::of(text.expose().as_bytes());
        if self.known.keys == Some(digest) {
            return Ok(());
        }
        let head = frame(&KeysHead { keys: "key-file".to_owned() }, text.expose().len() as u64);
        let mut page = Page::default();
        page.push_keys(head, text.expose(), digest);
        self.done.added_keys = true;
        self.pipe.append(Kind::Keys, page).await
    }

    async fn finish(mut self) -> Result<BackedUp, BackupError> {
        let mut archive = self.pipe.settle().await?;
        let archive = self.origin.pool.run(move || archive.close().map(|()| archive)).await?;
        self.done.added_len = archive.added_len();
        self.done.archive_len = archive.len();
        self.done.archive_read_len = archive.read_len();
        Ok(self.done)
    }
}

/// The names of the file's repositories and owners exceed the limit for reading its record.
#[derive(Debug, Error)]
#[error("file {file} is registered by too many repositories for a record of it")]
struct RecordTooLong {
    file: FileHash,
}

/// The archive, which is appended to while the next page is being read: at most two pages are in
/// memory.
struct Pipe<S> {
    pool: Pool,
    idle: Option<BackupArchive<S>>,
    running: Option<Running<Result<BackupArchive<S>, ArchiveError>>>,
}

impl<S: Storage + Send + 'static> Pipe<S> {
    /// Waits for the previous page, and begins to append this one.
    async fn append(&mut self, kind: Kind, page: Page) -> Result<(), BackupError> {
        if page.is_empty() {
            return Ok(());
        }
        let mut archive = self.settle().await?;
        self.running = Some(self.pool.start(move || archive.append(kind, page).map(|()| archive)).await);
        Ok(())
    }

    /// Waits until everything is appended.
    async fn settle(&mut self) -> Result<BackupArchive<S>, BackupError> {
        if let Some(running) = self.running.take() {
            return Ok(running.await?);
        }
        Ok(self.idle.take().expect("the archive is idle unless an append is running, and an error ends the run"))
    }
}
