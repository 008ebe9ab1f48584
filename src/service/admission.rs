//! Who may begin an upload: so many at once, of so many bytes together, and nobody more than its share while somebody
//! else has less and wants more.
//!
//! An upload cannot be taken back from who has it, so a share is enforced when one begins:
//!
//! * Alone, a tenant gets everything but the last eighth. That is for who comes next, who would otherwise wait until an
//!   upload ends, and one may take hours.
//! * Who is refused because all is taken, and has less than its share, is remembered for a while. Until then whoever has
//!   more than its share gets no more, and what ends goes to those who have less.
//!
//! A share is the limit by the number of those who have uploads or were refused one lately. Below eight slots there is no
//! last eighth.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::fair::Tenant;

/// How long a refused tenant is remembered: stock clients come back within 3, 9 and 27 seconds (spec 5.0).
const MEMORY: Duration = Duration::from_secs(30);

/// The part of everything that is kept for newcomers.
const RESERVE: u64 = 8;

/// What may be under way at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Uploads.
    pub(super) count: usize,
    /// Bytes of their bodies, as declared. One upload alone may be longer.
    pub(super) len: u64,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Everything is taken.
    Full,
    /// The tenant has its share.
    AboveShare,
}

/// The uploads that are under way, by tenant.
#[derive(Debug)]
pub(super) struct Admission {
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    total: Usage,
    tenants: HashMap<Tenant, Entry>,
    swept: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    count: u64,
    len: u64,
}

#[derive(Debug, Default)]
struct Entry {
    usage: Usage,
    /// Until when it is remembered that it was refused.
    wants_until: Option<Instant>,
}

/// An upload that may go on; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Admitted<'a> {
    admission: &'a Admission,
    tenant: Tenant,
    len: u64,
}

impl Admission {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, table: Mutex::default() }
    }

    /// Uploads that are under way.
    pub(super) fn count(&self) -> u64 {
        self.table().total.count
    }

    /// Lets an upload of so many bytes begin.
    pub(super) fn admit(&self, tenant: Tenant, len: u64) -> Result<Admitted<'_>, Refusal> {
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
        // A share if one more came.
        let is_modest = mine.is_within(limit.over(sharer_count + 1));
        let reserve = if limit.count < RESERVE { Usage::default() } else { limit.over(RESERVE) };
        let kept = limit.minus(reserve);

        let refusal = if !all.is_within(limit) {
            Some(if is_above && sharer_count > 1 { Refusal::AboveShare } else { Refusal::Full })
        } else if (is_above && is_contended) || !(is_modest || all.is_within(kept)) {
            Some(Refusal::AboveShare)
        } else {
            None
        };
        let entry = table.tenants.entry(tenant).or_default();
        match refusal {
            None => {
                entry.usage = mine;
                table.total = all;
                Ok(Admitted { admission: self, tenant, len })
            }
            Some(refusal) => {
                if refusal == Refusal::Full {
                    entry.wants_until = Some(now + MEMORY);
                }
                table.forget(tenant, now);
                Err(refusal)
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Forgets those whose time is over, now and then: a table of refused strangers must not grow.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now.duration_since(swept) > Duration::from_secs(1)) {
            self.tenants.retain(|_, entry| entry.is_there(now));
            self.swept = Some(now);
        }
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
    /// And one upload more.
    const fn with(self, len: u64) -> Self {
        Self { count: self.count + 1, len: self.len.saturating_add(len) }
    }

    const fn minus(self, other: Self) -> Self {
        Self { count: self.count.saturating_sub(other.count), len: self.len.saturating_sub(other.len) }
    }

    /// One of so many equal parts, and at least one upload.
    fn over(self, count: u64) -> Self {
        Self { count: (self.count / count).max(1), len: self.len / count }
    }

    /// One upload is always within: who has none gets one.
    const fn is_within(self, limit: Self) -> bool {
        self.count <= 1 || (self.count <= limit.count && self.len <= limit.len)
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let ended = Usage { count: 1, len: self.len };
        let mut table = self.admission.table();
        table.total = table.total.minus(ended);
        if let Some(entry) = table.tenants.get_mut(&self.tenant) {
            entry.usage = entry.usage.minus(ended);
        }
        table.forget(self.tenant, Instant::now());
    }
}

#[cfg(test)]
mod tests;
