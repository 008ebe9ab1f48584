//! Uploads: bytes and a claimed hash become a stored xorb, or nothing.
//!
//! The body streams. The task that receives it collects pieces into a batch; a worker verifies the batch before and
//! writes it to a draft, while the next bytes are still on the wire. Nothing of the body is held but these two batches
//! and the frame that straddles them.
//!
//! Order of effects, after the last byte was verified and the hash compared: row staged → blob durable → row live →
//! answer. Whatever step the process dies at, a reader sees the xorb only if its row is live, and then its blob is
//! durable. What can be left behind is a draft or a staged row with or without a blob, which the next start removes.
//!
//! From the staging on, the work is a task of its own and runs to its end even when the client hangs up: otherwise
//! the lock would be released while the file is still being renamed.

mod batch;

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crc64fast_nvme::Digest;
use futures_util::future::OptionFuture;
use futures_util::{Stream, StreamExt};
use tokio::sync::oneshot;

use self::batch::Batch;
use super::access::Claims;
use super::error::{StoreError, UploadError};
use super::register::domain;
use super::{Cas, OVERLOADED_RETRY_AFTER};
use crate::blob::{BlobKey, Draft};
use crate::format::XorbHash;
use crate::format::xorb::{VerifiedXorb, Verifier};
use crate::index::{NewXorb, Staging, Ticket};
use crate::runtime::blocking::Pool;

/// Bytes at which a batch is handed to an idle worker. Large enough that the hop (some microseconds) does not show
/// beside hashing it (about a hundred), small enough that a hundred uploads hold little.
const BATCH_LEN: usize = 128 << 10;

/// Bytes that are collected while the worker is busy, at most; then the client has to wait.
const MAX_BATCH_LEN: usize = 256 << 10;

/// How long a deletion may take to get out of the way.
const DELETION_RETRY_AFTER: Duration = Duration::from_secs(5);

/// A request to store a xorb.
#[derive(Debug)]
pub struct Upload<'a, S> {
    /// Whose it is.
    pub claims: &'a Claims,
    /// The hash that the client says it has.
    pub claimed: XorbHash,
    /// Bytes of the body, footer included, at most.
    pub max_len: u64,
    /// Bytes of the body as the client declares them, if it does.
    pub declared_len: Option<u64>,
    /// The body, in pieces of any size.
    pub body: S,
}

/// Why a body ended before its end.
#[derive(Debug)]
pub enum BodyError {
    /// The connection or the request did.
    Aborted(Box<dyn StdError + Send + Sync>),
    /// The client sends nothing, or too slowly.
    Stalled,
}

/// A xorb that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uploaded {
    /// Which one.
    pub hash: XorbHash,
    /// Whether this upload put it there. Otherwise what was there before is there still.
    pub was_inserted: bool,
    /// Chunks of the upload.
    pub chunk_count: u32,
    /// Bytes of the upload without footer.
    pub serialized_len: u64,
    /// Bytes of its chunks.
    pub raw_len: u64,
}

impl Cas {
    /// Takes an upload; returns when the xorb is durable and readable.
    ///
    /// # Errors
    ///
    /// See [`UploadError`]. The body may not have been read to its end.
    pub async fn upload<S>(&self, upload: Upload<'_, S>) -> Result<Uploaded, UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let overloaded = UploadError::Overloaded { retry_after: OVERLOADED_RETRY_AFTER };
        let _slot = self.upload_slots.try_acquire().map_err(|_| overloaded)?;
        let _gauge = InFlight::new(self);
        if upload.declared_len.is_some_and(|len| len > upload.max_len) {
            return Err(UploadError::TooLarge { limit: upload.max_len });
        }
        // What is there already is verified all the same, but need not be written.
        let is_stored = self.find(upload.claimed).await?.is_some();
        let ingest = Ingest::new(self, upload.max_len, is_stored);
        let ingest = self.receive(ingest, upload.body).await?;
        let (xorb, crc64, draft) = self.verify_pool.run(move || ingest.finish()).await?;
        if xorb.hash() != upload.claimed {
            draft.discard().await;
            return Err(UploadError::HashMismatch { claimed: upload.claimed, actual: xorb.hash() });
        }
        self.commit(xorb, crc64, draft, domain(&upload.claims.repo)).await
    }

    /// Reads the body to its end, with one batch being verified while the next one arrives.
    async fn receive<S>(&self, ingest: Ingest, mut body: S) -> Result<Ingest, UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let (mut idle, mut running) = (Some(ingest), None);
        let (mut batch, mut ended) = (Batch::default(), false);
        loop {
            tokio::select! {
                piece = body.next(), if !ended && batch.len() < MAX_BATCH_LEN => match piece {
                    None => ended = true,
                    Some(Ok(piece)) => batch.push(piece),
                    Some(Err(BodyError::Aborted(source))) => return Err(UploadError::Aborted(source)),
                    Some(Err(BodyError::Stalled)) => return Err(UploadError::Stalled),
                },
                Some(verified) = OptionFuture::from(running.as_mut()) => {
                    running = None;
                    idle = Some(verified?);
                }
            }
            let due = batch.len() >= BATCH_LEN || (ended && batch.len() > 0);
            match idle.take() {
                Some(ingest) if due => {
                    let pieces = batch.take();
                    running = Some(self.verify_pool.start(move || ingest.take(pieces)).await);
                }
                Some(ingest) if ended => return Ok(ingest),
                other => idle = other,
            }
        }
    }

    /// Makes a verified upload durable and visible, in a task that nobody can interrupt.
    async fn commit(
        &self,
        xorb: VerifiedXorb,
        crc64: u64,
        draft: DraftSlot,
        domain: String,
    ) -> Result<Uploaded, UploadError> {
        let (answer, answered) = oneshot::channel();
        let cas = self.clone();
        self.publishing.spawn(async move {
            let result = cas.publish(xorb, crc64, draft, domain).await;
            if let Err(unheard) = answer.send(result) {
                tracing::debug!(result = ?unheard.map(|uploaded| uploaded.hash), "the client left before its answer");
            }
        });
        answered.await.expect("the task sends its answer unless it panics, and then this request fails with it")
    }

    async fn publish(
        &self,
        xorb: VerifiedXorb,
        crc64: u64,
        draft: DraftSlot,
        domain: String,
    ) -> Result<Uploaded, UploadError> {
        let hash = xorb.hash();
        let mut uploaded = Uploaded {
            hash,
            was_inserted: false,
            chunk_count: xorb.layout().chunk_count(),
            serialized_len: xorb.layout().serialized_len(),
            raw_len: xorb.layout().raw_len(),
        };
        let _publishing = self.publish_locks[lock_index(&hash)].lock().await;
        let ticket = Ticket::random();
        match self.index.stage_xorb(hash, ticket, self.clock.now()).await.map_err(StoreError::from)? {
            Staging::Live => {
                draft.discard().await;
                self.index.share_xorb(hash, domain).await.map_err(StoreError::from)?;
                return Ok(uploaded);
            }
            Staging::Deleting => {
                draft.discard().await;
                return Err(UploadError::BeingDeleted { retry_after: DELETION_RETRY_AFTER });
            }
            Staging::Staged => {}
        }
        let Some(draft) = draft.into_draft() else {
            // It was there when the upload began, and was deleted since. Nothing was written, so it must come again;
            // the staged row is cleared up like that of any failed upload.
            return Err(UploadError::BeingDeleted { retry_after: DELETION_RETRY_AFTER });
        };
        // A failure from here on leaves the row staged: invisible, and free for the next upload of this xorb.
        draft.publish(BlobKey::xorb(hash)).await.map_err(StoreError::from)?;
        let (hash, layout, chunk_hashes, schemes) = xorb.into_parts();
        let row = NewXorb { hash, crc64, layout, chunk_hashes, schemes, domain: Some(domain) };
        self.index.publish_xorb(row, ticket, self.clock.now()).await.map_err(StoreError::from)?;
        uploaded.was_inserted = true;
        Ok(uploaded)
    }
}

fn lock_index(hash: &XorbHash) -> usize {
    let [a, b, ..] = *hash.as_bytes();
    usize::from(u16::from_le_bytes([a, b])) % super::PUBLISH_LOCK_COUNT
}

/// An upload between two batches: what was verified, and where it was written to.
struct Ingest {
    cas: Cas,
    verifier: Verifier,
    crc64: Digest,
    draft: DraftSlot,
    keep: bool,
    busy: Duration,
}

impl Ingest {
    fn new(cas: &Cas, max_len: u64, is_stored: bool) -> Self {
        Self {
            cas: cas.clone(),
            verifier: Verifier::new(max_len),
            crc64: Digest::new(),
            draft: DraftSlot { draft: None, pool: cas.verify_pool.clone() },
            keep: !is_stored,
            busy: Duration::ZERO,
        }
    }

    /// Verifies the frames that end in this batch and writes them to the draft. Blocks.
    fn take(mut self, pieces: Vec<Bytes>) -> Result<Self, UploadError> {
        let begin = Instant::now();
        for piece in pieces {
            let mut rest = &piece[..];
            while let Some(frame) = self.verifier.next_frame(&mut rest)? {
                self.crc64.write(frame);
                if self.keep {
                    let draft = match &mut self.draft.draft {
                        Some(draft) => draft,
                        none => none.insert(self.cas.blobs.draft().map_err(StoreError::from)?),
                    };
                    draft.write(frame).map_err(StoreError::from)?;
                }
            }
        }
        // Uploads that wait for their client or their turn are many, those that decompress are few.
        self.verifier.release_scratch();
        self.busy += begin.elapsed();
        Ok(self)
    }

    /// Ends the verification. Blocks.
    fn finish(self) -> Result<(VerifiedXorb, u64, DraftSlot), UploadError> {
        let xorb = self.verifier.finish()?;
        self.cas.metrics.verify_seconds.observe(self.busy.as_secs_f64());
        Ok((xorb, self.crc64.sum64(), self.draft))
    }
}

/// A draft, if there is one yet. Dropped with it, it goes away on a blocking thread: removing a file takes its time, and
/// the upload that ends may end anywhere, as when its client hangs up.
struct DraftSlot {
    draft: Option<Box<dyn Draft>>,
    pool: Pool,
}

impl DraftSlot {
    /// Removes the draft, and waits for that: who is answered now finds nothing of it.
    async fn discard(mut self) {
        if let Some(draft) = self.draft.take() {
            self.pool.run(move || drop(draft)).await;
        }
    }

    fn into_draft(mut self) -> Option<Box<dyn Draft>> {
        self.draft.take()
    }
}

impl Drop for DraftSlot {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.pool.dispose(draft);
        }
    }
}

/// Counts an upload for as long as it exists.
struct InFlight<'a>(&'a Cas);

impl<'a> InFlight<'a> {
    fn new(cas: &'a Cas) -> Self {
        cas.metrics.uploads_in_flight.inc();
        Self(cas)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics.uploads_in_flight.dec();
    }
}
