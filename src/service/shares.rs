//! Resources that tenants share, and their portions. The rules are those of [`FairGate`] and of
//! `admission`.

use std::sync::Arc;
use std::time::Duration;

use super::admission::{Admission, Limits as AdmissionLimits};
use super::error::StoreError;
use super::upload::shard::SPOOL_LEN;
use super::{Budget, Cas};
use crate::runtime::fair::{FairGate, Limits, Paused, Permit, Tenant};

/// How long a request waits for a permit: longer than any queue that moves. Stock clients time out
/// after ten times as long (spec 5.0).
const PATIENCE: Duration = Duration::from_secs(30);

/// Requests of one tenant that wait for one gate, at most: about a second of work where each takes
/// milliseconds.
const WAITING_COUNT: usize = 256;

/// Index queries at once: twice the read connections, so that one response is made while another
/// one is read.
const LOOKUP_COUNT: u32 = 8;

/// Those of one tenant. The plan of a file of 100 000 terms takes a tenth of a second. A tenant
/// with many such plans leaves some permits to short queries.
const LOOKUP_COUNT_PER_TENANT: u32 = 6;

/// Pacing of reads while tenants compete. In this time each read permit is granted once to a tenant
/// with more waiting requests than there are permits. A permit is for up to 256 KiB of a response
/// or 64 KiB of an upload. Without the pacing, one flooding tenant takes all cores, and other
/// tenants' p99 rises several times. Half of the period gives much of that back; two or four times
/// the period gains little. See `cargo bench --bench overload`.
const READ_PERIOD: Duration = Duration::from_millis(2);

/// Uploads under way, itself included, up to which received data is read without a permit. So few
/// reads delay other work little, and a permit for each read adds to the cost of an upload.
const UPLOADS_WITHOUT_PERMITS: u64 = 8;

/// The shares that settings decide.
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

/// Requests without a token: half for one address, so that a health probe is served beside any
/// other client.
pub(super) fn opens() -> FairGate {
    FairGate::new(Limits { capacity: 8, per_tenant: 4, waiting_count: 64, patience: PATIENCE })
}

/// A walk takes a second or two, so one tenant may not have all of them.
pub(super) fn walks(count: u32) -> FairGate {
    FairGate::new(Limits { capacity: count, per_tenant: count / 2, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

/// As many shard bodies as uploads, since each may have a file, too.
pub(super) fn spools(budget: Budget) -> Arc<Admission> {
    Admission::new(AdmissionLimits { count: budget.upload_count, len: SPOOL_LEN })
}

/// Steps of registrations that are written at once. The index has one writer, so more would queue
/// there, without fairness. Unit tests have no limit: they decide the order themselves.
const WRITE_STEP_COUNT: u32 = if cfg!(test) { 64 } else { 1 };

/// Registrations in steps that are under way at once, and those of one tenant.
const LONG_REGISTRATION_COUNT: (u32, u32) = if cfg!(test) { (64, 64) } else { (8, 2) };

pub(super) fn write_steps() -> FairGate {
    FairGate::unbounded(WRITE_STEP_COUNT)
}

/// Registrations in steps. They alternate step by step, so more of them at once only make each
/// slower.
pub(super) fn long_registrations() -> FairGate {
    let (capacity, per_tenant) = LONG_REGISTRATION_COUNT;
    FairGate::new(Limits { capacity, per_tenant, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

/// Memory is held while a shard is registered, which may take seconds: a quarter is for other
/// tenants.
pub(super) fn shard_budget(kib: u32) -> FairGate {
    FairGate::new(Limits { capacity: kib, per_tenant: kib - kib / 4, waiting_count: WAITING_COUNT, patience: PATIENCE })
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Cas {
    /// The same store with these shares. To be called before it is cloned: transfers under way are
    /// not counted.
    #[must_use]
    pub fn sharing(mut self, shares: Shares, budget: Budget) -> Self {
        let parts = self.parts_mut();
        (parts.admission, parts.spools) = (shares.admission(budget), spools(budget));
        (parts.publishes, parts.reads) = (shares.publishes(), shares.reads());
        self
    }

    /// A permit to open a xorb and to read, decode and send a piece of it.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn read_permit(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.reads.enter(tenant, 1).await?)
    }

    /// A permit for the next piece of a response that has begun.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn next_read_permit(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.reads.acquire_next(tenant, 1).await?)
    }

    /// A permit for one read of received data of an upload. Uploads and responses share these
    /// permits, since the same threads do both. `None` where there are too few uploads to slow
    /// others down.
    #[must_use]
    pub fn receive_permit(&self, tenant: Tenant) -> Option<Paused> {
        (self.admission.count() > UPLOADS_WITHOUT_PERMITS).then(|| self.reads.deferred(tenant, 1))
    }

    /// Pieces of responses, and reads of uploads, that wait for a permit.
    #[must_use]
    pub fn reads_waiting(&self) -> usize {
        self.reads.load().1
    }

    /// A permit for a request without a token, which counts for its address.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn open_permit(&self, address: Tenant) -> Result<Permit, StoreError> {
        Ok(self.opens.enter(address, 1).await?)
    }

    /// A permit to walk all of a file, and to make the response.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn walk_permit(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.walks.enter(tenant, 1).await?)
    }

    /// A permit to query the index and to make the response.
    ///
    /// # Errors
    ///
    /// There was none in time.
    pub async fn lookup_permit(&self, tenant: Tenant) -> Result<Permit, StoreError> {
        Ok(self.lookups.enter(tenant, 1).await?)
    }
}
