//! Restoring: an archive becomes a new store, and every xorb and file is verified on the way.
//!
//! After `Ok` the new store has all xorbs and files of the archive. An error or a crash leaves an
//! incomplete one to be discarded: the caller gives it its final name only after `Ok`. Keys are
//! returned, not stored.

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
use crate::blob::BlobStore;
use crate::format::xorb::RepackMode;
use crate::index::Index;
use crate::runtime::blocking::Pool;
use crate::runtime::clock::Clock;
use crate::service::access::KeyRing;

/// Contents of xorbs that are being stored at once, at most, unless it is a single one.
const IN_FLIGHT_LEN: usize = 64 << 20;

/// Xorbs that are being stored at once: small ones wait for the disk, not for the CPU.
const IN_FLIGHT_COUNT: usize = 16;

/// A new store that no other process uses. After a failed restore it is to be discarded.
#[derive(Debug)]
pub struct Target {
    /// Its blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// Its index.
    pub index: Arc<dyn Index>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Runs the reader of the archive and the packing of xorbs; at least two threads.
    pub pool: Pool,
    /// How xorbs are repacked: compressed, or uncompressed where they are not stored.
    pub mode: RepackMode,
}

/// The result of a restore.
#[derive(Debug)]
pub struct Restored {
    /// Xorbs in the archive.
    pub xorb_count: u64,
    /// Bytes of their chunks.
    pub raw_len: u64,
    /// Records of files in the archive; a file that has changed has several.
    pub file_count: u64,
    /// The keys, if the archive has any.
    pub keys: Option<KeyRing>,
    /// Bytes of the archive.
    pub archive_len: u64,
    /// Whether an append to it was interrupted: the next backup truncates the bytes after its end.
    pub trailing_garbage: bool,
}

impl Target {
    /// Restores an archive from its position 0 on, in one pass. Its data is trusted only at its
    /// end: until then the hash that covers it is still to come.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`].
    pub async fn restore<R>(&self, source: R, watch: Arc<dyn Watch>) -> Result<Restored, RestoreError>
    where
        R: Read + Seek + Send + 'static,
    {
        let (sender, mut items) = mpsc::channel(1);
        let reading = self.pool.start(move || read_archive(source, &sender, &watch)).await;
        let mut run = Run { target: self, tasks: FuturesUnordered::new(), in_flight_len: 0, files: Files::new(self) };
        let mut restored =
            Restored { xorb_count: 0, raw_len: 0, file_count: 0, keys: None, archive_len: 0, trailing_garbage: false };
        let taken = run.take(&mut items, &mut restored).await;
        if taken.as_ref().is_err_and(RestoreError::blames_archive) {
            // Damage turns chunks into those of another xorb, and only the later hash proves the
            // damage.
            while items.recv().await.is_some() {}
        }
        // Before awaiting the reader, which may be blocked on sending.
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

/// One restore.
struct Run<'a> {
    target: &'a Target,
    /// Xorbs that are being stored; each ends with the number of bytes that it has freed.
    tasks: FuturesUnordered<BoxFuture<'a, Result<u64, RestoreError>>>,
    in_flight_len: u64,
    files: Files<'a>,
}

impl<'a> Run<'a> {
    async fn take(&mut self, items: &mut mpsc::Receiver<Item>, restored: &mut Restored) -> Result<(), RestoreError> {
        loop {
            let has_capacity = self.tasks.len() < IN_FLIGHT_COUNT && self.in_flight_len < IN_FLIGHT_LEN as u64;
            tokio::select! {
                Some(done) = self.tasks.next() => self.settle(done?, restored),
                item = items.recv(), if has_capacity => match item {
                    Some(Item::Xorb(xorb)) => self.begin(xorb),
                    Some(Item::File(file)) => {
                        // Its xorbs come before it, and must be stored first.
                        self.drain(restored).await?;
                        self.files.push(file).await?;
                        restored.file_count += 1;
                    }
                    Some(Item::Keys(keys)) => restored.keys = Some(keys),
                    None => break,
                },
            }
        }
        self.drain(restored).await?;
        self.files.flush().await
    }

    fn begin(&mut self, xorb: UnpackedXorb) {
        self.in_flight_len += xorb.contents.len() as u64;
        self.tasks.push(Box::pin(store_xorb(self.target, xorb)));
    }

    async fn drain(&mut self, restored: &mut Restored) -> Result<(), RestoreError> {
        while let Some(done) = self.tasks.next().await {
            self.settle(done?, restored);
        }
        Ok(())
    }

    const fn settle(&mut self, raw_len: u64, restored: &mut Restored) {
        self.in_flight_len -= raw_len;
        restored.xorb_count += 1;
        restored.raw_len += raw_len;
    }
}
