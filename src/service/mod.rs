//! The rules of the store: what an upload must prove, in which order it becomes visible, what a reader gets.
//!
//! [`Cas`] is the handle that everything above holds. Nothing here knows of HTTP, SQL or paths.

pub mod access;
mod admission;
mod answers;
pub mod archive;
mod asked_chunks;
mod claims;
mod compute;
mod contents;
mod download;
mod error;
mod examine;
mod file_bytes;
mod file_locks;
mod files;
pub mod fsck;
pub mod gc;
mod granted;
mod heal;
mod listing;
mod possession;
mod quota;
pub mod reconstruct;
mod recover;
mod register;
mod remove;
mod room;
mod scrub;
mod shard_records;
mod shares;
mod steps;
mod upload;
mod windows;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use self::admission::Admission;
pub use self::admission::Transfer;
pub use self::answers::AnswerRoom;
use self::answers::Answers;
use self::asked_chunks::AskedChunks;
pub use self::claims::Sha256File;
pub use self::download::{ChunkInfo, Form, ReadStream, StoredXorb};
pub use self::error::{ReadError, StoreError, StoreErrorKind, UploadError};
pub use self::examine::Damage;
pub use self::file_bytes::RegisteredFile;
use self::file_locks::FileLocks;
pub use self::files::{BatchReconstruction, Detail, ReconstructError, Reconstruction};
pub use self::granted::GrantedUpload;
use self::granted::Waiting;
pub use self::listing::{FileEntry, ListError, MAX_PAGE_COUNT, Page, XorbEntry};
pub use self::quota::{Holding, MeteredRepo, OverQuota, Quotas, UsageError};
pub use self::recover::Recovered;
pub use self::register::{RegisterError, RegisteredShard};
pub use self::remove::{RemoveError, RemovedFile};
pub use self::scrub::ScrubBudget;
pub use self::shard_records::{Agreed, Gap, Noted, Pruned, Pruning, RebuildError, Rebuilt, Tail, has_anything};
pub use self::shares::Shares;
pub use self::upload::shard::ReceivedShard;
pub use self::upload::{BodyError, Upload, Uploaded};
use self::upload::{PublishLocks, shard};
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

/// What a client is told to wait when there is no slot for its upload. Stock clients wait longer by themselves.
const OVERLOADED_RETRY_AFTER: Duration = Duration::from_secs(2);

/// The store. Cloning it is cheap, one count, and gives the same store: every request does it some times.
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

/// What a store is made of; only [`Cas`] can do something with it.
#[derive(Clone, Debug)]
pub struct Parts {
    blobs: Arc<dyn BlobStore>,
    /// What was registered and removed.
    records: Arc<dyn RecordStore>,
    /// What keeps records in the order of what they tell of.
    file_locks: FileLocks,
    index: Arc<dyn Index>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    verify_pool: Pool,
    /// Answers that take long to compute: not in line with uploads, of which each keeps its thread for milliseconds.
    computing: Pool,
    admission: Arc<Admission>,
    /// Blobs that may be made durable at once.
    publishes: FairGate,
    /// Pieces of xorbs that may be read and sent at once.
    reads: FairGate,
    /// Questions to the index that may be answered at once.
    lookups: FairGate,
    /// Requests without a token that may be answered at once.
    opens: FairGate,
    /// Bodies of shards that arrive.
    spools: Arc<Admission>,
    /// KiB of shards that may be in memory.
    shard_room: FairGate,
    /// The same for small ones.
    small_shard_room: FairGate,
    /// Registrations that are written in steps at once.
    long_registrations: FairGate,
    /// Steps of them: one at a time, so that other writers wait for one.
    write_steps: FairGate,
    /// Long answers that may be in memory.
    answers: Answers,
    /// Which chunks deduplication knows.
    asked_chunks: Arc<AskedChunks>,
    /// Files of which all chunks may be gone through at once.
    walks: FairGate,
    /// What wakes whoever verifies claims.
    unsettled: Arc<claims::Unsettled>,
    /// How much repositories may have.
    quotas: Arc<Quotas>,
    /// Publishing runs here, so that it ends even when the client has gone.
    publishing: TaskGroup,
    /// Against two uploads of one xorb being published at once.
    publish_locks: PublishLocks,
    /// Uploads by grant that were not committed yet.
    waiting: Arc<Waiting>,
    room: Arc<room::Room>,
    xorbs: Cache<XorbHash, Arc<StoredXorb>>,
    /// When what is in there was true.
    epoch: heal::Epoch,
    /// What reads have found fault with.
    suspects: Arc<scrub::Suspects>,
}

/// How much of the machine the store may use.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Uploads that may be under way at once.
    pub upload_count: usize,
    /// Threads that verify and decode.
    pub verify_worker_count: usize,
    /// Bytes of layouts to keep in memory.
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
            computing: Pool::new(compute::turn_count(budget.verify_worker_count)),
            admission: shares.admission(budget),
            publishes: shares.publishes(),
            reads: shares.reads(),
            lookups: shares::lookups(),
            opens: shares::opens(),
            spools: shares::spools(budget),
            shard_room: shares::shard_room(shard::SHARD_ROOM_KIB),
            small_shard_room: shares::shard_room(shard::SMALL_SHARD_ROOM_KIB),
            long_registrations: shares::long_registrations(),
            write_steps: shares::write_steps(),
            answers: Answers::default(),
            asked_chunks: Arc::default(),
            walks: shares::walks(windows::WALK_COUNT),
            unsettled: Arc::new(claims::Unsettled::new(claims::GIANT_LEN)),
            quotas: Arc::default(),
            publishing: TaskGroup::new(),
            publish_locks: PublishLocks::default(),
            waiting: Arc::new(Waiting::new(budget)),
            room: Arc::default(),
            xorbs: Cache::builder()
                .weigher(|_, xorb: &Arc<StoredXorb>| xorb.weight())
                .max_capacity(budget.layout_cache_len)
                .build(),
            epoch: heal::Epoch::default(),
            suspects: Arc::default(),
        };
        Self { parts: Arc::new(parts) }
    }

    /// Its parts, to be changed before it is cloned: clones from before keep what they have.
    fn parts_mut(&mut self) -> &mut Parts {
        Arc::make_mut(&mut self.parts)
    }

    /// The same store, which registers no more than these quotas allow. Without them there is no limit.
    #[must_use]
    pub fn with_quotas(mut self, quotas: Quotas) -> Self {
        self.parts_mut().quotas = Arc::new(quotas);
        self
    }

    /// Proves that the store takes data and that the index answers.
    ///
    /// # Errors
    ///
    /// One of them does not.
    pub async fn probe(&self) -> Result<(), StoreError> {
        self.blobs.probe().await?;
        self.index.totals().await?;
        Ok(())
    }

    /// Sums over everything that is stored.
    ///
    /// # Errors
    ///
    /// The index does not answer.
    pub async fn totals(&self) -> Result<Totals, StoreError> {
        Ok(self.index.totals().await?)
    }

    /// Forgets the layouts in memory where another process has made something invisible since it was looked at last;
    /// `seen` is what this said then. To be called every now and then.
    ///
    /// # Errors
    ///
    /// The index does not answer.
    pub async fn forget_hidden(&self, seen: Option<u64>) -> Result<u64, StoreError> {
        let generation = self.index.generation().await?;
        if seen != Some(generation) {
            self.forget_layouts();
        }
        // Always: a blob goes a little later than its xorb.
        self.blobs.close_removed().await;
        Ok(generation)
    }

    /// Waits until every upload that was verified is published or has failed, and forgets what was not committed.
    pub async fn finish(&self) {
        self.publishing.join().await;
        self.drop_waiting().await;
    }
}

#[cfg(test)]
pub(crate) mod tests;
