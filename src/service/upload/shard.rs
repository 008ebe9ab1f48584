//! Bodies of shards: in a draft while they arrive, in memory when they are complete.
//!
//! The client decides how long a body takes. So it holds no contended memory until its last byte is
//! received: a body above [`MAX_HELD_LEN`] is spooled. From then on only this machine decides how
//! long the memory is held.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};

use super::draft_slot::DraftSlot;
use super::slot::BodySlot;
use super::{BodyError, Expected};
use crate::format::limits::MAX_SHARD_LEN;
use crate::runtime::fair::{Permit, Tenant};
use crate::service::Cas;
use crate::service::error::{StoreError, UploadError};

/// Bytes of memory that a shard may take for each of its bytes until it is registered. Common
/// shards take 2. Files of millions of terms in as many xorbs take 4.3, and 5.8 where a hash table
/// has just grown.
const MEMORY_FACTOR: u64 = 6;

/// KiB of memory for shards: one of the largest and one of 32 MiB, or thousands of common ones.
pub(in crate::service) const SHARD_BUDGET_KIB: u32 = 672 << 10;

/// Bytes of a small shard, at most: some 10 000 terms, or xorbs of 20 000 chunks.
const SMALL_SHARD_LEN: u64 = 1 << 20;

/// KiB of memory for small shards.
pub(in crate::service) const SMALL_SHARD_BUDGET_KIB: u32 = 192 << 10;

/// Bytes of shards that may be spooled at once, as declared: twelve of the largest.
pub(in crate::service) const SPOOL_LEN: u64 = 1 << 30;

/// Bytes of a body in memory while it arrives: no more than its connection may buffer for a
/// response, and there is none meanwhile. A body of that length takes no slot.
const MAX_HELD_LEN: usize = 64 << 10;

/// A received shard, with its memory budget.
#[derive(Debug)]
pub struct ReceivedShard {
    /// Its bytes.
    pub bytes: Bytes,
    /// Its share of the memory for shards, to be held until it is registered.
    pub budget: Permit,
}

/// A received body.
struct Spooled {
    len: u64,
    /// The part that is not in the draft.
    held: BytesMut,
    draft: DraftSlot,
}

impl Cas {
    /// Receives the body of a shard, of at most the length that its client declares.
    ///
    /// # Errors
    ///
    /// It is too long or too slow, or there are too many; or there is no memory for it in time.
    pub async fn receive_shard<S>(
        &self,
        tenant: Tenant,
        declared_len: Option<u64>,
        body: S,
    ) -> Result<ReceivedShard, UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        Expected::check(MAX_SHARD_LEN, declared_len)?;
        let len = declared_len.unwrap_or(MAX_SHARD_LEN);
        // Its rows in the index take less than its body.
        self.check_headroom(declared_len.unwrap_or(0)).await?;
        let is_long = len > MAX_HELD_LEN as u64;
        let slot = is_long.then(|| BodySlot::take(&self.spools, tenant, len)).transpose()?;
        let spooled = match &slot {
            Some(slot) => slot.unless_cut(self.spool(tenant, slot.counted(body))).await?,
            None => self.spool(tenant, body).await?,
        };
        let budget = self.shard_budget(tenant, spooled.len).await?;
        Ok(ReceivedShard { bytes: spooled.read(self, tenant).await?, budget })
    }

    async fn spool<S>(&self, tenant: Tenant, mut body: S) -> Result<Spooled, UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let draft = DraftSlot::new(self.verify_pool.clone());
        let mut spooled = Spooled { len: 0, held: BytesMut::new(), draft };
        while let Some(piece) = body.next().await {
            let piece = piece?;
            spooled.len += piece.len() as u64;
            Expected::check(MAX_SHARD_LEN, Some(spooled.len))?;
            spooled.held.extend_from_slice(&piece);
            if spooled.held.len() > MAX_HELD_LEN {
                spooled = spooled.write(self, tenant).await?;
            }
        }
        Ok(spooled)
    }

    /// Waits for the memory of a whole shard of this many bytes, in fair order and for a bounded
    /// time. To be held until the shard is registered. Small shards have a budget of their own,
    /// which no large one takes.
    async fn shard_budget(&self, tenant: Tenant, len: u64) -> Result<Permit, StoreError> {
        let budget = if len <= SMALL_SHARD_LEN { &self.small_shard_budget } else { &self.shard_budget };
        let memory_kib = len.saturating_mul(MEMORY_FACTOR).div_ceil(1024);
        Ok(budget.enter(tenant, u32::try_from(memory_kib).unwrap_or(u32::MAX)).await?)
    }
}

impl Spooled {
    /// Writes the buffered part to the draft.
    async fn write(mut self, cas: &Cas, tenant: Tenant) -> Result<Self, UploadError> {
        let (blobs, held) = (cas.clone(), self.held.split());
        let write = move || {
            self.draft.write(blobs.blobs.as_ref(), &held)?;
            Ok::<_, StoreError>(self)
        };
        Ok(cas.verify_pool.run_for(tenant, write).await?)
    }

    /// Returns the whole body.
    async fn read(self, cas: &Cas, tenant: Tenant) -> Result<Bytes, UploadError> {
        if self.len == self.held.len() as u64 {
            return Ok(self.held.freeze());
        }
        let Self { held, mut draft, .. } = self;
        let blobs = cas.clone();
        let read = move || {
            draft.write(blobs.blobs.as_ref(), &held)?;
            Ok::<_, StoreError>(Bytes::from(draft.into_bytes()?))
        };
        Ok(cas.verify_pool.run_for(tenant, read).await?)
    }
}
