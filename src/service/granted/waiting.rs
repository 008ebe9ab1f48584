//! Uploads that wait for their commit. In memory only: a restart forgets them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::runtime::fair::Tenant;
use crate::service::access::Grant;
use crate::service::upload::Verified;

/// Uploads that wait for their commit, by the nonce of their grant.
///
/// A client commits as soon as its bytes were received, so few uploads wait at a time. Above a
/// limit the oldest upload of the tenant with the largest share is discarded, because its client
/// has most likely disconnected. So no tenant can make others upload again.
#[derive(Debug)]
pub(in crate::service) struct Waiting {
    limits: Limits,
    table: Mutex<Table>,
}

/// Limits of the waiting uploads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Number of uploads; each has an open file.
    pub(super) count: usize,
    /// Chunks of all of them; each takes 41 bytes.
    pub(super) chunk_count: u32,
}

#[derive(Debug, Default)]
struct Table {
    uploads: HashMap<[u8; 16], WaitingUpload>,
    received_count: u64,
    chunk_count: u32,
}

#[derive(Debug)]
struct WaitingUpload {
    /// Ascending in the order of receipt.
    number: u64,
    expires_unix_secs: u64,
    tenant: Tenant,
    verified: Verified,
}

impl Waiting {
    pub(super) fn with_limits(limits: Limits) -> Self {
        Self { limits, table: Mutex::default() }
    }

    /// Stores an upload until its commit. If an upload of the same grant already waits, it stays,
    /// and the new one is returned: both have the same bytes. Returns the uploads to be discarded.
    #[must_use]
    pub(super) fn insert(&self, grant: &Grant, verified: Verified) -> Vec<Verified> {
        let mut surplus = Vec::new();
        let mut table = self.table();
        if table.uploads.contains_key(&grant.nonce) {
            surplus.push(verified);
        } else {
            table.received_count += 1;
            table.chunk_count = table.chunk_count.saturating_add(verified.chunk_count());
            let (number, expires_unix_secs) = (table.received_count, grant.expires_unix_secs);
            let waiting = WaitingUpload { number, expires_unix_secs, tenant: grant.tenant(), verified };
            table.uploads.insert(grant.nonce, waiting);
        }
        while table.uploads.len() > self.limits.count.max(1)
            || (table.chunk_count > self.limits.chunk_count && table.uploads.len() > 1)
        {
            surplus.extend(table.most_dispensable(self.limits).and_then(|nonce| table.take(&nonce)));
        }
        surplus
    }

    pub(super) fn has(&self, grant: &Grant) -> bool {
        self.table().uploads.contains_key(&grant.nonce)
    }

    pub(super) fn take(&self, grant: &Grant) -> Option<Verified> {
        self.table().take(&grant.nonce)
    }

    /// Takes all uploads whose grants expire before this time.
    pub(super) fn take_expired(&self, unix_secs: u64) -> Vec<Verified> {
        let mut table = self.table();
        let uploads = mem::take(&mut table.uploads);
        let (expired, left) = uploads.into_iter().partition(|(_, waiting)| waiting.expires_unix_secs < unix_secs);
        table.uploads = left;
        let expired: HashMap<[u8; 16], WaitingUpload> = expired;
        let expired: Vec<_> = expired.into_values().map(|waiting| waiting.verified).collect();
        let chunk_count = expired.iter().map(Verified::chunk_count).fold(0, u32::saturating_add);
        table.chunk_count = table.chunk_count.saturating_sub(chunk_count);
        expired
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The oldest upload of the tenant that uses the largest share of the limits.
    fn most_dispensable(&self, limits: Limits) -> Option<[u8; 16]> {
        // One upload counts as much as its part of the chunks, so that both limits have one
        // measure.
        let each = u64::from(limits.chunk_count) / u64::try_from(limits.count.max(1)).unwrap_or(u64::MAX);
        let mut shares: HashMap<Tenant, u64> = HashMap::new();
        for waiting in self.uploads.values() {
            let share = shares.entry(waiting.tenant).or_default();
            *share = share.saturating_add(each).saturating_add(waiting.verified.chunk_count().into());
        }
        let share = |waiting: &WaitingUpload| shares.get(&waiting.tenant).copied().unwrap_or(0);
        let found = self.uploads.iter().min_by_key(|(_, waiting)| (Reverse(share(waiting)), waiting.number));
        found.map(|(nonce, _)| *nonce)
    }

    fn take(&mut self, nonce: &[u8; 16]) -> Option<Verified> {
        let waiting = self.uploads.remove(nonce)?;
        self.chunk_count = self.chunk_count.saturating_sub(waiting.verified.chunk_count());
        Some(waiting.verified)
    }
}
