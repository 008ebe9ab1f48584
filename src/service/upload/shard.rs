//! Bodies of shards: spooled to a draft while they arrive, and in memory when they are complete.
//!
//! The client decides how long a body takes. So a body holds no shared memory budget until its last
//! byte is received. Until then a body above [`MAX_HELD_LEN`] is spooled. After the last byte, only
//! this machine decides how long the memory is held.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};

use super::draft_slot::DraftSlot;
use super::slot::BodySlot;
use super::{BodyError, Expected};
use crate::format::limits::MAX_SHARD_LEN;
use crate::runtime::fair::{Permit, Tenant};
use crate::service::error::{StoreError, UploadError};
use crate::service::{Server, Store};

/// Bytes of memory that a shard may take for each of its bytes until it is registered. Common
/// shards take 2. Files of millions of terms in as many xorbs take 4.3, and 5.8 just after a hash
/// table has grown.
const MEMORY_FACTOR: u64 = 6;

/// KiB of memory for shards: enough for one of the largest and one of 32 MiB, or for thousands of
/// common ones.
pub(in crate::service) const SHARD_BUDGET_KIB: u32 = 672 << 10;

/// Maximum length of a small shard: some 10 000 terms, or xorbs with 20 000 chunks in total.
const SMALL_SHARD_LEN: u64 = 1 << 20;

/// KiB of memory for small shards.
pub(in crate::service) const SMALL_SHARD_BUDGET_KIB: u32 = 192 << 10;

/// Bytes of shards that may be spooled at once, as declared: twelve of the largest.
pub(in crate::service) const SPOOL_LEN: u64 = 1 << 30;

/// Bytes of a body that are in memory while it arrives. The connection may later buffer as many
/// bytes of a response, so they need no budget. A body up to this length takes no slot.
const MAX_HELD_LEN: usize = 64 << 10;

/// A received shard, with its memory budget.
#[derive(Debug)]
pub struct ReceivedShard {
    /// Its bytes.
    pub bytes: Bytes,
    /// The budget of its memory, to be held until the shard is registered. `None` for a shard that
    /// no client has sent.
    pub budget: Option<Permit>,
}

impl From<Bytes> for ReceivedShard {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, budget: None }
    }
}

impl From<Vec<u8>> for ReceivedShard {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

/// A received body.
struct Spooled {
    len: u64,
    /// The part that is not in the draft.
    held: BytesMut,
    draft: DraftSlot,
}

impl Server {
    /// Receives the body of a shard, of at most the length that its client declares.
    ///
    /// # Errors
    ///
    /// The body is too long or too slow, too many bodies are being received, or no memory was
    /// available in time.
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
        // The rows of a shard take less space than its body, so the length of the body is enough.
        self.store.check_headroom(declared_len.unwrap_or(0)).await?;
        let is_long = len > MAX_HELD_LEN as u64;
        let slot = is_long.then(|| BodySlot::take(&self.permits.spools, tenant, len)).transpose()?;
        let spooled = match &slot {
            Some(slot) => slot.unless_cut(self.spool(tenant, slot.counted(body))).await?,
            None => self.spool(tenant, body).await?,
        };
        let budget = self.shard_budget(tenant, spooled.len).await?;
        Ok(ReceivedShard { bytes: spooled.read(&self.store, tenant).await?, budget: Some(budget) })
    }

    /// Receives a body that is not an upload into memory, also when the disk is full. Slow clients
    /// are cut off in favour of other tenants, as those of shards. Returns it with the budget of
    /// its memory, to be held as long as it is used.
    ///
    /// # Errors
    ///
    /// The body is too long or too slow, too many bodies are being received, or no memory was
    /// available in time.
    pub async fn receive_body<S>(
        &self,
        tenant: Tenant,
        declared_len: Option<u64>,
        max_len: u64,
        body: S,
    ) -> Result<(Bytes, Permit), UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        Expected::check(max_len, declared_len)?;
        let slot = BodySlot::take(&self.permits.spools, tenant, declared_len.unwrap_or(max_len))?;
        let mut body = slot.counted(body);
        let receiving = async {
            let mut bytes = BytesMut::new();
            while let Some(piece) = body.next().await {
                let piece = piece?;
                Expected::check(max_len, Some(bytes.len() as u64 + piece.len() as u64))?;
                bytes.extend_from_slice(&piece);
            }
            Ok(bytes.freeze())
        };
        let bytes = slot.unless_cut(receiving).await?;
        let budget = self.shard_budget(tenant, bytes.len() as u64).await?;
        Ok((bytes, budget))
    }

    /// Receives a body. Whenever more than [`MAX_HELD_LEN`] bytes are in memory, writes them to a
    /// draft.
    async fn spool<S>(&self, tenant: Tenant, mut body: S) -> Result<Spooled, UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let draft = DraftSlot::new(self.store.pool.clone());
        let mut spooled = Spooled { len: 0, held: BytesMut::new(), draft };
        while let Some(piece) = body.next().await {
            let piece = piece?;
            spooled.len += piece.len() as u64;
            Expected::check(MAX_SHARD_LEN, Some(spooled.len))?;
            spooled.held.extend_from_slice(&piece);
            if spooled.held.len() > MAX_HELD_LEN {
                spooled = spooled.write(&self.store, tenant).await?;
            }
        }
        Ok(spooled)
    }

    /// Waits, for a limited time, for the memory of a whole shard of this many bytes. The permit is
    /// to be held until the shard is registered. Small shards have a separate budget, which large
    /// ones cannot use up.
    pub(in crate::service) async fn shard_budget(&self, tenant: Tenant, len: u64) -> Result<Permit, StoreError> {
        let budget = if len <= SMALL_SHARD_LEN { &self.permits.small_shard_budget } else { &self.permits.shard_budget };
        let memory_kib = len.saturating_mul(MEMORY_FACTOR).div_ceil(1024);
        Ok(budget.enter(tenant, u32::try_from(memory_kib).unwrap_or(u32::MAX)).await?)
    }
}

impl Spooled {
    /// Writes the buffered part to the draft.
    async fn write(mut self, store: &Store, tenant: Tenant) -> Result<Self, UploadError> {
        let (blobs, held) = (Arc::clone(&store.blobs), self.held.split());
        let write = move || {
            self.draft.write(blobs.as_ref(), &held)?;
            Ok::<_, StoreError>(self)
        };
        Ok(store.pool.run_for(tenant, write).await?)
    }

    /// Returns the whole body.
    async fn read(self, store: &Store, tenant: Tenant) -> Result<Bytes, UploadError> {
        if self.len == self.held.len() as u64 {
            return Ok(self.held.freeze());
        }
        let Self { held, mut draft, .. } = self;
        let blobs = Arc::clone(&store.blobs);
        let read = move || {
            draft.write(blobs.as_ref(), &held)?;
            Ok::<_, StoreError>(Bytes::from(draft.into_bytes()?))
        };
        Ok(store.pool.run_for(tenant, read).await?)
    }
}
