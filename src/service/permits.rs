//! The resources that tenants share, and how much of each one tenant may have. [`FairGate`] and
//! `admission` implement the sharing.

use std::sync::Arc;
use std::time::Duration;

use super::admission::{Admission, Limits as AdmissionLimits};
use super::error::StoreError;
use super::response_budget::ResponseBudgets;
use super::upload::shard::{SHARD_BUDGET_KIB, SMALL_SHARD_BUDGET_KIB, SPOOL_LEN};
use super::windows::WALK_COUNT;
use super::{Server, Settings};
use crate::runtime::fair::{FairGate, Limits, Paused, Permit, Tenant};

/// How long a request waits for a permit: longer than the wait in any queue that still moves. Stock
/// clients time out after ten times as long (spec 5.0).
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum number of requests of one tenant that wait for one gate: about a second of work where
/// each takes milliseconds.
const WAITING_COUNT: usize = 256;

/// Index queries at once: twice the read connections, so that the response to one query is computed
/// while another query reads.
const LOOKUP_COUNT: u32 = 8;

/// Index queries of one tenant at once. The plan of a file of 100 000 terms takes a tenth of a
/// second. With this limit, a tenant with many such plans leaves some permits to the short queries
/// of others.
const LOOKUP_COUNT_PER_TENANT: u32 = 6;

/// Pacing of reads while tenants compete. While a tenant has more waiting requests than there are
/// permits, it gets each permit once in this time on average. A permit is for up to 256 KiB of a
/// response or 64 KiB of an upload. Without the pacing, one flooding tenant takes all cores, and
/// other tenants' p99 rises several times. With half of the period, the p99 is much higher again;
/// two or four times the period lowers it little further. See `cargo bench --bench overload`.
const READ_PERIOD: Duration = Duration::from_millis(2);

/// Commits whose directories are changed at once, and those of one tenant. Each loads at most 8 MiB
/// of directories, and one more, unless it has a permit for large ones. More at once are not
/// faster with one writer. With a bucket most of the time is the wait for its record.
const COMMIT_COUNT: (u32, u32) = (16, 12);

/// Commits with large directories at once, and those of one tenant: 96 MiB of directories, as much
/// again as rows, and their record.
const LARGE_COMMIT_COUNT: (u32, u32) = (2, 1);

/// Repositories that are created, renamed or deleted at once, and those of one tenant. Each waits
/// for other changes of its names, so it must not hold a permit that other requests need.
const REPO_CHANGE_COUNT: (u32, u32) = (8, 6);

/// Commits of one tenant that wait for a permit for large directories. They hold a permit for a
/// commit meanwhile, so that only a part of those may wait.
const LARGE_COMMIT_WAITING_COUNT: usize = 4;

/// Up to this number of uploads, received data is read without a permit. The reads of a few uploads
/// delay other work little, and a permit for each read would make every upload slower.
const UPLOADS_WITHOUT_PERMITS: u64 = 8;

/// The gates and admissions that bound the work of clients and share it between tenants.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Permits {
    /// Uploads under way.
    pub(super) admission: Arc<Admission>,
    /// Pieces of xorbs that may be read and sent at once.
    pub(super) reads: FairGate,
    /// Index queries that may run at once.
    pub(super) lookups: FairGate,
    /// Requests without a token that may be served at once.
    pub(super) opens: FairGate,
    /// Bodies of shards that are being received.
    pub(super) spools: Arc<Admission>,
    /// KiB of shards that may be in memory.
    pub(super) shard_budget: FairGate,
    /// KiB of small shards that may be in memory.
    pub(super) small_shard_budget: FairGate,
    /// Registrations that are written in steps at once.
    pub(super) long_registrations: FairGate,
    /// Steps of these registrations that are written at once: one, so that another writer waits for
    /// one step at most.
    pub(super) write_steps: FairGate,
    /// Budgets of long responses.
    pub(super) budgets: ResponseBudgets,
    /// Files whose chunks may be walked at once.
    pub(super) walks: FairGate,
    /// Commits whose directories may be changed at once.
    pub(super) commits: FairGate,
    /// Those with large directories.
    pub(super) large_commits: FairGate,
    /// Repositories that may be created, renamed or deleted at once.
    pub(super) repo_changes: FairGate,
}

impl Permits {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            admission: uploads(settings),
            reads: reads(settings),
            lookups: lookups(),
            opens: opens(),
            spools: spools(settings),
            shard_budget: shard_budget(SHARD_BUDGET_KIB),
            small_shard_budget: shard_budget(SMALL_SHARD_BUDGET_KIB),
            long_registrations: long_registrations(),
            write_steps: write_steps(),
            budgets: ResponseBudgets::default(),
            walks: walks(WALK_COUNT),
            commits: hub_gate(COMMIT_COUNT, WAITING_COUNT),
            large_commits: hub_gate(LARGE_COMMIT_COUNT, LARGE_COMMIT_WAITING_COUNT),
            repo_changes: hub_gate(REPO_CHANGE_COUNT, WAITING_COUNT),
        }
    }
}

fn uploads(settings: &Settings) -> Arc<Admission> {
    Admission::new(AdmissionLimits { count: settings.upload_count, len: settings.upload_len })
}

/// Blobs that may be made durable at once, of uploads and compaction.
pub(super) fn publishes(settings: &Settings) -> FairGate {
    FairGate::unbounded(number(settings.publish_count))
}

fn reads(settings: &Settings) -> FairGate {
    let capacity = number(settings.read_count);
    let limits = Limits { capacity, per_tenant: capacity, waiting_count: WAITING_COUNT, patience: PATIENCE };
    FairGate::pacing(limits, READ_PERIOD)
}

fn lookups() -> FairGate {
    let (capacity, per_tenant) = (LOOKUP_COUNT, LOOKUP_COUNT_PER_TENANT);
    FairGate::new(Limits { capacity, per_tenant, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

/// Requests without a token. One address may have half of the permits, so that a health probe is
/// served beside any other client.
fn opens() -> FairGate {
    FairGate::new(Limits { capacity: 8, per_tenant: 4, waiting_count: 64, patience: PATIENCE })
}

/// Walks through whole files. One takes a second or two, so one tenant may have only half of them.
fn walks(count: u32) -> FairGate {
    FairGate::new(Limits { capacity: count, per_tenant: count / 2, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

fn hub_gate((capacity, per_tenant): (u32, u32), waiting_count: usize) -> FairGate {
    FairGate::new(Limits { capacity, per_tenant, waiting_count, patience: PATIENCE })
}

/// As many bodies of shards as of uploads, because a body of either kind may have an open file.
fn spools(settings: &Settings) -> Arc<Admission> {
    Admission::new(AdmissionLimits { count: settings.upload_count, len: SPOOL_LEN })
}

/// Steps of registrations that are written at once: one, because the index has one writer, and its
/// queue is not fair between tenants. In unit tests, the limit is so high that the tests decide the
/// order themselves.
const WRITE_STEP_COUNT: u32 = if cfg!(test) { 64 } else { 1 };

/// Registrations in steps that are under way at once, and those of one tenant.
const LONG_REGISTRATION_COUNT: (u32, u32) = if cfg!(test) { (64, 64) } else { (8, 2) };

pub(super) fn write_steps() -> FairGate {
    FairGate::unbounded(WRITE_STEP_COUNT)
}

/// Registrations in steps. They alternate step by step, so that more of them at once only make each
/// of them slower.
fn long_registrations() -> FairGate {
    let (capacity, per_tenant) = LONG_REGISTRATION_COUNT;
    FairGate::new(Limits { capacity, per_tenant, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

/// Memory for shards. It is held while a shard is registered, which may take seconds, so a quarter
/// is left to other tenants.
fn shard_budget(kib: u32) -> FairGate {
    FairGate::new(Limits { capacity: kib, per_tenant: kib - kib / 4, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Server {
    /// A permit to open a xorb and to read, decode and send a piece of it.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn read_permit(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.permits.reads.enter(tenant, 1).await?)
    }

    /// A permit for the next piece of a response that has begun.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn next_read_permit(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.permits.reads.acquire_next(tenant, 1).await?)
    }

    /// A permit for one read of received data of an upload. Uploads and responses share these
    /// permits, since the same threads do both. `None` if there are too few uploads to slow other
    /// tenants down.
    #[must_use]
    pub fn receive_permit(&self, tenant: Tenant) -> Option<Paused> {
        (self.permits.admission.count() > UPLOADS_WITHOUT_PERMITS).then(|| self.permits.reads.deferred(tenant, 1))
    }

    /// Pieces of responses, and reads of uploads, that wait for a permit.
    #[must_use]
    pub fn reads_waiting(&self) -> usize {
        self.permits.reads.load().1
    }

    /// A permit for a request without a token. It counts for the client's address.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn open_permit(&self, address: Tenant) -> Result<Permit, StoreError> {
        Ok(self.permits.opens.enter(address, 1).await?)
    }

    /// A permit to walk through a whole file, and to compute the response.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn walk_permit(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.permits.walks.enter(tenant, 1).await?)
    }

    /// A permit to query the index and to compute the response.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn lookup_permit(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.permits.lookups.enter(tenant, 1).await?)
    }

    /// A permit to create, rename or delete a Hub repository.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn repo_change_permit(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.permits.repo_changes.enter(tenant, 1).await?)
    }
}
