//! Assembles a xorb from chunks of stored ones: an upload without a client.
//!
//! Chunks are copied in their stored form. Before a chunk is written, it is verified like a chunk
//! of an upload, and its hash is compared with the expected one.

use std::sync::Arc;

use bytes::Bytes;

use super::draft_slot::DraftSlot;
use super::{Staged, Verified};
use crate::blob::{BlobKey, BlobStore};
use crate::format::limits::MAX_XORB_BODY_LEN;
use crate::format::xorb::Verifier;
use crate::format::{ChunkHash, Crc64, XorbHash};
use crate::index::{IndexErrorKind, NewXorb, Ticket};
use crate::runtime::fair::Tenant;
use crate::service::Store;
use crate::service::error::{StoreError, UploadError};
use crate::service::fsck::Presence;

/// A new xorb with some of its chunks copied.
pub(in crate::service) struct Copying {
    blobs: Arc<dyn BlobStore>,
    verifier: Verifier,
    crc64: Crc64,
    draft: DraftSlot,
}

/// Consecutive serialized chunks of a stored xorb that are being copied.
#[derive(Debug)]
pub(in crate::service) struct Run {
    /// The expected chunks, and the index of the next one.
    hashes: Vec<ChunkHash>,
    next: usize,
    /// Bytes that are still to be copied.
    left: u64,
}

impl Run {
    /// A run of serialized chunks with this total length and these hashes.
    pub(in crate::service) fn new(hashes: Vec<ChunkHash>, len: u64) -> Self {
        Self { hashes, next: 0, left: len }
    }

    /// Whether the whole run was copied.
    pub(in crate::service) fn is_over(&self) -> bool {
        self.next == self.hashes.len() && self.left == 0
    }
}

/// Why a copy was abandoned.
#[derive(Debug)]
pub(in crate::service) enum CopyError {
    /// The bytes do not have the expected chunk hashes. The copy so far is invalid.
    Altered,
    /// The store failed.
    Store(StoreError),
}

impl Copying {
    /// A xorb without chunks.
    pub(in crate::service) fn new(store: &Store) -> Self {
        Self {
            blobs: Arc::clone(&store.blobs),
            verifier: Verifier::new(MAX_XORB_BODY_LEN),
            crc64: Crc64::new(),
            draft: DraftSlot::new(store.pool.clone()),
        }
    }

    /// Adds the chunks that end in this piece of a run. Blocks.
    pub(in crate::service) fn take(&mut self, run: &mut Run, piece: &Bytes) -> Result<(), CopyError> {
        let mut rest = &piece[..];
        while let Some(chunk) = self.verifier.next_chunk(&mut rest).map_err(|_| CopyError::Altered)? {
            let record = chunk.frame.bytes;
            if run.hashes.get(run.next) != Some(&chunk.hash) {
                return Err(CopyError::Altered);
            }
            run.next += 1;
            run.left = run.left.checked_sub(record.len() as u64).ok_or(CopyError::Altered)?;
            self.crc64.update(record);
            self.draft.write(self.blobs.as_ref(), record).map_err(CopyError::Store)?;
        }
        Ok(())
    }

    /// Completes the xorb; `None` where it has no chunk. Blocks.
    pub(in crate::service) fn finish(self) -> Result<Option<Verified>, StoreError> {
        let Self { verifier, crc64, mut draft, .. } = self;
        let Ok(xorb) = verifier.finish() else { return Ok(None) };
        draft.flush()?;
        Ok(Some(Verified { tenant: Tenant::SERVER, xorb, crc64: crc64.value(), draft }))
    }
}

impl Verified {
    /// The hash of the xorb.
    pub(in crate::service) fn hash(&self) -> XorbHash {
        self.xorb.hash()
    }
}

impl Store {
    /// Makes a copy durable and visible, without a domain. Returns whether the xorb is stored now.
    /// It is not if an upload or a deletion of the same xorb is under way.
    ///
    /// With [`Presence::Shared`], a row that another process has claimed is not touched: publish
    /// locks work only within one process.
    pub(in crate::service) async fn publish_copy(
        &self,
        copy: Verified,
        presence: Presence,
    ) -> Result<bool, StoreError> {
        let hash = copy.hash();
        let _publishing = self.publish_locks.lock(hash).await;
        let staged = match presence {
            Presence::Alone => match self.stage(hash).await {
                Ok(staged) => Some(staged),
                Err(UploadError::Store(error)) => return Err(error),
                Err(_) => None,
            },
            Presence::Shared => {
                let ticket = Ticket::random();
                let is_claimed = self.index.stage_new_xorb(hash, ticket, self.clock.now()).await?;
                is_claimed.then_some(Staged::New(ticket))
            }
        };
        let Verified { xorb, crc64, draft, .. } = copy;
        let (ticket, draft, is_heal) = match (staged, draft.into_draft()) {
            (Some(Staged::New(ticket)), Some(draft)) => (ticket, draft, false),
            (Some(Staged::Damaged(ticket)), Some(draft)) => (ticket, draft, true),
            (staged, draft) => {
                self.pool.run(move || drop(draft)).await;
                return Ok(matches!(staged, Some(Staged::There { .. })));
            }
        };
        let (hash, layout, chunk_hashes, schemes) = xorb.into_parts();
        let row = NewXorb { hash, crc64, layout, chunk_hashes, schemes, owner: None, grant: None };
        let permit = self.publishes.wait(Tenant::SERVER, 1).await;
        if is_heal {
            self.repair_blob(draft, row, ticket).await?;
            return Ok(true);
        }
        draft.publish(BlobKey::new(hash, ticket.incarnation())).await?;
        drop(permit);
        match self.go_live(row, ticket).await {
            Ok(()) => Ok(true),
            // Another process has claimed the row since, and publishes its own blob.
            Err(StoreError::Index(error)) if presence == Presence::Shared && error.kind == IndexErrorKind::Lost => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
