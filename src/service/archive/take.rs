//! Takes a backup: appends to an archive what it does not have yet. Clients may write to the store
//! meanwhile.
//!
//! A run takes no lock and no snapshot of the store. It lists all xorbs, and appends those that the
//! archive does not have. Then it lists all files page by page, and appends a file only if the
//! archive has all of its xorbs. A file that was registered before the run is appended, because its
//! xorbs are in the list. If a compaction has switched the file to new xorbs after the list was
//! made, a second pass over xorbs and files appends it. A file that is registered during the run is
//! appended as a whole or left to the next run.
//!
//! Every xorb is verified while its blob is read, so that no damage gets into the archive. A
//! damaged xorb is reported and left out, with the files that need it. So is a Hub repository with
//! a damaged commit or directory. The run continues with the others.
//!
//! After `Ok` everything that was appended is durable. A crash leaves the archive up to its last
//! complete blob, and the next run continues there.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use thiserror::Error;

use super::catalog::{Known, RecordDigest};
use super::error::{ArchiveError, BackupError};
use super::hub;
use super::pages::{Page, encode_with_digest};
use super::record::is_readable;
use super::record::{KeysHead, frame};
use super::write::BackupArchive;
use super::{Kind, Watch};
use crate::blob::BlobKey;
use crate::format::xorb::{Unpacked, Unpacker, VerifiedXorb};
use crate::format::{ByteRange, FileHash, XorbHash};
use crate::index::{FileRecord, XorbRow};
use crate::rca::Storage;
use crate::runtime::blocking::{Pool, Running};
use crate::runtime::incarnation::Incarnation;
use crate::service::access::KeyRing;
use crate::service::hub::{Copying, HubPart, HubState, hub_states};
use crate::service::{ReadError, Store, StoreError};

/// A page is written as one blob of the archive when it has this length. So small xorbs share a
/// blob, because each blob costs two syncs.
const PAGE_LEN: u64 = 8 << 20;

/// The result of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackedUp {
    /// Number of xorbs that were appended.
    pub xorb_count: u64,
    /// Bytes of the blobs of these xorbs in the store.
    pub serialized_len: u64,
    /// Number of files that were appended, because they were new or have changed.
    pub file_count: u64,
    /// Whether keys were appended.
    pub added_keys: bool,
    /// Number of reported problems: xorbs that could not be read, and files whose record would be
    /// too long.
    pub problem_count: u64,
    /// Number of files that were left out: they need an unreadable xorb, or their record would be
    /// too long.
    pub left_out_count: u64,
    /// Number of files that wait for the next run, because one of their xorbs was stored after the
    /// last list of xorbs.
    pub waiting_count: u64,
    /// Number of Hub repositories that were appended.
    pub hub_count: u64,
    /// Number of those that were left out, because commits or directories of them are damaged.
    pub left_out_hub_count: u64,
    /// Number of bytes by which the archive has grown.
    pub added_len: u64,
    /// Length of the archive in bytes.
    pub archive_len: u64,
    /// Number of bytes of the archive that were read to learn what it contains.
    pub archive_read_len: u64,
}

impl Store {
    /// Appends all xorbs and files that the archive does not have yet, and the keys if they are
    /// given. Does not change the store. Uses up to two workers: one verifies xorbs while the other
    /// writes the archive.
    ///
    /// # Errors
    ///
    /// See [`BackupError`]. An unreadable xorb is not an error but counted in the result.
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
            store: self,
            known,
            pipe,
            watch,
            done: BackedUp::default(),
            unreadable: HashSet::new(),
            too_long: HashSet::new(),
        };
        // The branches are read before the lists of xorbs and files, which then have all contents
        // of their commits.
        let hub = hub_states(self.index.as_ref()).await.map_err(StoreError::from)?;
        run.take_xorbs().await?;
        run.take_files().await?;
        if run.done.waiting_count > 0 {
            // A compaction may have switched an old file to new xorbs after the list of xorbs was
            // made. The new xorbs were stored before the switch, so a second list has them.
            (run.done.waiting_count, run.done.left_out_count) = (0, 0);
            run.take_xorbs().await?;
            run.take_files().await?;
        }
        run.take_hub(hub).await?;
        if let Some(keys) = keys {
            run.take_keys(keys).await?;
        }
        run.finish().await
    }

    /// Reads and verifies a xorb, and returns it in its unpacked form. `None` if the xorb was
    /// deleted after it was listed.
    async fn read_xorb(&self, listed: &ListedXorb) -> Result<Option<Unpacked>, ReadError> {
        let hash = listed.hash;
        let mut listed = *listed;
        let mut blob = loop {
            let range = ByteRange::new(0, listed.len).expect("a layout has at least one chunk");
            let key = BlobKey::new(hash, listed.incarnation);
            if let Some(blob) = self.blobs.read(key, range).await.map_err(StoreError::from)? {
                break blob;
            }
            match self.find_row(hash).await? {
                None => return Ok(None),
                // The listed blob was replaced and deleted: read the current one.
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

    /// The error for a blob that is a valid xorb, but another one than the row says. It names the
    /// first chunk that differs.
    async fn altered(&self, hash: XorbHash, read: &VerifiedXorb) -> Result<ReadError, ReadError> {
        let columns = self.index.find_chunks(hash).await.map_err(StoreError::from)?;
        let expected = columns.map(|columns| columns.hashes).unwrap_or_default();
        let same = expected.iter().zip(read.chunk_hashes()).take_while(|(expected, read)| expected == read).count();
        Ok(ReadError::Altered { hash, chunk: u32::try_from(same).unwrap_or(u32::MAX) })
    }

    async fn find_row(&self, hash: XorbHash) -> Result<Option<XorbRow>, StoreError> {
        Ok(self.index.find_xorb(hash).await?)
    }
}

/// A xorb in the list of a run, with the blob that its row named then.
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

/// The state of one run.
struct Run<'a, S> {
    store: &'a Store,
    /// What the archive contains, including what this run has appended.
    known: Known,
    pipe: Pipe<S>,
    watch: Arc<dyn Watch>,
    done: BackedUp,
    /// Xorbs that could not be read.
    unreadable: HashSet<XorbHash>,
    /// Files whose record would be too long.
    too_long: HashSet<FileHash>,
}

impl<S: Storage + Send + 'static> Run<'_, S> {
    /// Lists all xorbs, and appends those that the archive does not have.
    async fn take_xorbs(&mut self) -> Result<(), BackupError> {
        let mut rows = Vec::new();
        for hash in self.store.index.list_xorbs().await.map_err(StoreError::from)? {
            if self.known.xorbs.contains(&hash) || self.unreadable.contains(&hash) {
                continue;
            }
            // If the xorb was deleted meanwhile, no file needs it.
            if let Some(row) = self.store.find_row(hash).await? {
                rows.push(ListedXorb::new(&row));
            }
        }
        self.watch.total(rows.iter().map(|xorb| xorb.len).sum());
        let (mut page, mut position) = (Page::default(), 0);
        for listed in rows {
            let ListedXorb { hash, len, .. } = listed;
            match self.store.read_xorb(&listed).await {
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

    /// Lists all files, and appends those that are new or have changed and whose xorbs the archive
    /// has.
    async fn take_files(&mut self) -> Result<(), BackupError> {
        let (mut page, mut after) = (Page::default(), None);
        loop {
            let files = self.store.index.file_records(after).await.map_err(StoreError::from)?;
            let Some(last) = files.last() else { break };
            after = Some(last.hash);
            for file in files {
                let (encoded, digest) = encode_with_digest(&file);
                if self.known.files.get(&file.hash) == Some(&digest) || !self.has_xorbs_of(&file).await? {
                    continue;
                }
                if !is_readable(&encoded) {
                    // With this record, the archive could never be restored, and no record can be
                    // removed from it.
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

    /// Whether the archive has all xorbs of the file. If not, counts the file: as left out if one
    /// of the missing xorbs is unreadable or has no row, otherwise as waiting.
    async fn has_xorbs_of(&mut self, file: &FileRecord) -> Result<bool, BackupError> {
        let is_missing = |xorb: &XorbHash| !self.known.xorbs.contains(xorb);
        let missing: HashSet<XorbHash> = file.terms.iter().map(|term| term.xorb).filter(is_missing).collect();
        let unknown: Vec<XorbHash> = missing.difference(&self.unreadable).copied().collect();
        for hash in unknown {
            // A row stays for as long as a file needs it. So without the row no later run has the
            // xorb.
            if self.store.find_row(hash).await?.is_none() {
                self.watch.problem(&ReadError::Missing { hash });
                self.unreadable.insert(hash);
                self.done.problem_count += 1;
            }
        }
        if missing.is_empty() {
            return Ok(true);
        }
        if missing.is_disjoint(&self.unreadable) {
            self.done.waiting_count += 1;
        } else {
            self.done.left_out_count += 1;
        }
        Ok(false)
    }

    /// Appends the Hub repositories that are new or have changed.
    async fn take_hub(&mut self, states: Vec<HubState>) -> Result<(), BackupError> {
        let mut page = Page::default();
        for state in states {
            let (name, digest) = (state.repo.storage_name.clone(), hub::digest_of(&state));
            if self.known.hub.get(&name) == Some(&digest) {
                continue;
            }
            if hub::report_damage(self.store.index.as_ref(), state.clone(), &*self.watch).await? {
                self.done.left_out_hub_count += 1;
                continue;
            }
            let (mut copying, mut is_complete) = (Copying::begin(self.store.index.as_ref(), state), false);
            loop {
                let parts = copying.next().await.map_err(StoreError::from)?;
                if parts.is_empty() {
                    break;
                }
                for part in &parts {
                    page.push_hub(hub::encode(part, (&name, digest)));
                    if matches!(part, HubPart::Refs(_)) {
                        is_complete = true;
                        page.entries.hub.insert(name.clone(), digest);
                    }
                }
                if page.content_len() >= PAGE_LEN {
                    self.pipe.append(Kind::Hub, std::mem::take(&mut page)).await?;
                }
            }
            // It is not if the repository was deleted meanwhile.
            if is_complete {
                self.known.hub.insert(name, digest);
                self.done.hub_count += 1;
            }
        }
        self.pipe.append(Kind::Hub, page).await
    }

    /// Appends the keys, unless they are the last keys in the archive.
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

    /// Writes the last catalog, and completes the result.
    async fn finish(mut self) -> Result<BackedUp, BackupError> {
        let mut archive = self.pipe.settle().await?;
        let archive = self.store.pool.run(move || archive.close().map(|()| archive)).await?;
        self.done.added_len = archive.added_len();
        self.done.archive_len = archive.len();
        self.done.archive_read_len = archive.read_len();
        Ok(self.done)
    }
}

/// A file has so many repositories and owners that its record would be too long to be read back.
#[derive(Debug, Error)]
#[error("file {file} is registered by too many repositories for a record of it")]
struct RecordTooLong {
    file: FileHash,
}

/// Appends a page to the archive while the run fills the next page. So at most two pages are in
/// memory.
struct Pipe<S> {
    pool: Pool,
    /// The archive, until the first append.
    idle: Option<BackupArchive<S>>,
    /// The append that is running. It returns the archive.
    running: Option<Running<Result<BackupArchive<S>, ArchiveError>>>,
}

impl<S: Storage + Send + 'static> Pipe<S> {
    /// Waits until the previous page is appended, and begins to append this one.
    async fn append(&mut self, kind: Kind, page: Page) -> Result<(), BackupError> {
        if page.is_empty() {
            return Ok(());
        }
        let mut archive = self.settle().await?;
        self.running = Some(self.pool.start(move || archive.append(kind, page).map(|()| archive)).await);
        Ok(())
    }

    /// Waits until the running append has ended, and returns the archive.
    async fn settle(&mut self) -> Result<BackupArchive<S>, BackupError> {
        if let Some(running) = self.running.take() {
            return Ok(running.await?);
        }
        Ok(self.idle.take().expect("the archive is idle unless an append is running, and an error ends the run"))
    }
}
