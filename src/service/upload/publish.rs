//! The last part of an upload: stages the row, publishes the blob, and makes the row live.
//!
//! After `Ok` the blob is durable, its row is live, and the uploader is one of its owners. An
//! upload of a stored xorb adds the owner, and replaces the blob if the new one is much shorter. Of
//! two servers that publish the same xorb at once, the later one to stage it makes it live, and the
//! other one waits for that and adds its owner.
//! After an error nothing of the upload is visible, unless the index has committed a transaction
//! and then reported an error. A crash leaves a staged row or a pending object, with or without a
//! blob. The next start removes the staged row and its blob, and garbage collection removes the
//! pending object.

use std::time::Duration;

use tokio::time::sleep;

use super::draft_slot::DraftSlot;
use super::{DELETION_RETRY_AFTER, Staged, Uploaded, Verified};
use crate::blob::BlobKey;
use crate::format::XorbHash;
use crate::format::xorb::VerifiedXorb;
use crate::index::{IndexErrorKind, NewXorb, SpentGrant, Staging, Ticket, XorbState};
use crate::runtime::fair::Tenant;
use crate::runtime::telemetry::chain;
use crate::service::Store;
use crate::service::error::{StoreError, UploadError};
use crate::service::heal::is_worth;

/// How often, and after which pause each, an upload looks whether another server has published the
/// same xorb: for five seconds, in which a xorb of 64 MiB is published.
const RIVAL_TRY_COUNT: u32 = 100;
const RIVAL_PAUSE: Duration = Duration::from_millis(50);

impl Store {
    /// Makes a verified upload durable and visible.
    pub(super) async fn publish(&self, verified: Verified, domain: String) -> Result<Uploaded, UploadError> {
        let _publishing = self.publish_locks.lock(verified.xorb.hash()).await;
        match self.stage(verified.xorb.hash()).await {
            Ok(staged) => self.publish_staged(staged, verified, domain, None).await,
            Err(refused) => {
                verified.draft.discard().await;
                Err(refused)
            }
        }
    }

    /// Stages the row; the caller holds the publish lock. A row that is staged and not published is
    /// invisible, and the next upload of this xorb can claim it.
    pub(in crate::service) async fn stage(&self, hash: XorbHash) -> Result<Staged, UploadError> {
        let ticket = Ticket::random();
        match self.index.stage_xorb(hash, ticket, self.clock.now()).await.map_err(StoreError::from)? {
            Staging::Staged => Ok(Staged::New(ticket)),
            Staging::Live { serialized_len } => Ok(Staged::There { ticket, serialized_len }),
            Staging::Damaged => Ok(Staged::Damaged(ticket)),
            Staging::Deleting => Err(UploadError::BeingDeleted { retry_after: DELETION_RETRY_AFTER }),
        }
    }

    /// Publishes a staged upload, and spends its grant if it has one. The caller still holds the
    /// publish lock.
    pub(in crate::service) async fn publish_staged(
        &self,
        staged: Staged,
        verified: Verified,
        domain: String,
        grant: Option<SpentGrant>,
    ) -> Result<Uploaded, UploadError> {
        let Verified { tenant, xorb, crc64, draft } = verified;
        let hash = xorb.hash();
        let mut uploaded = Uploaded {
            hash,
            was_inserted: false,
            chunk_count: xorb.layout().chunk_count(),
            serialized_len: xorb.layout().serialized_len(),
            raw_len: xorb.layout().raw_len(),
        };
        let ticket = match staged {
            Staged::New(ticket) | Staged::Damaged(ticket) => ticket,
            Staged::There { ticket, serialized_len } => {
                // The owner and the grant are recorded first, because they must not depend on the
                // success of the replacement.
                self.share(hash, domain, grant).await?;
                uploaded.was_inserted = self.shorten(ticket, serialized_len, (tenant, xorb, crc64, draft)).await;
                return Ok(uploaded);
            }
        };
        let is_heal = matches!(staged, Staged::Damaged(_));
        let Some(draft) = draft.into_draft() else {
            // When the upload began, the xorb was stored, so nothing was written to the draft.
            // Since then the xorb was deleted or found damaged, and must be uploaded again. The
            // staged row is cleaned up like that of any failed upload. Without `forget_layout` the
            // next upload would find the xorb in the cache and end here again.
            self.forget_layout(hash);
            let retry_after = DELETION_RETRY_AFTER;
            return Err(if is_heal {
                UploadError::FoundDamaged { retry_after }
            } else {
                UploadError::BeingDeleted { retry_after }
            });
        };
        // If a later step fails, the row stays staged: invisible, and the next upload can claim it.
        let (hash, layout, chunk_hashes, schemes) = xorb.into_parts();
        let row = NewXorb { hash, crc64, layout, chunk_hashes, schemes, owner: Some(domain.clone()), grant };
        let permit = self.publishes.wait(tenant, 1).await;
        if is_heal {
            // If this fails, the xorb stays damaged, and the next upload can repair it.
            self.repair_blob(draft, row, ticket).await?;
        } else {
            draft.publish(BlobKey::new(hash, ticket.incarnation())).await.map_err(StoreError::from)?;
            drop(permit);
            let grant = row.grant;
            match self.go_live(row, ticket).await {
                Err(StoreError::Index(error)) if error.kind == IndexErrorKind::Lost && self.index.is_shared() => {
                    // Another server has staged the same xorb.
                    if self.is_published_by_another(hash).await? && self.share(hash, domain, grant).await? {
                        return Ok(uploaded);
                    }
                    return Err(StoreError::from(error).into());
                }
                published => published?,
            }
        }
        uploaded.was_inserted = true;
        Ok(uploaded)
    }

    /// Adds an owner to a stored xorb, and spends the grant of the upload if it has one. Returns
    /// whether the xorb is visible.
    async fn share(&self, hash: XorbHash, owner: String, grant: Option<SpentGrant>) -> Result<bool, StoreError> {
        let is_visible = self.index.share_xorb(hash, owner).await?;
        if let Some(grant) = grant.filter(|_| is_visible) {
            self.index.spend_grant(grant).await?;
        }
        Ok(is_visible)
    }

    /// Whether another server publishes the xorb that it has staged. Waits for that, but not for
    /// long, since that server may have died.
    async fn is_published_by_another(&self, hash: XorbHash) -> Result<bool, StoreError> {
        for _ in 0..RIVAL_TRY_COUNT {
            match self.index.find_life(hash).await?.map(|life| life.state) {
                Some(XorbState::Live) => return Ok(true),
                Some(XorbState::Staged) => sleep(RIVAL_PAUSE).await,
                Some(XorbState::Condemned | XorbState::Deleting) | None => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Replaces the sound blob of a visible xorb if the new one is much shorter. Returns whether it
    /// did. A failure is only logged: the xorb is stored anyway.
    async fn shorten(
        &self,
        ticket: Ticket,
        stored_len: u64,
        (tenant, xorb, crc64, draft): (Tenant, VerifiedXorb, u64, DraftSlot),
    ) -> bool {
        let new_len = xorb.layout().serialized_len();
        if !is_worth(new_len, stored_len) {
            draft.discard().await;
            return false;
        }
        // There is no draft if the client did not declare its length, or the stored blob was
        // shorter when the upload began.
        let Some(draft) = draft.into_draft() else { return false };
        let (hash, layout, chunk_hashes, schemes) = xorb.into_parts();
        let row = NewXorb { hash, crc64, layout, chunk_hashes, schemes, owner: None, grant: None };
        let _permit = self.publishes.wait(tenant, 1).await;
        match self.replace_blob(draft, row, ticket).await {
            Ok(()) => {
                self.metrics.replaced.inc();
                tracing::info!(xorb = %hash, stored_len, new_len, "replaced a xorb by a shorter serialization");
                true
            }
            Err(error) => {
                tracing::warn!(xorb = %hash, error = %chain(&error), "cannot store a shorter serialization of a xorb");
                false
            }
        }
    }

    /// Makes a staged row live after its blob is durable.
    pub(super) async fn go_live(&self, row: NewXorb, ticket: Ticket) -> Result<(), StoreError> {
        let (hash, len) = (row.hash, row.layout.serialized_len());
        let published = self.index.publish_xorb(row, ticket, self.clock.now()).await;
        if published.as_ref().is_err_and(|error| error.kind == IndexErrorKind::Lost) {
            self.discard_lost_blob(hash, ticket, len).await;
        }
        Ok(published?)
    }

    /// Ensures that the blob of a failed publication is deleted at some time. The publication
    /// failed because its row was abandoned (after a day, or a jump of the clock), or because
    /// another process has claimed the row. Failures are logged; a blob without a row may then be
    /// left.
    pub(in crate::service) async fn discard_lost_blob(&self, hash: XorbHash, ticket: Ticket, len: u64) {
        let name = ticket.incarnation();
        let accounted = async {
            if !self.index.mark_object_dead(hash, name, len, self.clock.now()).await? {
                let life = self.index.find_life(hash).await?;
                // The row still names this blob. If it is in `Deleting`, the deleting process may
                // have looked for the blob before it was published, and found none. No other row
                // uses this name, so the blob may be deleted here.
                if life.is_some_and(|life| life.state == XorbState::Deleting) {
                    self.blobs.delete(BlobKey::new(hash, name)).await?;
                }
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = accounted.await {
            tracing::warn!(xorb = %hash, error = %chain(&error), "a blob without a row may be left");
        }
    }
}
