//! Uploads by grant (spec 5.4.2). The client first sends the bytes to a signed URL, without a
//! token. A commit with a token then makes them visible.
//!
//! Until the commit the bytes are a draft, verified like any upload, and their layout is in memory.
//! The commit does the same as a direct upload does after its last byte. The transaction that makes
//! the xorb live also records the grant as spent. So the index has nothing about a grant before its
//! commit. When the process ends, the waiting uploads are lost; the next start removes their
//! drafts. A commit after that start reports that nothing was sent, and the client requests a new
//! grant.

mod waiting;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;

use self::waiting::Limits;
pub(super) use self::waiting::Waiting;
use super::Server;
use super::access::{Claims, GRACE_SECS, Grant};
use super::error::{StoreError, UploadError};
use super::scope::{dedup_scope, domain};
use super::upload::{BodyError, Expected, Sum};
use crate::format::XorbHash;
use crate::format::limits::MAX_XORB_BODY_LEN;
use crate::index::SpentGrant;
use crate::runtime::clock::Timestamp;

/// Maximum number of chunks of all uploads that wait for their commit: 10 MiB of layouts and
/// hashes.
const WAITING_CHUNK_COUNT: u32 = 256 << 10;

/// How long a spent grant is recorded after its expiry. A clock that is set back a little must not
/// make the grant valid again.
const SPENT_GRANT_RETENTION_SECS: u64 = 600;

/// The bytes of a grant.
#[derive(Debug)]
pub struct GrantedUpload<S> {
    /// The grant, after its check.
    pub grant: Grant,
    /// The xorb that it is for.
    pub xorb: XorbHash,
    /// Bytes of the body as the client declares them, if it does.
    pub declared_len: Option<u64>,
    /// The body, in pieces of any size.
    pub body: S,
}

impl Server {
    /// Whether the holder of these claims may skip the upload of a xorb, because it is stored for
    /// this owner already. If so, the age of the xorb restarts as if it had been uploaded.
    ///
    /// A xorb that only other owners have uploaded counts as missing: the client must not learn
    /// that it exists. Also, a xorb of one chunk has the hash of the chunk, which other clients may
    /// know without having the bytes. So a known hash must not count as an upload (spec 6.2, rules
    /// 5 and 9).
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn renew(&self, claims: &Claims, xorb: XorbHash) -> Result<bool, StoreError> {
        Ok(self.store.index.renew_xorb(xorb, dedup_scope(&claims.repo), self.store.clock.now()).await?)
    }

    /// Receives the bytes of a grant; returns when they are verified and wait for the commit.
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
        // The length is checked before a byte is read, so that no client sends a body of the wrong
        // length in vain.
        if declared_len != Some(grant.body_len) {
            return Err(UploadError::NotAsGranted { len: grant.body_len });
        }
        let slot = self.upload_slot(grant.tenant(), grant.body_len)?;
        self.store.check_headroom(grant.body_len).await?;
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
        // Check again: the client may have sent the same bytes twice at once, and may have
        // committed the other upload meanwhile.
        if let Err(spent) = self.check_unused(&grant).await {
            verified.discard().await;
            return Err(spent);
        }
        for surplus in self.waiting.insert(&grant, verified) {
            surplus.discard().await;
        }
        Ok(())
    }

    /// Makes the bytes of a grant durable and visible. The claims are those of the grant's owner.
    /// Succeeds without effect if the grant was committed before.
    ///
    /// # Errors
    ///
    /// [`UploadError::NothingSent`], or the store failed. Then the bytes may have to be sent again,
    /// under a new grant.
    pub async fn commit_granted(
        self: &Arc<Self>,
        claims: &Claims,
        xorb: XorbHash,
        grant: Grant,
    ) -> Result<(), UploadError> {
        let domain = domain(&claims.repo);
        let server = Arc::clone(self);
        self.uninterrupted(async move { server.publish_granted(xorb, grant, domain).await }).await
    }

    /// Publishes the waiting upload of a grant. Without one, checks that the grant was committed
    /// before.
    async fn publish_granted(&self, xorb: XorbHash, grant: Grant, domain: String) -> Result<(), UploadError> {
        let _publishing = self.store.publish_locks.lock(xorb).await;
        if self.waiting.has(&grant) {
            // Take the waiting upload only after the row is staged. If the staging fails, the
            // upload still waits, and the client can try again.
            let staged = self.store.stage(xorb).await?;
            let verified = self.waiting.take(&grant).ok_or(UploadError::NothingSent)?;
            let spent = SpentGrant { nonce: grant.nonce, expires: millis(grant.expires_unix_secs) };
            return self.store.publish_staged(staged, verified, domain, Some(spent)).await.map(drop);
        }
        let is_spent = self.store.index.is_grant_spent(grant.nonce).await.map_err(StoreError::from)?;
        // The grant was committed before, but the xorb may have been deleted since.
        let found = if is_spent { self.store.index.find_xorb(xorb).await.map_err(StoreError::from)? } else { None };
        let is_there = found.is_some_and(|xorb| !xorb.is_damaged);
        if is_there { Ok(()) } else { Err(UploadError::NothingSent) }
    }

    /// Refuses a grant whose upload waits for its commit, or that is spent.
    async fn check_unused(&self, grant: &Grant) -> Result<(), UploadError> {
        let is_used =
            self.waiting.has(grant) || self.store.index.is_grant_spent(grant.nonce).await.map_err(StoreError::from)?;
        if is_used { Err(UploadError::GrantSpent) } else { Ok(()) }
    }

    /// Discards uploads whose grants have expired, and forgets spent grants that expired long ago.
    /// To be called from time to time.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn sweep_grants(&self) -> Result<(), StoreError> {
        let now = self.store.clock.now().as_secs();
        for verified in self.waiting.take_expired(now.saturating_sub(GRACE_SECS)) {
            verified.discard().await;
        }
        self.store.index.forget_grants(millis(now.saturating_sub(GRACE_SECS + SPENT_GRANT_RETENTION_SECS))).await?;
        Ok(())
    }

    /// Discards all waiting uploads. Called when the server stops.
    pub(super) async fn drop_waiting(&self) {
        for verified in self.waiting.take_expired(u64::MAX) {
            verified.discard().await;
        }
    }
}

impl Waiting {
    /// No waiting uploads yet.
    pub(super) fn new(upload_count: usize) -> Self {
        Self::with_limits(Limits { count: upload_count, chunk_count: WAITING_CHUNK_COUNT })
    }
}

const fn millis(unix_secs: u64) -> Timestamp {
    Timestamp::from_millis(unix_secs.saturating_mul(1000))
}
