//! The rules of the store: what an upload must prove, in which order its blob and its rows become
//! durable and visible, and what a reader gets.
//!
//! [`Store`] is the stored data. Its methods need no clients: garbage collection, backup, rebuild
//! of the index, checks and reads. [`Server`] is a store with clients. Its methods are the requests
//! of clients, and its fields bound their work and share it fairly between tenants. Both are built
//! from the same [`Settings`]. No code in this module uses HTTP, SQL or paths.

pub mod access;
mod admission;
pub mod archive;
mod claims;
mod compute;
mod contents;
mod dedup_filter;
mod download;
mod error;
mod file_bytes;
mod file_locks;
mod files;
pub mod fsck;
pub mod gc;
mod granted;
mod headroom;
mod heal;
mod hub;
mod listing;
mod permits;
mod possession;
mod quota;
pub mod reconstruct;
mod recover;
mod register;
mod registering;
mod registration_log;
mod remove;
mod response_budget;
mod scope;
mod scrub;
mod settings;
mod steps;
mod store_locks;
mod upload;
mod verify;
mod windows;

use std::sync::Arc;
use std::time::Duration;

pub use self::admission::Transfer;
pub use self::claims::Sha256File;
use self::dedup_filter::DedupFilter;
pub use self::download::{ChunkInfo, Form, ReadStream, StoredXorb};
pub use self::error::{OverQuota, ReadError, RegisterError, StoreError, StoreErrorKind, UploadError};
pub use self::file_bytes::RegisteredFile;
use self::file_locks::FileLocks;
pub use self::files::{BatchReconstruction, Detail, ReconstructError, Reconstruction};
pub use self::granted::GrantedUpload;
use self::granted::Waiting;
pub use self::hub::{
    Change, CommitRequest, Committed, Depth, HubEntry, HubError, HubFile, HubName, HubNameError, HubPage, OpenRepo,
    RepoHead, StoredRepo, WholeFile, metadata_of,
};
pub(crate) use self::hub::{MAX_CHANGE_COUNT, MAX_METADATA_LEN, MAX_WHOLE_FILE_LEN};
pub use self::listing::{FileEntry, ListError, MAX_PAGE_COUNT, Page, XorbEntry};
use self::permits::Permits;
pub use self::quota::{Holding, MeteredRepo, Quotas, UsageError};
pub use self::recover::Recovered;
pub use self::register::RegisteredShard;
use self::registration_log::UnknownOutcomes;
pub use self::registration_log::{
    AbandonedRecords, AppendedRecord, Gap, Pruned, Pruning, RebuildError, Rebuilt, Reconciled, Tail, check_owner,
    has_anything,
};
pub use self::remove::{RemoveError, RemovedFile};
pub use self::response_budget::ResponseBudget;
pub use self::scrub::ScrubBudget;
pub use self::settings::Settings;
use self::upload::PublishLocks;
pub use self::upload::shard::ReceivedShard;
pub use self::upload::{BodyError, Upload, Uploaded};
pub use self::verify::Damage;
pub use self::windows::WindowsError;
use crate::blob::records::RecordStore;
use crate::blob::{BlobKey, BlobStore};
use crate::format::{ByteRange, XorbHash};
use crate::index::Index;
pub use crate::index::{
    HealthSums, HubBlob, HubCommit, HubRef, HubRepo, Limits, Quantity, RepoKind, RepoOrder, RepoPlace, Totals, Usage,
};
use crate::runtime::blocking::Pool;
use crate::runtime::clock::Clock;
use crate::runtime::fair::FairGate;
use crate::runtime::incarnation::Incarnation;
use crate::runtime::metrics::Metrics;
use crate::runtime::task::TaskGroup;

/// How long a client is told to wait before it retries an upload that got no slot. Stock clients
/// wait longer than this on their own.
const OVERLOADED_RETRY_AFTER: Duration = Duration::from_secs(2);

/// The stored data. Every process that works on a data directory has one, with or without clients.
///
/// Blobs, records, index and clock are trait objects, so that tests can replace each of them.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct Store {
    blobs: Arc<dyn BlobStore>,
    /// The registration log.
    records: Arc<dyn RecordStore>,
    /// Locks of files. They ensure that the records of a file are in the order in which the index
    /// applies them.
    file_locks: FileLocks,
    /// Changes whose outcome the index could not tell yet.
    unknown_outcomes: Arc<UnknownOutcomes>,
    index: Arc<dyn Index>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    /// The threads that verify and decode xorbs.
    pool: Pool,
    /// One lock per xorb. The lock prevents two of upload, compaction and scrub from publishing the
    /// same xorb at the same time.
    publish_locks: PublishLocks,
    /// Permits for making a blob durable. They bound how many blobs are synced concurrently.
    publishes: FairGate,
    /// The free disk space that must be left, and the free space as of the last query.
    headroom: Arc<headroom::Headroom>,
    /// Layouts of xorbs in memory. They belong to the store and not to the server, because GC and
    /// repairs invalidate them.
    layouts: heal::LayoutCache,
    /// Xorbs that failed a read, for the scrub to check.
    suspects: Arc<scrub::Suspects>,
    /// Directories of Hub repositories in memory.
    trees: hub::Trees,
    cards: hub::Cards,
}

/// A store with clients: what a server process has, besides its sockets.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct Server {
    /// The stored data.
    pub store: Arc<Store>,
    /// The limits of the work of clients.
    permits: Permits,
    /// The threads for long computations of responses. They are not the threads of `Store::pool`,
    /// where a response would wait behind uploads, each of which holds a thread for milliseconds.
    computing: Pool,
    /// A filter of the chunks that deduplication finds.
    dedup_filter: Arc<DedupFilter>,
    /// Wakes the tasks that verify the sha256 claims of clients.
    unsettled: Arc<claims::Unsettled>,
    /// The quotas of repositories.
    quotas: Arc<Quotas>,
    /// The tasks that publish uploads. An upload is published in its own task, which completes even
    /// if the client disconnects.
    publishing: TaskGroup,
    /// Uploads by grant that were received and not committed yet.
    waiting: Arc<Waiting>,
    /// Locks of commits on the branches of Hub repositories.
    branch_locks: Arc<hub::BranchLocks>,
    /// Hub repositories whose claims are being removed, and the registrations under way.
    deleting: Arc<registering::Deleting>,
    /// Hub repositories with files that sweeps will remove, and what was swept.
    unneeded: Arc<hub::Unneeded>,
}

impl Server {
    /// A server with these settings, and its store.
    #[must_use]
    pub fn new(settings: &Settings) -> Arc<Self> {
        Arc::new(Self {
            store: Store::new(settings),
            permits: Permits::new(settings),
            computing: Pool::new(compute::thread_count(settings.verify_worker_count)),
            dedup_filter: Arc::default(),
            unsettled: Arc::new(claims::Unsettled::new(claims::LARGE_LEN)),
            quotas: Arc::new(settings.quotas.clone()),
            publishing: TaskGroup::new(),
            waiting: Arc::new(Waiting::new(settings.upload_count)),
            branch_locks: Arc::default(),
            deleting: Arc::default(),
            unneeded: Arc::default(),
        })
    }

    /// Waits until every upload that is being published is visible or has failed. Then discards the
    /// uploads by grant that were not committed. To be called when the server stops.
    pub async fn finish(&self) {
        self.publishing.join().await;
        self.drop_waiting().await;
    }
}

impl Store {
    /// A store with these settings.
    #[must_use]
    pub fn new(settings: &Settings) -> Arc<Self> {
        Arc::new(Self {
            blobs: Arc::clone(&settings.blobs),
            records: Arc::clone(&settings.records),
            file_locks: FileLocks::default(),
            unknown_outcomes: Arc::default(),
            index: Arc::clone(&settings.index),
            clock: Arc::clone(&settings.clock),
            metrics: Arc::clone(&settings.metrics),
            pool: Pool::new(settings.verify_worker_count),
            publish_locks: PublishLocks::default(),
            publishes: permits::publishes(settings),
            headroom: Arc::new(headroom::Headroom::new(settings.min_free_len)),
            layouts: heal::LayoutCache::new(settings.layout_cache_len),
            suspects: Arc::default(),
            trees: hub::tree_cache(),
            cards: hub::card_cache(),
        })
    }

    /// Checks that the blob store can be written and that the index responds.
    ///
    /// # Errors
    ///
    /// The blob store cannot be written, or the index does not respond, or has not told yet whether
    /// an earlier change was made.
    pub async fn probe(&self) -> Result<(), StoreError> {
        self.unknown_outcomes.check()?;
        self.blobs.probe().await?;
        self.index.totals().await?;
        Ok(())
    }

    /// Whether clients can read blobs from where they are stored, with
    /// [`direct_url`](Self::direct_url).
    #[must_use]
    pub fn has_direct_urls(&self) -> bool {
        self.blobs.direct().is_some()
    }

    /// Checks that such URLs open what they are signed for, and nothing else. To be called before
    /// the first one is made.
    ///
    /// # Errors
    ///
    /// One of the two does not hold, or it could not be found out.
    pub async fn check_direct_urls(&self) -> Result<(), StoreError> {
        match self.blobs.direct() {
            Some(direct) => Ok(direct.check().await?),
            None => Ok(()),
        }
    }

    /// A URL for `GET` of this range of a blob, and of nothing else, for `life` from now; `None` if
    /// clients can read only through the server. The caller has planned with this blob, which is
    /// retained for longer than `life`. Sends nothing.
    #[must_use]
    pub fn direct_url(
        &self,
        xorb: XorbHash,
        incarnation: Incarnation,
        bytes: ByteRange,
        life: Duration,
    ) -> Option<String> {
        self.blobs.direct()?.sign(BlobKey::new(xorb, incarnation), bytes, life)
    }

    /// The number and the lengths of all visible xorbs.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn totals(&self) -> Result<Totals, StoreError> {
        Ok(self.index.totals().await?)
    }

    /// Forgets the layouts in memory if the generation of the index has changed: then a process,
    /// for example a GC command, has deleted, quarantined or replaced a xorb. `seen` is the result
    /// of the last call, and the result is the generation now. A server calls this every second.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn forget_hidden(&self, seen: Option<u64>) -> Result<u64, StoreError> {
        let generation = self.index.generation().await?;
        if seen != Some(generation) {
            self.forget_layouts();
        }
        // Also without a change of the generation, because a blob is deleted a little later than
        // the generation changes for its xorb.
        self.blobs.close_removed().await;
        Ok(generation)
    }
}

#[cfg(test)]
pub(crate) mod tests;
