//! Bytes that a client sends without cutting them become Xet files: those in a commit, and large
//! files from clients that do not know Xet.
//!
//! The order is that of a Xet upload: xorbs durable, then their registration. A sha256 that the
//! server has computed itself is recorded as verified.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;

use super::{HubError, OpenRepo};
use crate::format::FileHash;
use crate::format::limits::MAX_XORB_SERIALIZED_LEN;
use crate::format::shard::{FileInfo, Sha256, Shard, write_upload};
use crate::git::ObjectId;
use crate::index::{Claim, ClaimState, HubBlob};
use crate::runtime::fair::Tenant;
use crate::runtime::telemetry::chain;
use crate::service::access::{Claims, RepoScope};
use crate::service::scope::domain;
use crate::service::upload::{Packing, ReceivedFile};
use crate::service::{BodyError, Server};

/// Maximum length of a file that a client sends without cutting it: the record of a file of this
/// length fits into a shard, whatever its contents are. Clients without `hf_xet` send at most 50
/// GB.
pub(crate) const MAX_WHOLE_FILE_LEN: u64 = 200 << 30;

/// The sha256 of no bytes.
const EMPTY_SHA256: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae, 0x41,
    0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// A large file that a client sends as a whole.
#[derive(Debug)]
pub struct WholeFile<'a, S> {
    /// The tenant that sends it.
    pub tenant: Tenant,
    /// The claims of the uploader, for one repository or for all.
    pub claims: &'a Claims,
    /// The sha256 that the client states.
    pub sha256: Sha256,
    /// The length in bytes that the client states.
    pub len: u64,
    /// The bytes, in pieces of any size.
    pub body: S,
}

impl Server {
    /// Stores these contents as regular files. After `Ok` they are durable, and the repository of
    /// the claims may read them.
    pub(super) async fn ingest(
        self: &Arc<Self>,
        claims: &Claims,
        contents: Vec<Vec<u8>>,
    ) -> Result<Vec<HubBlob>, HubError> {
        if contents.is_empty() {
            return Ok(Vec::new());
        }
        let (tenant, len) = (claims.tenant(), contents.iter().map(|bytes| bytes.len() as u64).sum::<u64>());
        let slot = self.upload_slot(tenant, len.min(MAX_XORB_SERIALIZED_LEN))?;
        self.store.check_headroom(len).await?;
        let mut packing = Packing::new(&self.store, tenant);
        let pack = move || {
            let mut blobs = Vec::with_capacity(contents.len());
            for bytes in contents {
                packing.push(&bytes)?;
                let file = packing.end_file()?;
                let id = ObjectId::of_blob(&bytes)?;
                blobs.push(HubBlob { id, len: bytes.len() as u64, sha256: None, file });
            }
            Ok::<_, HubError>((blobs, packing.finish()?))
        };
        let (blobs, (xorbs, mut files)) = self.store.pool.run_for(tenant, pack).await?;
        self.publish_all(xorbs, &domain(&claims.repo)).await?;
        drop(slot);
        // A shard has each file once.
        let mut seen = HashSet::new();
        files.retain(|file| seen.insert(file.hash));
        self.register_files(claims, files).await?;
        Ok(blobs)
    }

    /// Whether the repository has a file with this sha256 and length that can be read. Then a
    /// client has a week to commit it.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn has_whole_file(&self, open: &OpenRepo, sha256: Sha256, len: u64) -> Result<bool, HubError> {
        let find =
            async || Ok::<_, HubError>(self.find_large(&open.claims, sha256).await?.filter(|(_, found)| *found == len));
        let Some((file, _)) = find().await? else { return Ok(false) };
        Ok(!self.retain_file(open, file).await? || find().await?.is_some())
    }

    /// The file with this sha256 and its length, if these claims have registered it. The empty file
    /// needs no registration.
    pub(super) async fn find_large(
        &self,
        claims: &Claims,
        sha256: Sha256,
    ) -> Result<Option<(FileHash, u64)>, HubError> {
        if *sha256.as_digest() == EMPTY_SHA256 {
            return Ok(Some((FileHash::EMPTY, 0)));
        }
        let Some(found) = self.find_file_by_sha256(claims, sha256).await? else { return Ok(None) };
        if claims.repo == RepoScope::All
            && self.store.index.claimed_files(vec![found.hash], claims.repo.to_string()).await?.is_empty()
        {
            // Only a repository has it, whose deletion would remove the file from all others.
            return Ok(None);
        }
        Ok(Some((found.hash, found.len)))
    }

    /// Receives a large file. After `Ok` it is durable and registered for the repository of the
    /// claims, and its sha256 is verified.
    ///
    /// # Errors
    ///
    /// [`HubError::Invalid`] if the bytes are others than stated. Nothing is registered after an
    /// error, unless the index has committed a transaction and then reported an error.
    pub async fn receive_whole_file<S>(self: &Arc<Self>, upload: WholeFile<'_, S>) -> Result<(), HubError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        let WholeFile { tenant, claims, sha256, len, body } = upload;
        // A client must not send gigabytes to be refused then. A file that is here already may be
        // sent again: its response was lost, or a xorb of it is damaged.
        if self.find_large(claims, sha256).await?.is_none_or(|(_, found_len)| found_len != len) {
            self.check_quota_of_file(&claims.repo, len).await?;
        }
        let received = self.receive_file(tenant, claims, len, body).await?;
        let (actual, actual_len) = (received.sha256, received.len);
        if actual != sha256 || actual_len != len {
            for xorb in received.last {
                xorb.discard().await;
            }
            let received = format!("The {actual_len} bytes received have the sha256 {actual}");
            return Err(HubError::Invalid(format!("{received}; {sha256} with {len} bytes was announced.")));
        }
        // Completes also when the client does not wait for it, so that it finds the file when it
        // tries again.
        let (server, claims) = (Arc::clone(self), claims.clone());
        self.uninterrupted(async move { Box::pin(server.enter_whole_file(tenant, &claims, received)).await }).await
    }

    /// Publishes the last xorbs of a file, and registers it.
    async fn enter_whole_file(
        self: &Arc<Self>,
        tenant: Tenant,
        claims: &Claims,
        received: ReceivedFile,
    ) -> Result<(), HubError> {
        let ReceivedFile { info, sha256, last, .. } = received;
        self.publish_all(last, &domain(&claims.repo)).await?;
        let (file, shard_len) = (info.hash, record_len_of(&info));
        let budget = self.shard_budget(tenant, shard_len).await?;
        self.register_files(claims, vec![FileInfo { sha256: Some(sha256), ..info }]).await?;
        drop(budget);
        if file == FileHash::EMPTY {
            return Ok(());
        }
        match self.store.index.settle_claim(Claim { file, sha256 }, ClaimState::Verified).await {
            Ok(true) => {
                self.store.metrics.sha256_verified.inc();
            }
            Ok(false) => {}
            // The file is registered. Its sha256 stays a claim, which is verified later.
            Err(error) => tracing::warn!(%file, error = %chain(&error), "cannot record a verified sha256"),
        }
        Ok(())
    }

    /// Registers files, if any of them has contents: the empty file needs no registration.
    async fn register_files(self: &Arc<Self>, claims: &Claims, mut files: Vec<FileInfo>) -> Result<(), HubError> {
        files.retain(|file| file.hash != FileHash::EMPTY);
        if files.is_empty() {
            return Ok(());
        }
        let write = move || write_upload(&Shard { files, xorbs: Vec::new() });
        let shard = self.store.pool.run_for(claims.tenant(), write).await;
        let shard = shard.map_err(|error| HubError::Invalid(format!("Too many files: {error}.")))?;
        self.register(claims, shard.into()).await?;
        Ok(())
    }
}

/// Bytes of a shard with this file: 48 for each of its two records, and 96 for each term with its
/// range hash.
fn record_len_of(file: &FileInfo) -> u64 {
    (file.terms.len() as u64).saturating_add(1).saturating_mul(96)
}
