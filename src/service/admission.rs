//! Admission of transfers: bounds their number and their bytes, and divides both between tenants.
//! Uploads, incoming shards and long responses are such transfers: their clients decide how long
//! they last.
//!
//! * Alone, a tenant gets everything but the last eighth. The reserve is for newcomers, which would
//!   otherwise wait until a transfer ends, and one may take hours.
//! * When everything is taken, a tenant below its share replaces the slowest transfers of tenants
//!   above theirs. Transfers that will end soon at their rate are not cut.
//! * Where no transfer can be cut, the refused tenant is remembered for a while. Until then a
//!   tenant above its share gets no more, and freed slots go to tenants below theirs.
//!
//! A share is the limit divided by the number of tenants with transfers or a recent refusal. Below
//! eight slots there is no reserve.

mod transfer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub use self::transfer::Transfer;
use crate::runtime::fair::Tenant;

/// How long a refused tenant is remembered: stock clients try again within 3, 9 and 27 seconds
/// (spec 5.0).
const MEMORY: Duration = Duration::from_secs(30);

/// The part of the limit that is reserved for newcomers, as a divisor.
const RESERVE: u64 = 8;

/// The limits of concurrent transfers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Transfers.
    pub(super) count: usize,
    /// Bytes of all of them, as declared. One transfer alone may be longer.
    pub(super) len: u64,
}

/// Why a transfer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Everything is taken.
    Full,
    /// The tenant has its share.
    AboveShare,
}

/// The transfers that are under way, by tenant.
#[derive(Debug)]
pub(super) struct Admission {
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    total: Usage,
    tenants: HashMap<Tenant, Entry>,
    transfers: HashMap<u64, Held>,
    /// Counts transfers.
    number: u64,
    swept: Option<Instant>,
}

/// The share of one transfer.
#[derive(Debug)]
struct Held {
    tenant: Tenant,
    len: u64,
    transfer: Arc<Transfer>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    count: u64,
    len: u64,
}

#[derive(Debug, Default)]
struct Entry {
    usage: Usage,
    /// Until when its refusal is remembered.
    wants_until: Option<Instant>,
}

/// A transfer that may proceed; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    admission: Arc<Admission>,
    number: u64,
    transfer: Arc<Transfer>,
}

impl Admission {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default() })
    }

    /// Transfers that are under way.
    pub(super) fn count(&self) -> u64 {
        self.table().total.count
    }

    /// Bytes of the transfers that are under way.
    pub(super) fn len(&self) -> u64 {
        self.table().total.len
    }

    /// Admits a transfer of so many bytes, in place of slow ones where the limit is reached.
    pub(super) fn admit(self: &Arc<Self>, tenant: Tenant, len: u64) -> Result<Admitted, Refusal> {
        let now = Instant::now();
        let mut table = self.table();
        table.sweep(now);
        let mine = table.tenants.get(&tenant).map_or(Usage::default(), |entry| entry.usage).with(len);
        let all = table.total.with(len);
        let limit = Usage { count: self.limits.count as u64, len: self.limits.len };
        let others = || table.tenants.iter().filter(|(other, entry)| **other != tenant && entry.is_there(now));
        let sharer_count = 1 + others().count() as u64;
        let share = limit.over(sharer_count);
        let is_above = !mine.is_within(share);
        let is_contended = others().any(|(_, entry)| entry.wants(now) && entry.usage.with(1).is_within(share));
        // The share if one more tenant arrived.
        let is_modest = mine.is_within(limit.over(sharer_count + 1));
        let reserve = if limit.count < RESERVE { Usage::default() } else { limit.over(RESERVE) };
        let unreserved = limit.minus(reserve);

        let refusal = if !all.is_within(limit) {
            Some(if is_above && sharer_count > 1 { Refusal::AboveShare } else { Refusal::Full })
        } else if (is_above && is_contended) || !(is_modest || all.is_within(unreserved)) {
            Some(Refusal::AboveShare)
        } else {
            None
        };
        if refusal == Some(Refusal::Full) {
            for number in table.slowest(tenant, (all, limit), share, now) {
                if let Some(held) = table.end(number, now) {
                    held.transfer.cut();
                }
            }
        }
        let fits = table.total.with(len).is_within(limit);
        let entry = table.tenants.entry(tenant).or_default();
        match refusal {
            Some(Refusal::Full) if !fits => {
                entry.wants_until = Some(now + MEMORY);
                Err(Refusal::Full)
            }
            Some(Refusal::AboveShare) => {
                table.forget(tenant, now);
                Err(Refusal::AboveShare)
            }
            None | Some(Refusal::Full) => {
                entry.usage = mine;
                table.total = table.total.with(len);
                table.number += 1;
                let (number, transfer) = (table.number, Arc::new(Transfer::default()));
                table.transfers.insert(number, Held { tenant, len, transfer: Arc::clone(&transfer) });
                Ok(Admitted { admission: Arc::clone(self), number, transfer })
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Removes expired entries from time to time: the table must not grow with refused tenants.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now.duration_since(swept) > Duration::from_secs(1)) {
            self.tenants.retain(|_, entry| entry.is_there(now));
            self.swept = Some(now);
        }
    }

    /// The slowest transfers of other tenants above this share: as many as bring the total within
    /// the limit. None where all of them together are not enough.
    fn slowest(&self, tenant: Tenant, (mut all, limit): (Usage, Usage), share: Usage, now: Instant) -> Vec<u64> {
        let mut slow: Vec<_> = self
            .transfers
            .iter()
            .filter(|(_, held)| held.tenant != tenant)
            .filter_map(|(number, held)| Some((held.transfer.rate_if_slow(held.len, now)?, *number, held)))
            .collect();
        slow.sort_unstable_by_key(|(rate, number, _)| (*rate, *number));
        let (mut left, mut chosen) = (HashMap::new(), Vec::new());
        for (_, number, held) in slow {
            let usage = || self.tenants.get(&held.tenant).map_or(Usage::default(), |entry| entry.usage);
            let has = left.entry(held.tenant).or_insert_with(usage);
            if all.is_within(limit) {
                break;
            }
            if has.exceeds(share) {
                let freed = Usage { count: 1, len: held.len };
                (*has, all) = (has.minus(freed), all.minus(freed));
                chosen.push(number);
            }
        }
        if all.is_within(limit) { chosen } else { Vec::new() }
    }

    /// Releases what a transfer holds, unless that was done.
    fn end(&mut self, number: u64, now: Instant) -> Option<Held> {
        let held = self.transfers.remove(&number)?;
        let ended = Usage { count: 1, len: held.len };
        self.total = self.total.minus(ended);
        if let Some(entry) = self.tenants.get_mut(&held.tenant) {
            entry.usage = entry.usage.minus(ended);
        }
        self.forget(held.tenant, now);
        Some(held)
    }

    fn forget(&mut self, tenant: Tenant, now: Instant) {
        if self.tenants.get(&tenant).is_some_and(|entry| !entry.is_there(now)) {
            self.tenants.remove(&tenant);
        }
    }
}

impl Entry {
    fn wants(&self, now: Instant) -> bool {
        self.wants_until.is_some_and(|until| until > now)
    }

    fn is_there(&self, now: Instant) -> bool {
        self.usage.count > 0 || self.wants(now)
    }
}

impl Usage {
    /// With one transfer more.
    const fn with(self, len: u64) -> Self {
        Self { count: self.count + 1, len: self.len.saturating_add(len) }
    }

    const fn minus(self, other: Self) -> Self {
        Self { count: self.count.saturating_sub(other.count), len: self.len.saturating_sub(other.len) }
    }

    /// One of so many equal parts, and at least one transfer.
    fn over(self, count: u64) -> Self {
        Self { count: (self.count / count).max(1), len: self.len / count }
    }

    /// Whether it is more than this, however few transfers those are.
    const fn exceeds(self, limit: Self) -> bool {
        self.count > limit.count || self.len > limit.len
    }

    /// One transfer is always within: a tenant without any gets one.
    const fn is_within(self, limit: Self) -> bool {
        self.count <= 1 || (self.count <= limit.count && self.len <= limit.len)
    }
}

impl Admitted {
    /// Its progress.
    pub(super) const fn transfer(&self) -> &Arc<Transfer> {
        &self.transfer
    }

    /// Bytes that it counts for; 0 where it was cut.
    pub(super) fn declared_len(&self) -> u64 {
        self.admission.table().transfers.get(&self.number).map_or(0, |held| held.len)
    }

    /// Lowers the bytes that it counts for, where these are fewer.
    pub(super) fn shrink(&self, len: u64) {
        let mut table = self.admission.table();
        let Some(held) = table.transfers.get_mut(&self.number) else { return };
        let (tenant, surplus) = (held.tenant, held.len.saturating_sub(len));
        held.len -= surplus;
        let freed = Usage { count: 0, len: surplus };
        table.total = table.total.minus(freed);
        if let Some(entry) = table.tenants.get_mut(&tenant) {
            entry.usage = entry.usage.minus(freed);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.table().end(self.number, Instant::now());
    }
}

#[cfg(test)]
mod tests;
