//! Bodies of shards: in a draft while they arrive, in memory when they are whole.
//!
//! How long a body takes is up to its client. So it has no memory that others wait for until its last byte is here: what
//! is longer than [`MAX_HELD_LEN`] is spooled. From then on only this machine decides how long the memory is held.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};

use super::draft_slot::DraftSlot;
use super::slot::BodySlot;
use super::{BodyError, Expected};
use crate::format::limits::MAX_SHARD_LEN;
use crate::runtime::fair::{Permit, Tenant};
use crate::service::Cas;
use crate::service::error::{StoreError, UploadError};

/// Bytes of memory that a shard may take for each of its bytes until it is registered: 2 for common ones, 4.3 for a file of
/// 1.7 million terms that each name another xorb, 5.8 where their hash tables have just grown.
const MEMORY_FACTOR: u64 = 6;

/// KiB of memory for shards: one of the largest and one of 32 MiB, or thousands of common ones.
pub(in crate::service) const SHARD_ROOM_KIB: u32 = 672 << 10;

/// Bytes of a shard that counts as small: some 10 000 terms, or xorbs of 20 000 chunks.
const SMALL_SHARD_LEN: u64 = 1 << 20;

/// KiB of memory for small shards.
pub(in crate::service) const SMALL_SHARD_ROOM_KIB: u32 = 192 << 10;

/// Bytes of shards that may be spooled at once, as declared: twelve of the largest.
pub(in crate::service) const SPOOL_LEN: u64 = 1 << 30;

/// Bytes of a body that are held in memory while it arrives: no more than its connection may have for a response, which there
/// is none of meanwhile. A body of that length takes no slot.
const MAX_HELD_LEN: usize = 64 << 10;

/// A shard that has arrived, with the memory that it takes.
#[derive(Debug)]
pub struct ReceivedShard {
    /// Its bytes.
    pub bytes: Bytes,
    /// Its part of the memory for shards, to be held until it is registered.
    pub room: Permit,
}

/// A body that has arrived.
struct Spooled {
    len: u64,
    /// What is not in the draft.
    held: BytesMut,
    draft: DraftSlot,
}

impl Cas {
    /// Receives the body of a shard, which may have so many bytes as its client declares.
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
        // What it takes in the index is less than itself.
        self.check_room(declared_len.unwrap_or(0)).await?;
        let is_long = len > MAX_HELD_LEN as u64;
        let slot = is_long.then(|| BodySlot::take(&self.spools, tenant, len)).transpose()?;
        let spooled = match &slot {
            Some(slot) => slot.unless_cut(self.spool(tenant, slot.counted(body))).await?,
            None => self.spool(tenant, body).await?,
        };
        let room = self.shard_room(tenant, spooled.len).await?;
        Ok(ReceivedShard { bytes: spooled.read(self, tenant).await?, room })
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

    /// Memory for a whole shard of this many bytes, to be held until it is registered. Waits for it in turn, but not for long.
    /// Small shards have room of their own, which no large one takes.
    async fn shard_room(&self, tenant: Tenant, len: u64) -> Result<Permit, StoreError> {
        let room = if len <= SMALL_SHARD_LEN { &self.small_shard_room } else { &self.shard_room };
        let memory_kib = len.saturating_mul(MEMORY_FACTOR).div_ceil(1024);
        Ok(room.enter(tenant, u32::try_from(memory_kib).unwrap_or(u32::MAX)).await?)
    }
}

impl Spooled {
    /// Puts what is held into the draft.
    async fn write(mut self, cas: &Cas, tenant: Tenant) -> Result<Self, UploadError> {
        let (blobs, held) = (cas.clone(), self.held.split());
        let write = move || {
            self.draft.write(blobs.blobs.as_ref(), &held)?;
            Ok::<_, StoreError>(self)
        };
        Ok(cas.verify_pool.run_for(tenant, write).await?)
    }

    /// All of it.
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
