//! Pacing: while other tenants are active, a tenant with a burst gets permits at a limited rate.
//!
//! Round-robin is not enough on a saturated machine: a request with a permit still waits for a CPU,
//! and for kernel work that cannot be preempted. A *burst* is at least as many
//! waiting requests of one tenant as the gate has units. A tenant that is alone gets all units.

use std::time::Duration;

use tokio::time::Instant;

use super::Tenant;

/// How long a tenant counts as active after a request. This is longer than the pause of a
/// sequential client between two requests.
const ACTIVE_WINDOW: Duration = Duration::from_millis(100);

/// If a permit is granted late by at most this time, the next ones are not delayed. Permits are
/// often late, because the runtime's timers have a resolution of a millisecond.
const MAX_CREDIT: Duration = Duration::from_millis(2);

/// The time after which queues that are not due are checked again.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The last two tenants with a request. They are enough to tell whether a tenant other than a given
/// one is active.
#[derive(Debug, Default)]
pub(super) struct Presence {
    last: Option<(Tenant, Instant)>,
    /// The last request of a tenant other than the one in `last`.
    before: Option<(Tenant, Instant)>,
}

impl Presence {
    /// Records a request of a tenant. The server's own work does not make it active.
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
    /// Whether the next request is not due yet.
    pub(super) fn is_later(&self, now: Instant) -> bool {
        self.0.is_some_and(|due| due > now)
    }

    /// To be called when a permit is granted. The next request is due after `pause`.
    pub(super) fn hold_back(&mut self, now: Instant, pause: Duration) {
        let due = self.0.map_or(now, |due| due.max(now.checked_sub(MAX_CREDIT).unwrap_or(now)));
        self.0 = Some(due + pause);
    }

    /// To be called when no other tenant is active. The next request is due at once.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}
