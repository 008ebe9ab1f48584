//! Room for who asks for little: a crowd gets its turns at a pace while others ask as well.
//!
//! Turns in order are not enough where the machine has nothing left: who is served next still waits for a processor, and
//! behind work of the kernel that nobody interrupts. So a tenant of whom more wait than there are turns gets only so many in a
//! time, as long as somebody else has asked just now. Alone, it gets all.

use std::time::Duration;

use tokio::time::Instant;

use super::Tenant;

/// For how long somebody who has asked is there: longer than one that does nothing else needs between two requests.
const PRESENCE: Duration = Duration::from_millis(100);

/// Turns that were not given in time are made up for, up to this time: the runtime's timers are as coarse as a millisecond.
const MAX_ARREARS: Duration = Duration::from_millis(2);

/// For how long a line that is not due waits before somebody looks again.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// Who has asked last: as much as it takes to tell whether anybody else has.
#[derive(Debug, Default)]
pub(super) struct Presence {
    last: Option<(Tenant, Instant)>,
    /// The last one before that who is another one.
    before: Option<(Tenant, Instant)>,
}

impl Presence {
    /// Somebody asks. What the server does for nobody in particular takes nothing from anybody.
    pub(super) fn note(&mut self, tenant: Tenant, now: Instant) {
        if tenant == Tenant::SERVER {
            return;
        }
        if self.last.is_some_and(|(last, _)| last != tenant) {
            self.before = self.last;
        }
        self.last = Some((tenant, now));
    }

    /// Whether anybody but this one is there.
    pub(super) fn has_others(&self, tenant: Tenant, now: Instant) -> bool {
        let other = if self.last.is_some_and(|(last, _)| last != tenant) { self.last } else { self.before };
        other.is_some_and(|(_, asked)| now.duration_since(asked) < PRESENCE)
    }
}

/// When a line is due that is served at a pace.
#[derive(Debug, Default)]
pub(super) struct Due(Option<Instant>);

impl Due {
    pub(super) fn is_later(&self, now: Instant) -> bool {
        self.0.is_some_and(|due| due > now)
    }

    /// A turn was given: the next one is due so much later.
    pub(super) fn put_off(&mut self, now: Instant, pause: Duration) {
        let due = self.0.map_or(now, |due| due.max(now.checked_sub(MAX_ARREARS).unwrap_or(now)));
        self.0 = Some(due + pause);
    }

    /// Nobody else is there.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}
