//! Restoring: an archive becomes a store, of which every xorb and every file was proven on the way.

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
use crate::format::xorb::Tightening;
use crate::index::Index;
use crate::runtime::blocking::Pool;
use crate::runtime::clock::Clock;
use crate::service::access::KeyRing;

/// Contents of xorbs that are being put into the store at once, at most, unless it is a single one.
const IN_FLIGHT_LEN: usize = 64 << 20;

/// Xorbs that are being put into the store at once: small ones wait for the disk, not for the processor.
const IN_FLIGHT_COUNT: usize = 16;

/// A new store that nobody else uses. Where a restore fails, what is in it is to be thrown away.
#[derive(Debug)]
pub struct Target {
    /// For its blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// For everything else.
    pub index: Arc<dyn Index>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Where the archive is read and xorbs are made; at least two at once.
    pub pool: Pool,
    /// Whether the xorbs are to be compressed, that is, kept.
    pub tightening: Tightening,
}

/// What was restored.
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
    /// Whether an append to it was interrupted: what follows its end, the next backup cuts off.
    pub trailing_garbage: bool,
}

impl Target {
    /// Restores an archive from its position 0 on, in one pass. It is believed only at its end: until then the hash
    /// that covers what was read is still to come.
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
            // Damage makes chunks that are of another xorb, and only the hash behind them says that it is damage.
            while items.recv().await.is_some() {}
        }
        // Before waiting for the reader: it may be waiting for somebody to receive.
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
    /// Xorbs that are being put into the store; each ends with the bytes that it let go of.
    tasks: FuturesUnordered<BoxFuture<'a, Result<u64, RestoreError>>>,
    in_flight_len: u64,
    files: Files<'a>,
}

impl<'a> Run<'a> {
    async fn take(&mut self, items: &mut mpsc::Receiver<Item>, restored: &mut Restored) -> Result<(), RestoreError> {
        loop {
            let has_room = self.tasks.len() < IN_FLIGHT_COUNT && self.in_flight_len < IN_FLIGHT_LEN as u64;
            tokio::select! {
                Some(done) = self.tasks.next() => self.settle(done?, restored),
                item = items.recv(), if has_room => match item {
                    Some(Item::Xorb(xorb)) => self.begin(xorb),
                    Some(Item::File(file)) => {
                        // Its xorbs are in front of it, and have to be there before it is.
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
