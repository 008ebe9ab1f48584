//! Uploads of whole files, from clients that do not know chunks: the bytes are cut and packed into
//! xorbs while they arrive.
//!
//! A xorb is published as soon as it is full, and the last one by the caller. So an upload has one
//! draft at a time, whatever the length of its file. After an error the published xorbs are
//! garbage, as after a Xet upload whose shard never comes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use sha2::{Digest, Sha256 as Hasher};

use super::packing::{Packing, XORB_LEN};
use super::receive::Sink;
use super::{BodyError, Verified};
use crate::format::shard::{FileInfo, Sha256};
use crate::runtime::blocking::Pool;
use crate::runtime::fair::Tenant;
use crate::service::access::Claims;
use crate::service::admission::Transfer;
use crate::service::error::UploadError;
use crate::service::scope::domain;
use crate::service::{Server, Store};

/// A file whose last xorbs are not published yet.
#[derive(Debug)]
pub(in crate::service) struct ReceivedFile {
    /// Its hash and its terms; the empty file has none.
    pub(in crate::service) info: FileInfo,
    /// The sha256 of its bytes.
    pub(in crate::service) sha256: Sha256,
    /// The number of its bytes.
    pub(in crate::service) len: u64,
    /// The xorbs that are still to be published.
    pub(in crate::service) last: Vec<Verified>,
}

/// A file that is being received.
struct Incoming {
    store: Arc<Store>,
    tenant: Tenant,
    /// The owner of the xorbs.
    domain: String,
    transfer: Arc<Transfer>,
    packing: Packing,
    hasher: Hasher,
    len: u64,
    max_len: u64,
}

impl Server {
    /// Receives a file of at most `max_len` bytes.
    ///
    /// # Errors
    ///
    /// See [`UploadError`]. The body may not have been read to its end.
    pub(in crate::service) async fn receive_file<S>(
        &self,
        tenant: Tenant,
        claims: &Claims,
        max_len: u64,
        body: S,
    ) -> Result<ReceivedFile, UploadError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Send + Unpin,
    {
        // It counts as one xorb, because it has one draft at a time.
        let part_len = max_len.min(XORB_LEN);
        let slot = self.upload_slot(tenant, part_len)?;
        self.store.check_headroom(part_len).await?;
        let incoming = Incoming {
            store: Arc::clone(&self.store),
            tenant,
            domain: domain(&claims.repo),
            transfer: Arc::clone(slot.body().transfer()),
            packing: Packing::new(&self.store, tenant),
            hasher: Hasher::new(),
            len: 0,
            max_len,
        };
        let body = slot.body().counted(body);
        let incoming = slot.body().unless_cut(Box::pin(self.receive(incoming, body))).await?;
        let Incoming { mut packing, hasher, len, .. } = incoming;
        let finish = move || {
            packing.end_file()?;
            packing.finish()
        };
        let (last, files) = self.store.pool.run_for(tenant, finish).await?;
        let info = files.into_iter().next().expect("one file has ended");
        Ok(ReceivedFile { info, sha256: Sha256::from_digest(hasher.finalize().into()), len, last })
    }

    /// Makes xorbs durable and visible, one after another.
    pub(in crate::service) async fn publish_all(&self, xorbs: Vec<Verified>, domain: &str) -> Result<(), UploadError> {
        for xorb in xorbs {
            let (store, domain) = (Arc::clone(&self.store), domain.to_owned());
            self.uninterrupted(async move { store.publish(xorb, domain).await }).await?;
        }
        Ok(())
    }
}

impl Sink for Incoming {
    fn tenant(&self) -> Tenant {
        self.tenant
    }

    fn pool(&self) -> &Pool {
        &self.store.pool
    }

    fn take(&mut self, pieces: Vec<Bytes>) -> Result<(), UploadError> {
        for piece in pieces {
            self.len = self.len.saturating_add(piece.len() as u64);
            if self.len > self.max_len {
                return Err(UploadError::TooLarge { limit: self.max_len });
            }
            self.hasher.update(&piece);
            self.packing.push(&piece)?;
        }
        Ok(())
    }

    fn must_settle(&self) -> bool {
        self.packing.has_full()
    }

    fn rest(&mut self, _: Duration) {
        self.packing.release_scratch();
    }

    async fn settle(mut self, server: &Server) -> Result<Self, UploadError> {
        let full = self.packing.take_full();
        if full.is_empty() {
            return Ok(self);
        }
        // Each xorb is judged like an upload of its own. The client is not slow while it waits for
        // the disk.
        self.transfer.end();
        server.publish_all(full, &self.domain).await?;
        server.store.check_headroom(self.max_len.saturating_sub(self.len).min(XORB_LEN)).await?;
        self.transfer.begin_part();
        Ok(self)
    }
}
