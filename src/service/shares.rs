//! What is shared out between tenants, and in which portions. The rules are those of [`FairGate`] and of `admission`.

use std::sync::Arc;
use std::time::Duration;

use super::admission::{Admission, Limits as AdmissionLimits};
use super::error::StoreError;
use super::upload::shard::SPOOL_LEN;
use super::{Budget, Cas};
use crate::runtime::fair::{FairGate, Limits, Paused, Permit, Tenant};

/// How long a request waits for its turn: longer than any queue that moves, and a tenth of the silence after which stock
/// clients give up (spec 5.0).
const PATIENCE: Duration = Duration::from_secs(30);

/// Requests of one tenant that wait for one thing, at most. With turns of milliseconds that is about a second; who sends
/// more does not want answers any faster.
const WAITING_COUNT: usize = 256;

/// Questions to the index that are answered at once: twice the connections that read it, so that one is planned while
/// another one is read.
const LOOKUP_COUNT: u32 = 8;

/// Those of one tenant: the plan of a file of 100 000 terms takes a tenth of a second, and whoever asks for many of those leaves
/// some turns to who asks for little.
const LOOKUP_COUNT_PER_TENANT: u32 = 6;

/// Time in which each of the turns to read goes once to a tenant of whom more wait than there are turns, while others ask as
/// well: on two cores 2000 in a second, each for up to 256 KiB of an answer or 64 KiB of an upload. Without, a tenant that floods has
/// both cores, and p99 of another one's reads of 1 MiB was 8.7 and 10.8 ms beside it (`cargo bench --bench overload`); so it was 1.8
/// to 2.1 ms, of 1.0 alone, and the flood got half of the uploads. With half of the period it was 4.1 to 4.5 ms, with twice and four
/// times 1.4 to 1.5.
const READ_PERIOD: Duration = Duration::from_millis(2);

/// Uploads under way, itself included, up to which what arrives of one is read at once. So many reads of 64 KiB are a tenth of a
/// millisecond or two, and of half a MiB a whole one, but then seldom; a turn for each is a twentieth of what it costs to take an
/// upload.
const UPLOADS_WITHOUT_TURNS: u64 = 8;

/// What tenants share, as far as settings decide.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Bytes of uploads that may be under way at once, as declared.
    pub upload_len: u64,
    /// Pieces of xorbs that may be read, decoded and sent at once.
    pub read_count: usize,
    /// Blobs that may be made durable at once.
    pub publish_count: usize,
}

impl Default for Shares {
    fn default() -> Self {
        Self { upload_len: u64::MAX, read_count: 4, publish_count: 16 }
    }
}

impl Shares {
    pub(super) fn admission(&self, budget: Budget) -> Arc<Admission> {
        Admission::new(AdmissionLimits { count: budget.upload_count, len: self.upload_len })
    }

    pub(super) fn publishes(&self) -> FairGate {
        FairGate::unbounded(number(self.publish_count))
    }

    pub(super) fn reads(&self) -> FairGate {
        let capacity = number(self.read_count);
        let limits = Limits { capacity, per_tenant: capacity, waiting_count: WAITING_COUNT, patience: PATIENCE };
        FairGate::pacing(limits, READ_PERIOD)
    }
}

pub(super) fn lookups() -> FairGate {
    let (capacity, per_tenant) = (LOOKUP_COUNT, LOOKUP_COUNT_PER_TENANT);
    FairGate::new(Limits { capacity, per_tenant, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

/// What is asked without a token: half for one address, so that a health check gets its turn beside any other client.
pub(super) fn opens() -> FairGate {
    FairGate::new(Limits { capacity: 8, per_tenant: 4, waiting_count: 64, patience: PATIENCE })
}

/// Walks take a second or two, so one tenant may not have all of them.
pub(super) fn walks(count: u32) -> FairGate {
    FairGate::new(Limits { capacity: count, per_tenant: count / 2, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

/// As many bodies of shards as uploads: each may have a file, too.
pub(super) fn spools(budget: Budget) -> Arc<Admission> {
    Admission::new(AdmissionLimits { count: budget.upload_count, len: SPOOL_LEN })
}

/// Steps of registrations that are written at once. The index has one writer, so more would only wait there, out of turn.
/// In unit tests nobody waits: what runs there in which order is decided by the test.
const WRITE_STEP_COUNT: u32 = if cfg!(test) { 64 } else { 1 };

/// Registrations in steps that are under way at once, and those of one tenant.
const LONG_REGISTRATION_COUNT: (u32, u32) = if cfg!(test) { (64, 64) } else { (8, 2) };

pub(super) fn write_steps() -> FairGate {
    FairGate::unbounded(WRITE_STEP_COUNT)
}

/// Registrations in steps: each tenant's go on side by side with those of others, a step at a time, so more of them at once
/// only make each slower.
pub(super) fn long_registrations() -> FairGate {
    let (capacity, per_tenant) = LONG_REGISTRATION_COUNT;
    FairGate::new(Limits { capacity, per_tenant, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

/// Memory is held while a shard is registered, which may take seconds: a quarter is for others.
pub(super) fn shard_room(kib: u32) -> FairGate {
    FairGate::new(Limits { capacity: kib, per_tenant: kib - kib / 4, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Cas {
    /// The same store with these shares. To be called before it is cloned: what is under way does not count.
    #[must_use]
    pub fn sharing(mut self, shares: Shares, budget: Budget) -> Self {
        let parts = self.parts_mut();
        (parts.admission, parts.spools) = (shares.admission(budget), spools(budget));
        (parts.publishes, parts.reads) = (shares.publishes(), shares.reads());
        self
    }

    /// A turn to open a xorb and to read, decode and send a piece of it.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn read_turn(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.reads.enter(tenant, 1).await?)
    }

    /// A turn for the next piece of an answer that has begun.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn next_read_turn(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.reads.acquire_next(tenant, 1).await?)
    }

    /// A turn to read what arrives of an upload that is under way, to be got for each read: the same turns as for answers,
    /// since both are work of the same threads. `None` where there are too few uploads to be in anybody's way.
    #[must_use]
    pub fn arrival_turn(&self, tenant: Tenant) -> Option<Paused> {
        (self.admission.count() > UPLOADS_WITHOUT_TURNS).then(|| self.reads.deferred(tenant, 1))
    }

    /// Pieces of answers, and reads of uploads, that wait for their turn.
    #[must_use]
    pub fn reads_waiting(&self) -> usize {
        self.reads.load().1
    }

    /// A turn for a request that takes no token, which counts for its address.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn open_turn(&self, address: Tenant) -> Result<Permit, StoreError> {
        Ok(self.opens.enter(address, 1).await?)
    }

    /// A turn to go through all of a file, and to make the answer.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn walk_turn(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.walks.enter(tenant, 1).await?)
    }

    /// A turn to ask the index something and to make the answer.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn lookup_turn(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.lookups.enter(tenant, 1).await?)
    }
}
