//! Uploads: bytes and a claimed hash become a stored xorb, or nothing is stored.
//!
//! The body is never in memory as a whole. The receiving task collects pieces into a batch.
//! Meanwhile a worker verifies the previous batch and writes it to a draft, then takes the next
//! batch if that is ready. So an upload has in memory two batches, and the frame that straddles
//! them.
//!
//! Order of effects, after the last byte was verified and the hash compared: row staged → blob
//! durable → row live → response. Whenever the process dies, a reader sees the xorb only if its row
//! is live, and then its blob is durable. A crash may leave a draft, or a staged row with or
//! without a blob. The next start removes them.
//!
//! The work from the staging on is a task that completes even when the client disconnects. If it
//! were dropped with the request, the publish lock would be released while the file is still being
//! renamed.

mod batch;
mod copy;
mod draft_slot;
mod file;
mod key_locks;
mod packing;
mod publish;
mod receive;
pub(super) mod shard;
mod slot;

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::oneshot;

pub(super) use self::copy::{CopyError, Copying, Run};
use self::draft_slot::DraftSlot;
pub(super) use self::file::ReceivedFile;
pub(super) use self::key_locks::{KeyLock, KeyLocks, PublishLocks};
pub(super) use self::packing::Packing;
use self::receive::Sink;
use super::access::Claims;
use super::error::UploadError;
use super::heal::max_worth;
use super::scope::domain;
use super::{Server, Store};
use crate::format::limits::MAX_FOOTER_LEN;
use crate::format::xorb::{VerifiedXorb, Verifier};
use crate::format::{Crc64, XorbHash};
use crate::index::Ticket;
use crate::runtime::blocking::Pool;
use crate::runtime::fair::Tenant;

/// How long a client is told to wait when the xorb is being deleted.
const DELETION_RETRY_AFTER: Duration = Duration::from_secs(5);

/// A request to store a xorb.
#[derive(Debug)]
pub struct Upload<'a, S> {
    /// The uploader's claims.
    pub claims: &'a Claims,
    /// The hash that the client claims.
    pub claimed: XorbHash,
    /// Bytes of the body, footer included, at most.
    pub max_len: u64,
    /// Bytes of the body as the client declares them, if at all.
    pub declared_len: Option<u64>,
    /// The body, in pieces of any size.
    pub body: S,
}

/// Why a body ended early.
#[derive(Debug)]
pub enum BodyError {
    /// The connection or the request ended.
    Aborted(Box<dyn StdError + Send + Sync>),
    /// The client sends nothing, or too slowly.
    Stalled,
}

impl From<BodyError> for UploadError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Aborted(source) => Self::Aborted(source),
            BodyError::Stalled => Self::Stalled,
        }
    }
}

/// A stored xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uploaded {
    /// Its hash.
    pub hash: XorbHash,
    /// Whether the blob of this upload is stored now, as a new one or in place of a longer one.
    /// Otherwise the earlier blob stays.
    pub was_inserted: bool,
    /// Chunks of the upload.
    pub chunk_count: u32,
    /// Bytes of the upload without footer.
    pub serialized_len: u64,
    /// Bytes of its chunks.
    pub raw_len: u64,
}

/// The expected body.
pub(super) struct Expected {
    /// The uploader.
    pub(super) tenant: Tenant,
    pub(super) hash: XorbHash,
    /// Bytes, footer included, at most.
    pub(super) max_len: u64,
    /// Bytes, footer included, as the client declares them, if at all.
    pub(super) declared_len: Option<u64>,
    /// The sum that a grant states.
    pub(super) granted: Option<Sum>,
}

/// The length and the checksum of a whole body, footer included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) len: u64,
    pub(super) crc64nvme: u64,
}

/// A body that was verified and is the expected one, and the draft of its blob.
#[derive(Debug)]
pub(super) struct Verified {
    /// The uploader.
    tenant: Tenant,
    xorb: VerifiedXorb,
    /// CRC-64/NVME of the blob.
    crc64: u64,
    /// Empty where the xorb was stored already when the upload began, and the new blob was not
    /// expected to be much shorter.
    draft: DraftSlot,
}

/// The state of a xorb that is about to be published.
#[derive(Clone, Copy, Debug)]
pub(super) enum Staged {
    /// Not stored: its row is claimed under this ticket.
    New(Ticket),
    /// Stored and live.
    There {
        /// The ticket that its row has now.
        ticket: Ticket,
        /// Bytes of its blob.
        serialized_len: u64,
    },
    /// Stored, but its blob is damaged: its row is claimed under this ticket.
    Damaged(Ticket),
}

impl Server {
    /// Receives an upload; returns when the xorb is durable and readable.
    ///
    /// # Errors
    ///
    /// See [`UploadError`]. The body may not have been read to its end.
    pub async fn upload<S>(&self, upload: Upload<'_, S>) -> Result<Uploaded, UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let tenant = upload.claims.tenant();
        self.upload_for(tenant, upload).await
    }

    /// As [`upload`](Self::upload), for a tenant that differs from that of the claims.
    ///
    /// # Errors
    ///
    /// See [`UploadError`]. The body may not have been read to its end.
    pub async fn upload_for<S>(&self, tenant: Tenant, upload: Upload<'_, S>) -> Result<Uploaded, UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let Upload { claims, claimed, max_len, declared_len, body } = upload;
        let expected = Expected { tenant, hash: claimed, max_len, declared_len, granted: None };
        expected.check_len(declared_len)?;
        let slot = self.upload_slot(tenant, declared_len.unwrap_or(max_len))?;
        self.store.check_headroom(declared_len.unwrap_or(0)).await?;
        let body = slot.body().counted(body);
        let verified = slot.body().unless_cut(self.verify(expected, body)).await?;
        let domain = domain(&claims.repo);
        let store = Arc::clone(&self.store);
        self.uninterrupted(async move { store.publish(verified, domain).await }).await
    }

    /// Receives and verifies a body. Readers see none of it. Dropping the result removes the draft.
    pub(super) async fn verify<S>(&self, expected: Expected, body: S) -> Result<Verified, UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        // The body of a stored xorb is verified, too. But it is written to a draft only if it may
        // be much shorter than the stored blob.
        let stored = self.store.find(expected.hash).await?.filter(|xorb| !xorb.is_damaged());
        let max_draft_len = stored.map_or(u64::MAX, |xorb| {
            let max_len = max_worth(xorb.layout().serialized_len());
            let may_be_worth = expected.declared_len.is_some_and(|len| len <= max_len.saturating_add(MAX_FOOTER_LEN));
            if may_be_worth { max_len } else { 0 }
        });
        let ingest = Ingest::new(&self.store, &expected, max_draft_len);
        let ingest = Box::pin(self.receive(ingest, body)).await?;
        let (verified, sum) = self.store.pool.run_for(expected.tenant, move || ingest.finish()).await?;
        let (claimed, actual) = (expected.hash, verified.xorb.hash());
        let refused = match expected.granted {
            _ if actual != claimed => UploadError::HashMismatch { claimed, actual },
            Some(granted) if sum != Some(granted) => UploadError::NotAsGranted { len: granted.len },
            _ => return Ok(verified),
        };
        verified.draft.discard().await;
        Err(refused)
    }

    /// Runs `work` in a task that completes even when the client disconnects.
    pub(super) async fn uninterrupted<T, F>(&self, work: F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (respond, response) = oneshot::channel();
        self.publishing.spawn(async move {
            if respond.send(work.await).is_err() {
                tracing::debug!("the client disconnected before the response");
            }
        });
        response.await.expect("the task sends its result unless it panics, and then this request fails with it")
    }
}

impl Expected {
    /// Refuses a body whose declared length is too long.
    pub(super) fn check_len(&self, declared_len: Option<u64>) -> Result<(), UploadError> {
        Self::check(self.max_len, declared_len)
    }

    fn check(limit: u64, len: Option<u64>) -> Result<(), UploadError> {
        if len.is_some_and(|len| len > limit) { Err(UploadError::TooLarge { limit }) } else { Ok(()) }
    }
}

impl Verified {
    /// The number of its chunks, which determines its memory.
    pub(super) fn chunk_count(&self) -> u32 {
        self.xorb.layout().chunk_count()
    }

    /// Removes the draft, and returns when that is done.
    pub(super) async fn discard(self) {
        self.draft.discard().await;
    }
}

/// The state of an upload between two batches.
struct Ingest {
    store: Arc<Store>,
    tenant: Tenant,
    verifier: Verifier,
    crc64: Crc64,
    /// Length and CRC of the body as received; only where a grant states them.
    body: Option<(u64, Crc64)>,
    draft: DraftSlot,
    /// How long workers have been busy with this upload.
    busy: Duration,
}

impl Ingest {
    fn new(store: &Arc<Store>, expected: &Expected, max_draft_len: u64) -> Self {
        Self {
            store: Arc::clone(store),
            tenant: expected.tenant,
            verifier: Verifier::for_upload(expected.max_len),
            crc64: Crc64::new(),
            body: expected.granted.map(|_| (0, Crc64::new())),
            draft: DraftSlot::limited(store.pool.clone(), max_draft_len),
            busy: Duration::ZERO,
        }
    }

    /// Completes the verification. Blocks.
    fn finish(mut self) -> Result<(Verified, Option<Sum>), UploadError> {
        let xorb = self.verifier.finish()?;
        self.draft.flush()?;
        self.store.metrics.verify_seconds.observe(self.busy.as_secs_f64());
        let sum = self.body.map(|(len, crc64)| Sum { len, crc64nvme: crc64.value() });
        Ok((Verified { tenant: self.tenant, xorb, crc64: self.crc64.value(), draft: self.draft }, sum))
    }
}

impl Sink for Ingest {
    fn tenant(&self) -> Tenant {
        self.tenant
    }

    fn pool(&self) -> &Pool {
        &self.store.pool
    }

    /// Verifies the frames that end in these pieces and writes them to the draft.
    fn take(&mut self, pieces: Vec<Bytes>) -> Result<(), UploadError> {
        for piece in pieces {
            if let Some((len, crc64)) = &mut self.body {
                *len += piece.len() as u64;
                crc64.update(&piece);
            }
            let mut rest = &piece[..];
            while let Some(frame) = self.verifier.next_frame(&mut rest)? {
                self.crc64.update(frame);
                self.draft.write(self.store.blobs.as_ref(), frame)?;
            }
        }
        Ok(())
    }

    fn rest(&mut self, busy: Duration) {
        // The buffer for decompression.
        self.verifier.release_scratch();
        self.busy += busy;
    }

    async fn settle(self, _: &Server) -> Result<Self, UploadError> {
        Ok(self)
    }
}
