//! The only access to the time of day. The time of day can jump, also backwards. So other modules
//! measure durations with monotonic clocks.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment: whole milliseconds since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment `millis` milliseconds after 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Whole seconds since 1970-01-01 00:00 UTC.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0 / 1000
    }
}

/// A source of the current time.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the system clock")]
    fn now(&self) -> Timestamp {
        // A system clock before 1970 reads as 1970.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock for tests. It changes only when a test sets it.
#[derive(Debug, Default)]
pub struct ManualClock {
    millis: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self { millis: AtomicU64::new(now.0) }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.millis.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Moves the clock to this moment, which may be an earlier one.
    pub fn set(&self, now: Timestamp) {
        self.millis.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.millis.load(Ordering::SeqCst))
    }
}
