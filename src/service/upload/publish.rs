//! The end of an upload: stages the row, publishes the blob, and makes the row live.
//!
//! After `Ok` the blob is durable, its row is live, and the uploader is one of its owners. An
//! upload of a stored xorb only adds the owner. After an error nothing of the upload is visible. A
//! crash leaves a staged row, with or without a blob: the next start removes both. A crash during a
//! heal leaves the xorb damaged.

use super::{DELETION_RETRY_AFTER, Staged, Uploaded, Verified};
use crate::blob::BlobKey;
use crate::format::XorbHash;
use crate::index::{IndexErrorKind, NewXorb, SpentGrant, Staging, Ticket};
use crate::runtime::telemetry::chain;
use crate::service::Cas;
use crate::service::error::{StoreError, UploadError};

impl Cas {
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

    /// Claims the row, under the lock. A row that is staged and not published is invisible, and
    /// free for the next upload of this xorb.
    pub(in crate::service) async fn stage(&self, hash: XorbHash) -> Result<Staged, UploadError> {
        let ticket = Ticket::random();
        match self.index.stage_xorb(hash, ticket, self.clock.now()).await.map_err(StoreError::from)? {
            Staging::Staged => Ok(Staged::New(ticket)),
            Staging::Live => Ok(Staged::There),
            Staging::Damaged => Ok(Staged::Damaged(ticket)),
            Staging::Deleting => Err(UploadError::BeingDeleted { retry_after: DELETION_RETRY_AFTER }),
        }
    }

    /// Publishes a staged upload, under the same lock, and spends its grant.
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
            Staged::New(ticket) | Staged::Damaged(ticket) => Some(ticket),
            Staged::There => None,
        };
        let Some(ticket) = ticket else {
            draft.discard().await;
            self.index.share_xorb(hash, domain).await.map_err(StoreError::from)?;
            if let Some(grant) = grant {
                self.index.spend_grant(grant).await.map_err(StoreError::from)?;
            }
            return Ok(uploaded);
        };
        let is_heal = matches!(staged, Staged::Damaged(_));
        let Some(draft) = draft.into_draft() else {
            // The xorb was stored when the upload began, and was deleted since or found damaged.
            // Nothing was written, so it must be uploaded again. A staged row is cleared up like
            // that of any failed upload. A layout left in the cache would end the next upload here
            // as well.
            self.forget_layout(hash);
            let retry_after = DELETION_RETRY_AFTER;
            return Err(if is_heal {
                UploadError::FoundDamaged { retry_after }
            } else {
                UploadError::BeingDeleted { retry_after }
            });
        };
        // A failure from here on leaves the row staged: invisible, and free for the next upload of
        // this xorb.
        let (hash, layout, chunk_hashes, schemes) = xorb.into_parts();
        let row = NewXorb { hash, crc64, layout, chunk_hashes, schemes, owner: Some(domain), grant };
        let permit = self.publishes.wait(tenant, 1).await;
        if is_heal {
            // A failure leaves the xorb damaged, and free for the next upload.
            self.replace_blob(draft, row, ticket).await?;
        } else {
            draft.publish(BlobKey::xorb(hash)).await.map_err(StoreError::from)?;
            drop(permit);
            self.go_live(row, ticket).await?;
        }
        uploaded.was_inserted = true;
        Ok(uploaded)
    }

    /// Makes a staged row live after its blob is durable.
    pub(super) async fn go_live(&self, row: NewXorb, ticket: Ticket) -> Result<(), StoreError> {
        let hash = row.hash;
        let published = self.index.publish_xorb(row, ticket, self.clock.now()).await;
        if published.as_ref().is_err_and(|error| error.kind == IndexErrorKind::Lost) {
            self.account_for(hash).await;
        }
        Ok(published?)
    }

    /// Ensures, under the lock, that a blob does not stay for ever after its row was abandoned
    /// during publication. That takes a day, or a jump of the clock. Failures are logged; the blob
    /// is without a row then.
    pub(in crate::service) async fn account_for(&self, hash: XorbHash) {
        let accounted = match self.index.stage_xorb(hash, Ticket::random(), self.clock.now()).await {
            // A staged row states that there may be a blob, and is cleared up like that of any
            // failed upload.
            Ok(Staging::Staged | Staging::Live | Staging::Damaged) => Ok(()),
            // The deleting process may be past the blob. The lock excludes another publication.
            Ok(Staging::Deleting) => self.blobs.delete(BlobKey::xorb(hash)).await.map(drop).map_err(StoreError::from),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = accounted {
            tracing::warn!(xorb = %hash, error = %chain(&error), "a blob without a row may be left");
        }
    }
}
