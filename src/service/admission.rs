//! Admission of transfers: limits the number and the bytes of concurrent transfers, and divides
//! both between tenants. A *transfer* is an upload, an incoming shard or a long response. It needs
//! its own limits because the client, and not the server, decides how long it lasts.
//!
//! The *limit* is a number of transfers and a number of bytes. The *share* of a tenant is the limit
//! divided by the number of present tenants: those with transfers or with a recent refusal.
//!
//! * A tenant that is alone may use seven eighths of the limit. The last eighth is reserved for
//!   tenants that arrive. Without the reserve, a new tenant would wait until a transfer ends, which
//!   may take hours. If the limit is below eight transfers, there is no reserve.
//! * If the limit is reached, a tenant within its share gets a slot nevertheless: the slowest
//!   transfers of tenants above their share are cut. A transfer that will end soon at its rate is
//!   not cut, unless it was to end soon and did not.
//! * If cutting such transfers is not enough, none is cut and the new transfer is refused. The
//!   refusal is remembered for a while. Meanwhile tenants above their share get no more slots, so
//!   that freed slots go to the tenant that was refused.
//! * If the limit is reached, a tenant above its share is refused. This refusal is not remembered.
//!
//! Slots are held in memory only. A transfer that is cut ends with an error, and its client
//! retries.

mod transfer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub use self::transfer::Transfer;
use crate::runtime::fair::Tenant;

/// How long a refusal is remembered. Stock clients retry within 3, 9 and 27 seconds (spec 5.0), so
/// the next retry comes within this time.
const MEMORY: Duration = Duration::from_secs(30);

/// The reserve for tenants that arrive is the limit divided by this number.
const RESERVE: u64 = 8;

/// The limits of concurrent transfers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum number of transfers.
    pub(super) count: usize,
    /// Maximum sum of the bytes that the transfers have declared. A transfer that is the only one
    /// may have more.
    pub(super) len: u64,
}

/// Why a transfer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The limit is reached, and cutting transfers of other tenants is not enough.
    Full,
    /// The tenant has its share, and other tenants need the rest.
    AboveShare,
}

/// The transfers that are under way, by tenant.
#[derive(Debug)]
pub(super) struct Admission {
    limits: Limits,
    table: Mutex<Table>,
}

/// All admitted transfers and all present tenants.
#[derive(Debug, Default)]
struct Table {
    /// The sum over all transfers.
    total: Usage,
    tenants: HashMap<Tenant, Entry>,
    /// Each transfer by its number.
    transfers: HashMap<u64, Held>,
    /// The number of the last admitted transfer.
    number: u64,
    /// When absent tenants were last removed from `tenants`.
    swept: Option<Instant>,
}

/// An admitted transfer, in the table.
#[derive(Debug)]
struct Held {
    tenant: Tenant,
    /// The bytes that the transfer counts for: the declared length, perhaps lowered since.
    len: u64,
    transfer: Arc<Transfer>,
}

/// A number of transfers and their bytes: what a tenant uses, or a limit.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    count: u64,
    len: u64,
}

/// A tenant with transfers or with a recent refusal.
#[derive(Debug, Default)]
struct Entry {
    usage: Usage,
    /// Until when the last refusal of this tenant is remembered.
    wants_until: Option<Instant>,
}

/// The slot of an admitted transfer. Dropping it frees the slot.
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

    /// The number of transfers that are under way.
    pub(super) fn count(&self) -> u64 {
        self.table().total.count
    }

    /// The bytes that the transfers under way count for.
    pub(super) fn len(&self) -> u64 {
        self.table().total.len
    }

    /// Admits a transfer of `len` bytes, if the rules of this module permit it. May cut slow
    /// transfers of other tenants.
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
        // Whether this transfer would bring the tenant above its share.
        let is_above = !mine.is_within(share);
        // Whether a recently refused tenant would be within its share with one more transfer. The
        // length of that transfer is not known any more, so it counts as one byte.
        let is_contended = others().any(|(_, entry)| entry.wants(now) && entry.usage.with(1).is_within(share));
        // Whether the tenant would be within its share even if one more tenant arrived. Then it may
        // use the reserve.
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
        // If it fits, either the limit was not reached, or enough transfers were cut above.
        let fits = table.total.with(len).is_within(limit);
        let entry = table.tenants.entry(tenant).or_default();
        match refusal {
            Some(Refusal::Full) if !fits => {
                entry.wants_until = Some(now + MEMORY);
                Err(Refusal::Full)
            }
            Some(Refusal::AboveShare) => {
                // This refusal is not remembered: the tenant has its share.
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
    /// Removes absent tenants, at most once a second. Without this, the table would grow with every
    /// tenant that was refused once.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now.duration_since(swept) > Duration::from_secs(1)) {
            self.tenants.retain(|_, entry| entry.is_there(now));
            self.swept = Some(now);
        }
    }

    /// The numbers of the transfers to be cut: the slowest transfers of other tenants above
    /// `share`, as many as bring `all` within `limit`. `all` includes the new transfer. Empty if
    /// all such transfers together are not enough.
    fn slowest(&self, tenant: Tenant, (mut all, limit): (Usage, Usage), share: Usage, now: Instant) -> Vec<u64> {
        let mut slow: Vec<_> = self
            .transfers
            .iter()
            .filter(|(_, held)| held.tenant != tenant)
            .filter_map(|(number, held)| Some((held.transfer.rate_if_slow(held.len, now)?, *number, held)))
            .collect();
        slow.sort_unstable_by_key(|(rate, number, _)| (*rate, *number));
        // `left`: the usage of each tenant once the chosen transfers are cut.
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

    /// Removes a transfer, so that it counts no more. `None` if it was removed before: a transfer
    /// is removed when it is cut, and again when its slot is dropped.
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

    /// Removes the tenant if it is absent.
    fn forget(&mut self, tenant: Tenant, now: Instant) {
        if self.tenants.get(&tenant).is_some_and(|entry| !entry.is_there(now)) {
            self.tenants.remove(&tenant);
        }
    }
}

impl Entry {
    /// Whether a refusal of this tenant is remembered. Then its client will probably retry soon.
    fn wants(&self, now: Instant) -> bool {
        self.wants_until.is_some_and(|until| until > now)
    }

    /// Whether the tenant is present: it has transfers, or a remembered refusal.
    fn is_there(&self, now: Instant) -> bool {
        self.usage.count > 0 || self.wants(now)
    }
}

impl Usage {
    /// The usage with one more transfer of this length.
    const fn with(self, len: u64) -> Self {
        Self { count: self.count + 1, len: self.len.saturating_add(len) }
    }

    const fn minus(self, other: Self) -> Self {
        Self { count: self.count.saturating_sub(other.count), len: self.len.saturating_sub(other.len) }
    }

    /// One of `count` equal parts of this limit, but at least one transfer.
    fn over(self, count: u64) -> Self {
        Self { count: (self.count / count).max(1), len: self.len / count }
    }

    /// Whether the usage is above this limit. Unlike in [`is_within`](Self::is_within), a single
    /// transfer may be above.
    const fn exceeds(self, limit: Self) -> bool {
        self.count > limit.count || self.len > limit.len
    }

    /// Whether the usage is within this limit. A single transfer always is, whatever its length, so
    /// that a long transfer can be admitted at all.
    const fn is_within(self, limit: Self) -> bool {
        self.count <= 1 || (self.count <= limit.count && self.len <= limit.len)
    }
}

impl Admitted {
    /// The progress of the transfer.
    pub(super) const fn transfer(&self) -> &Arc<Transfer> {
        &self.transfer
    }

    /// The bytes that the transfer counts for; 0 if it was cut.
    pub(super) fn declared_len(&self) -> u64 {
        self.admission.table().transfers.get(&self.number).map_or(0, |held| held.len)
    }

    /// Lowers the bytes that the transfer counts for to `len`. Has no effect if `len` is greater.
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
