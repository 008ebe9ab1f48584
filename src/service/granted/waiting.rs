//! Uploads that wait for their commit.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::service::access::Grant;
use crate::service::upload::Verified;

/// Uploads that wait for their commit, by the nonce of their grant.
///
/// A client commits as soon as its bytes were taken, so few wait at a time. Where there are too many, the oldest goes:
/// that is one whose client has gone, unless as many others came within one round trip.
#[derive(Debug)]
pub(in crate::service) struct Waiting {
    limits: Limits,
    table: Mutex<Table>,
}

/// What may wait at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Uploads; each has a file open.
    pub(super) count: usize,
    /// Chunks of all of them; each takes 41 bytes.
    pub(super) chunk_count: u32,
}

#[derive(Debug, Default)]
struct Table {
    uploads: HashMap<[u8; 16], Arrival>,
    arrived: u64,
    chunk_count: u32,
}

#[derive(Debug)]
struct Arrival {
    /// Counts up.
    number: u64,
    expires_unix_secs: u64,
    verified: Verified,
}

impl Waiting {
    pub(super) fn with_limits(limits: Limits) -> Self {
        Self { limits, table: Mutex::default() }
    }

    /// Keeps an upload until its commit. What was there under the same grant stays: it is the same. Returns what there is
    /// no room for.
    #[must_use]
    pub(super) fn insert(&self, grant: &Grant, verified: Verified) -> Vec<Verified> {
        let mut surplus = Vec::new();
        let mut table = self.table();
        if table.uploads.contains_key(&grant.nonce) {
            surplus.push(verified);
        } else {
            table.arrived += 1;
            table.chunk_count = table.chunk_count.saturating_add(verified.chunk_count());
            let arrival = Arrival { number: table.arrived, expires_unix_secs: grant.expires_unix_secs, verified };
            table.uploads.insert(grant.nonce, arrival);
        }
        while table.uploads.len() > self.limits.count.max(1)
            || (table.chunk_count > self.limits.chunk_count && table.uploads.len() > 1)
        {
            surplus.extend(table.oldest().and_then(|nonce| table.take(&nonce)));
        }
        surplus
    }

    pub(super) fn has(&self, grant: &Grant) -> bool {
        self.table().uploads.contains_key(&grant.nonce)
    }

    pub(super) fn take(&self, grant: &Grant) -> Option<Verified> {
        self.table().take(&grant.nonce)
    }

    /// All whose grants end before this.
    pub(super) fn take_expired(&self, unix_secs: u64) -> Vec<Verified> {
        let mut table = self.table();
        let uploads = mem::take(&mut table.uploads);
        let (expired, left) = uploads.into_iter().partition(|(_, arrival)| arrival.expires_unix_secs < unix_secs);
        table.uploads = left;
        let expired: HashMap<[u8; 16], Arrival> = expired;
        let expired: Vec<_> = expired.into_values().map(|arrival| arrival.verified).collect();
        let chunk_count = expired.iter().map(Verified::chunk_count).fold(0, u32::saturating_add);
        table.chunk_count = table.chunk_count.saturating_sub(chunk_count);
        expired
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn oldest(&self) -> Option<[u8; 16]> {
        self.uploads.iter().min_by_key(|(_, arrival)| arrival.number).map(|(nonce, _)| *nonce)
    }

    fn take(&mut self, nonce: &[u8; 16]) -> Option<Verified> {
        let arrival = self.uploads.remove(nonce)?;
        self.chunk_count = self.chunk_count.saturating_sub(arrival.verified.chunk_count());
        Some(arrival.verified)
    }
}
