//! The rules of the store: what an upload must prove, in which order it becomes visible, what a
//! reader gets.
//!
//! [`Cas`] is the handle for the layers above. Nothing here knows of HTTP, SQL or paths.

pub mod access;
mod admission;
pub mod archive;
mod asked_chunks;
mod claims;
mod compute;
mod contents;
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
mod listing;
mod possession;
mod quota;
pub mod reconstruct;
mod recover;
mod register;
mod registration_log;
mod remove;
mod response_budget;
mod scrub;
mod shares;
mod steps;
mod upload;
mod verify;
mod windows;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use self::admission::Admission;
pub use self::admission::Transfer;
use self::asked_chunks::AskedChunks;
pub use self::claims::Sha256File;
pub use self::download::{ChunkInfo, Form, ReadStream, StoredXorb};
pub use self::error::{ReadError, StoreError, StoreErrorKind, UploadError};
pub use self::file_bytes::RegisteredFile;
use self::file_locks::FileLocks;
pub use self::files::{BatchReconstruction, Detail, ReconstructError, Reconstruction};
pub use self::granted::GrantedUpload;
use self::granted::Waiting;
pub use self::listing::{FileEntry, ListError, MAX_PAGE_COUNT, Page, XorbEntry};
pub use self::quota::{Holding, MeteredRepo, OverQuota, Quotas, UsageError};
pub use self::recover::Recovered;
pub use self::register::{RegisterError, RegisteredShard};
pub use self::registration_log::{
    Agreed, AppendedRecord, Gap, Pruned, Pruning, RebuildError, Rebuilt, Tail, has_anything,
};
pub use self::remove::{RemoveError, RemovedFile};
pub use self::response_budget::ResponseBudget;
use self::response_budget::ResponseBudgets;
pub use self::scrub::ScrubBudget;
pub use self::shares::Shares;
pub use self::upload::shard::ReceivedShard;
pub use self::upload::{BodyError, Upload, Uploaded};
use self::upload::{PublishLocks, shard};
pub use self::verify::Damage;
pub use self::windows::WindowsError;
use crate::blob::BlobStore;
use crate::blob::records::RecordStore;
use crate::format::XorbHash;
use crate::index::Index;
pub use crate::index::{HealthSums, Limits, Quantity, Totals, Usage};
use crate::runtime::blocking::Pool;
use crate::runtime::clock::Clock;
use crate::runtime::fair::FairGate;
use crate::runtime::metrics::Metrics;
use crate::runtime::task::TaskGroup;

/// How long a client is told to wait when there is no slot for its upload. Stock clients wait
/// longer by themselves.
const OVERLOADED_RETRY_AFTER: Duration = Duration::from_secs(2);

/// The store. A clone is one reference count, and the same store: every request makes some.
#[derive(Clone, Debug)]
pub struct Cas {
    parts: Arc<Parts>,
}

impl Deref for Cas {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

/// The parts of a store; only [`Cas`] can use them.
#[derive(Clone, Debug)]
pub struct Parts {
    blobs: Arc<dyn BlobStore>,
    /// The registration log.
    records: Arc<dyn RecordStore>,
    /// Keeps records in the order of their changes.
    file_locks: FileLocks,
    index: Arc<dyn Index>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    verify_pool: Pool,
    /// Long computations for responses: not queued behind uploads, each of which holds a thread for
    /// milliseconds.
    computing: Pool,
    admission: Arc<Admission>,
    /// Blobs that may be made durable at once.
    publishes: FairGate,
    /// Pieces of xorbs that may be read and sent at once.
    reads: FairGate,
    /// Index queries that may run at once.
    lookups: FairGate,
    /// Requests without a token that may be served at once.
    opens: FairGate,
    /// Incoming bodies of shards.
    spools: Arc<Admission>,
    /// KiB of shards that may be in memory.
    shard_budget: FairGate,
    /// The same for small ones.
    small_shard_budget: FairGate,
    /// Registrations that are written in steps at once.
    long_registrations: FairGate,
    /// Steps of them: one at a time, so that other writers wait for one.
    write_steps: FairGate,
    /// Budgets of long responses.
    budgets: ResponseBudgets,
    /// The chunks that dedup knows.
    asked_chunks: Arc<AskedChunks>,
    /// Files whose chunks may be walked at once.
    walks: FairGate,
    /// Wakes the tasks that verify claims.
    unsettled: Arc<claims::Unsettled>,
    /// The quotas of repositories.
    quotas: Arc<Quotas>,
    /// Publishing runs here, so that it completes even when the client disconnects.
    publishing: TaskGroup,
    /// Prevents two uploads of one xorb from being published at once.
    publish_locks: PublishLocks,
    /// Uploads by grant that were not committed yet.
    waiting: Arc<Waiting>,
    headroom: Arc<headroom::Headroom>,
    xorbs: Cache<XorbHash, Arc<StoredXorb>>,
    /// The epoch of the layouts in it.
    epoch: heal::Epoch,
    /// Xorbs that failed a read.
    suspects: Arc<scrub::Suspects>,
}

/// How much of the machine the store may use.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Uploads that may be under way at once.
    pub upload_count: usize,
    /// Threads that verify and decode.
    pub verify_worker_count: usize,
    /// Bytes of layouts to cache in memory.
    pub layout_cache_len: u64,
}

impl Cas {
    /// A store over these parts.
    #[must_use]
    pub fn new(
        blobs: Arc<dyn BlobStore>,
        records: Arc<dyn RecordStore>,
        index: Arc<dyn Index>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        budget: Budget,
    ) -> Self {
        let shares = Shares::default();
        let parts = Parts {
            blobs,
            records,
            file_locks: FileLocks::default(),
            index,
            clock,
            metrics,
            verify_pool: Pool::new(budget.verify_worker_count),
            computing: Pool::new(compute::thread_count(budget.verify_worker_count)),
            admission: shares.admission(budget),
            publishes: shares.publishes(),
            reads: shares.reads(),
            lookups: shares::lookups(),
            opens: shares::opens(),
            spools: shares::spools(budget),
            shard_budget: shares::shard_budget(shard::SHARD_BUDGET_KIB),
            small_shard_budget: shares::shard_budget(shard::SMALL_SHARD_BUDGET_KIB),
            long_registrations: shares::long_registrations(),
            write_steps: shares::write_steps(),
            budgets: ResponseBudgets::default(),
            asked_chunks: Arc::default(),
            walks: shares::walks(windows::WALK_COUNT),
            unsettled: Arc::new(claims::Unsettled::new(claims::LARGE_LEN)),
            quotas: Arc::default(),
            publishing: TaskGroup::new(),
            publish_locks: PublishLocks::default(),
            waiting: Arc::new(Waiting::new(budget)),
            headroom: Arc::default(),
            xorbs: Cache::builder()
                .weigher(|_, xorb: &Arc<StoredXorb>| xorb.weight())
                .max_capacity(budget.layout_cache_len)
                .build(),
            epoch: heal::Epoch::default(),
            suspects: Arc::default(),
        };
        Self { parts: Arc::new(parts) }
    }

    /// Its parts, to be changed before it is cloned: earlier clones stay unchanged.
    fn parts_mut(&mut self) -> &mut Parts {
        Arc::make_mut(&mut self.parts)
    }

    /// The same store, limited to these quotas. Without them there is no limit.
    #[must_use]
    pub fn with_quotas(mut self, quotas: Quotas) -> Self {
        self.parts_mut().quotas = Arc::new(quotas);
        self
    }

    /// Checks that the store accepts data and that the index responds.
    ///
    /// # Errors
    ///
    /// One of them does not.
    pub async fn probe(&self) -> Result<(), StoreError> {
        self.blobs.probe().await?;
        self.index.totals().await?;
        Ok(())
    }

    /// Sums over all stored xorbs.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn totals(&self) -> Result<Totals, StoreError> {
        Ok(self.index.totals().await?)
    }

    /// Forgets the layouts in memory if another process has hidden a xorb since the last call,
    /// which returned `seen`. To be called regularly.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn forget_hidden(&self, seen: Option<u64>) -> Result<u64, StoreError> {
        let generation = self.index.generation().await?;
        if seen != Some(generation) {
            self.forget_layouts();
        }
        // Always, since a blob is removed a little later than its xorb.
        self.blobs.close_removed().await;
        Ok(generation)
    }

    /// Waits until every verified upload is published or has failed, and discards uncommitted ones.
    pub async fn finish(&self) {
        self.publishing.join().await;
        self.drop_waiting().await;
    }
}

#[cfg(test)]
pub(crate) mod tests;
