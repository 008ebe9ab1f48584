//! Uploads by grant (spec 5.4.2): the bytes are sent first, to a URL that carries its own
//! authority. A commit with a token then makes them visible.
//!
//! Between the two the bytes are a draft, verified like any upload, and their layout is in memory.
//! The commit does the same as a direct upload after its last byte. It spends the grant in the
//! transaction that makes the xorb live. So a grant has nothing in the index before its commit, and
//! only the commit makes the xorb visible. A process that ends forgets the uploads that wait, and
//! their drafts are cleared up like any others. The commit then reports that nothing was sent, and
//! the client asks for a new grant.

mod waiting;

use bytes::Bytes;
use futures_util::Stream;

use self::waiting::Limits;
pub(super) use self::waiting::Waiting;
use super::access::{Claims, GRACE_SECS, Grant};
use super::error::{StoreError, UploadError};
use super::register::{dedup_scope, domain};
use super::upload::{BodyError, Expected, Sum};
use super::{Budget, Cas};
use crate::format::XorbHash;
use crate::format::limits::MAX_XORB_BODY_LEN;
use crate::index::SpentGrant;
use crate::runtime::clock::Timestamp;

/// Chunks of all uploads that wait for their commit, at most: 10 MiB of layouts and hashes.
const WAITING_CHUNK_COUNT: u32 = 256 << 10;

/// How long a spent grant is remembered after its expiry: a clock that is set back a little must
/// not make it valid again.
const MEMORY_SECS: u64 = 600;

/// The bytes of a grant.
#[derive(Debug)]
pub struct GrantedUpload<S> {
    /// The grant, checked.
    pub grant: Grant,
    /// The xorb that it is for.
    pub xorb: XorbHash,
    /// Bytes of the body as the client declares them, if it does.
    pub declared_len: Option<u64>,
    /// The body, in pieces of any size.
    pub body: S,
}

impl Cas {
    /// Whether the holder of these claims may skip the upload of a xorb, because it is stored for
    /// this owner already. If so, its age restarts as if it had been uploaded.
    ///
    /// A xorb that only other owners have uploaded counts as missing. Its existence must not be
    /// told. And for a xorb of one chunk the hash, which others may know, would replace the bytes
    /// (spec 6.2, rules 5 and 9).
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn renew(&self, claims: &Claims, xorb: XorbHash) -> Result<bool, StoreError> {
        Ok(self.index.renew_xorb(xorb, dedup_scope(&claims.repo), self.clock.now()).await?)
    }

    /// Receives the bytes of a grant; returns when they wait for its commit.
    ///
    /// # Errors
    ///
    /// See [`UploadError`]. The body may not have been read to its end.
    pub async fn upload_granted<S>(&self, upload: GrantedUpload<S>) -> Result<(), UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let GrantedUpload { grant, xorb, declared_len, body } = upload;
        self.check_unused(&grant).await?;
        // Before a byte is read, so that no client sends a body of the wrong length in vain.
        if declared_len != Some(grant.body_len) {
            return Err(UploadError::NotAsGranted { len: grant.body_len });
        }
        let slot = self.upload_slot(grant.tenant(), grant.body_len)?;
        self.check_headroom(grant.body_len).await?;
        let sum = Sum { len: grant.body_len, crc64nvme: grant.crc64nvme };
        let expected = Expected {
            tenant: grant.tenant(),
            hash: xorb,
            max_len: MAX_XORB_BODY_LEN,
            declared_len,
            granted: Some(sum),
        };
        expected.check_len(declared_len)?;
        let body = slot.body().counted(body);
        let verified = slot.body().unless_cut(self.verify(expected, body)).await?;
        // The same bytes may have been sent twice at once, and one of them may have been committed.
        if let Err(spent) = self.check_unused(&grant).await {
            verified.discard().await;
            return Err(spent);
        }
        for surplus in self.waiting.insert(&grant, verified) {
            surplus.discard().await;
        }
        Ok(())
    }

    /// Makes the bytes of a grant durable and visible to the holder of these claims, the grant's
    /// owner. Succeeds without effect where that has been done.
    ///
    /// # Errors
    ///
    /// [`UploadError::NothingSent`], or the store failed. Then the bytes may have to be sent again,
    /// under a new grant.
    pub async fn commit_granted(&self, claims: &Claims, xorb: XorbHash, grant: Grant) -> Result<(), UploadError> {
        let domain = domain(&claims.repo);
        self.uninterrupted(|cas| async move { cas.publish_granted(xorb, grant, domain).await }).await
    }

    async fn publish_granted(&self, xorb: XorbHash, grant: Grant, domain: String) -> Result<(), UploadError> {
        let _publishing = self.publish_locks.lock(xorb).await;
        if self.waiting.has(&grant) {
            // Taken only when the row is staged: if that fails, the client can try again.
            let staged = self.stage(xorb).await?;
            let verified = self.waiting.take(&grant).ok_or(UploadError::NothingSent)?;
            let spent = SpentGrant { nonce: grant.nonce, expires: millis(grant.expires_unix_secs) };
            return self.publish_staged(staged, verified, domain, Some(spent)).await.map(drop);
        }
        let is_spent = self.index.is_grant_spent(grant.nonce).await.map_err(StoreError::from)?;
        // It may have been deleted since.
        let found = if is_spent { self.index.find_xorb(xorb).await.map_err(StoreError::from)? } else { None };
        let is_there = found.is_some_and(|xorb| !xorb.is_damaged);
        if is_there { Ok(()) } else { Err(UploadError::NothingSent) }
    }

    async fn check_unused(&self, grant: &Grant) -> Result<(), UploadError> {
        let is_used =
            self.waiting.has(grant) || self.index.is_grant_spent(grant.nonce).await.map_err(StoreError::from)?;
        if is_used { Err(UploadError::GrantSpent) } else { Ok(()) }
    }

    /// Discards uploads whose grants cannot be committed any more, and grants that expired long
    /// ago. To be called from time to time.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn sweep_grants(&self) -> Result<(), StoreError> {
        let now = self.clock.now().as_secs();
        for verified in self.waiting.take_expired(now.saturating_sub(GRACE_SECS)) {
            verified.discard().await;
        }
        self.index.forget_grants(millis(now.saturating_sub(GRACE_SECS + MEMORY_SECS))).await?;
        Ok(())
    }

    /// Discards all waiting uploads. Only at the end.
    pub(super) async fn drop_waiting(&self) {
        for verified in self.waiting.take_expired(u64::MAX) {
            verified.discard().await;
        }
    }
}

impl Waiting {
    /// None yet.
    pub(super) fn new(budget: Budget) -> Self {
        Self::with_limits(Limits { count: budget.upload_count, chunk_count: WAITING_CHUNK_COUNT })
    }
}

const fn millis(unix_secs: u64) -> Timestamp {
    Timestamp::from_millis(unix_secs.saturating_mul(1000))
}
