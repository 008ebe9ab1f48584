//! Restores an archive into a new store. Every xorb and file is verified before it is stored.
//!
//! After `Ok` the new store has all xorbs and files of the archive. An error or a crash leaves an
//! incomplete store, which must be discarded. So the caller moves the new store to its final path
//! only after `Ok`. The keys of the archive are returned and not stored.

use std::io::{Read, Seek};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::Watch;
use super::error::{ArchiveError, RestoreError};
use super::read::{Item, UnpackedXorb, read_archive};
use super::store::{Files, store_xorb};
use crate::format::xorb::RepackMode;
use crate::service::access::KeyRing;
use crate::service::hub::Loading;
use crate::service::{Store, StoreError};

/// No further xorb is begun while the xorbs that are being stored have this length or more.
const IN_FLIGHT_LEN: usize = 64 << 20;

/// Maximum number of xorbs that are being stored concurrently. Small xorbs mostly wait for the
/// disk, so more of them than there are CPUs are useful.
const IN_FLIGHT_COUNT: usize = 16;

/// The result of a restore.
#[derive(Debug)]
pub struct Restored {
    /// Number of records of xorbs in the archive.
    pub xorb_count: u64,
    /// Bytes of the chunks of these xorbs.
    pub raw_len: u64,
    /// Number of records of files in the archive. A file that has changed has several.
    pub file_count: u64,
    /// The last keys in the archive; `None` if it has none.
    pub keys: Option<KeyRing>,
    /// Length of the archive in bytes.
    pub archive_len: u64,
    /// Whether bytes follow the end of the archive, because an append was interrupted. The next
    /// backup truncates them.
    pub trailing_garbage: bool,
}

impl Store {
    /// Restores an archive into this store, which must be new and not used by another process.
    /// Reads the archive once, from position 0 to its end. `mode` says whether xorbs are
    /// compressed; a restore that only verifies an archive does not compress them.
    ///
    /// The pool of this store must have at least two workers: one reads the archive during the
    /// whole restore, and the others repack xorbs.
    ///
    /// The hash of a session of the archive follows its data, so data is stored before its hash was
    /// checked. After an error the caller must therefore discard this store.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`].
    pub async fn restore<R>(&self, source: R, mode: RepackMode, watch: Arc<dyn Watch>) -> Result<Restored, RestoreError>
    where
        R: Read + Seek + Send + 'static,
    {
        let (sender, mut items) = mpsc::channel(1);
        let reading = self.pool.start(move || read_archive(source, &sender, &watch)).await;
        let mut run = Run {
            store: self,
            mode,
            tasks: FuturesUnordered::new(),
            in_flight_len: 0,
            files: Files::new(self),
            hub: Loading::begin(self.index.as_ref()),
        };
        let mut restored =
            Restored { xorb_count: 0, raw_len: 0, file_count: 0, keys: None, archive_len: 0, trailing_garbage: false };
        let taken = run.take(&mut items, &mut restored).await;
        if taken.as_ref().is_err_and(RestoreError::blames_archive) {
            // A record is wrong: either the archive was damaged later, or it was written so. The
            // hash of the session tells which, and the error should say it. So the rest of the
            // archive is read, and its records are discarded.
            while items.recv().await.is_some() {}
        }
        // Must be before `reading.await`: the reader may be blocked on sending, and dropping the
        // receiver ends that.
        drop(items);
        let failed =
            |source| RestoreError::Archive { xorb_count: restored.xorb_count, file_count: restored.file_count, source };
        let ending = match (reading.await, taken) {
            (Err(source), _) => return Err(failed(source)),
            (_, Err(error)) => return Err(error),
            (Ok(ending), Ok(())) => ending,
        };
        let stopped = || ArchiveError::NotABackup { reason: "reading it was abandoned" };
        let ending = ending.ok_or_else(|| failed(stopped()))?;
        Ok(Restored { archive_len: ending.archive_len, trailing_garbage: ending.trailing_garbage, ..restored })
    }
}

/// The state of one restore.
struct Run<'a> {
    store: &'a Store,
    mode: RepackMode,
    /// The xorbs that are being stored. The result of each is its length in raw bytes.
    tasks: FuturesUnordered<BoxFuture<'a, Result<u64, RestoreError>>>,
    /// The sum of these lengths.
    in_flight_len: u64,
    files: Files<'a>,
    hub: Loading<'a>,
}

impl<'a> Run<'a> {
    /// Stores all items, until the reader ends.
    async fn take(&mut self, items: &mut mpsc::Receiver<Item>, restored: &mut Restored) -> Result<(), RestoreError> {
        loop {
            let has_capacity = self.tasks.len() < IN_FLIGHT_COUNT && self.in_flight_len < IN_FLIGHT_LEN as u64;
            tokio::select! {
                Some(done) = self.tasks.next() => self.settle(done?, restored),
                item = items.recv(), if has_capacity => match item {
                    Some(Item::Xorb(xorb)) => self.begin(xorb),
                    Some(Item::File(file)) => {
                        // The xorbs of the file precede it in the archive, but some may still be in
                        // flight. The proof of the file needs their rows.
                        self.drain(restored).await?;
                        self.files.push(file).await?;
                        restored.file_count += 1;
                    }
                    Some(Item::Hub(part)) => {
                        // The files of the repository precede it.
                        self.drain(restored).await?;
                        self.files.flush().await?;
                        if !self.hub.push(part).await.map_err(StoreError::from)? {
                            let reason = "a part of a repository is out of place, or does not have its id";
                            return Err(self.malformed(restored, reason));
                        }
                    }
                    Some(Item::Keys(keys)) => restored.keys = Some(keys),
                    None => break,
                },
            }
        }
        self.drain(restored).await?;
        self.files.flush().await?;
        Ok(self.hub.finish().await.map_err(StoreError::from)?)
    }

    /// The error for an archive whose records do not fit together.
    fn malformed(&self, restored: &Restored, reason: &str) -> RestoreError {
        let source = ArchiveError::Malformed { blob: "hub".to_owned(), reason: reason.to_owned() };
        RestoreError::Archive { xorb_count: restored.xorb_count, file_count: restored.file_count, source }
    }

    /// Begins to store a xorb.
    fn begin(&mut self, xorb: UnpackedXorb) {
        self.in_flight_len += xorb.contents.len() as u64;
        self.tasks.push(Box::pin(store_xorb(self.store, self.mode, xorb)));
    }

    /// Waits until every xorb in flight is stored.
    async fn drain(&mut self, restored: &mut Restored) -> Result<(), RestoreError> {
        while let Some(done) = self.tasks.next().await {
            self.settle(done?, restored);
        }
        Ok(())
    }

    /// Counts a xorb that was stored.
    const fn settle(&mut self, raw_len: u64, restored: &mut Restored) {
        self.in_flight_len -= raw_len;
        restored.xorb_count += 1;
        restored.raw_len += raw_len;
    }
}
