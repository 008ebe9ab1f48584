//! Pacing: a tenant with a burst gets its permits at a rate while other tenants are active.
//!
//! Round-robin is not enough on a saturated machine: the next request still waits for a CPU, and
//! behind kernel work that cannot be preempted. So a tenant with more waiting requests than units
//! gets only so many permits per time, as long as another tenant was active just now. Alone, it
//! gets all.

use std::time::Duration;

use tokio::time::Instant;

use super::Tenant;

/// How long a tenant counts as active after a request: longer than a sequential client needs
/// between two requests.
const ACTIVE_WINDOW: Duration = Duration::from_millis(100);

/// Permits that were not granted in time are made up for, up to this time: the runtime's timers
/// are as coarse as a millisecond.
const MAX_CREDIT: Duration = Duration::from_millis(2);

/// Interval of the re-check of queues that are not due.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The last two tenants with a request: enough to tell whether another tenant is active.
#[derive(Debug, Default)]
pub(super) struct Presence {
    last: Option<(Tenant, Instant)>,
    /// The last request of a tenant other than that of `last`.
    before: Option<(Tenant, Instant)>,
}

impl Presence {
    /// Records a request of a tenant. The server's own work does not count.
    pub(super) fn note(&mut self, tenant: Tenant, now: Instant) {
        if tenant == Tenant::SERVER {
            return;
        }
        if self.last.is_some_and(|(last, _)| last != tenant) {
            self.before = self.last;
        }
        self.last = Some((tenant, now));
    }

    /// Whether a tenant other than this one is active.
    pub(super) fn has_others(&self, tenant: Tenant, now: Instant) -> bool {
        let other = if self.last.is_some_and(|(last, _)| last != tenant) { self.last } else { self.before };
        other.is_some_and(|(_, asked)| now.duration_since(asked) < ACTIVE_WINDOW)
    }
}

/// When a paced queue may be served next.
#[derive(Debug, Default)]
pub(super) struct Due(Option<Instant>);

impl Due {
    pub(super) fn is_later(&self, now: Instant) -> bool {
        self.0.is_some_and(|due| due > now)
    }

    /// A permit was granted: the next one is due so much later.
    pub(super) fn put_off(&mut self, now: Instant, pause: Duration) {
        let due = self.0.map_or(now, |due| due.max(now.checked_sub(MAX_CREDIT).unwrap_or(now)));
        self.0 = Some(due + pause);
    }

    /// No other tenant is active.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}
