//! One admitted transfer: its progress, and the signal that it must end in favour of another
//! tenant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A transfer is not cut before the server has waited this long for its client: an earlier rate
/// says little.
const MIN_AGE: Duration = Duration::from_secs(5);

/// A transfer that will end within this number of seconds at its rate is not cut, but only for as
/// many seconds: a client can send all but the last bytes fast, and these never.
const SOON_SECS: u64 = 10;

/// The progress of one transfer, shared by the code that moves its bytes and by the admission
/// table.
#[derive(Debug, Default)]
pub struct Transfer {
    /// Since when the progress depends on the client; `None` while the server has work to do. Only
    /// a transfer that has begun can be cut.
    begun: Mutex<Option<Instant>>,
    /// Bytes that the client has sent or received.
    moved_len: AtomicU64,
    /// When the transfer was spared because it would end soon, and what was moved until then.
    spared: Mutex<Option<(Instant, u64)>>,
    /// Cancelled when the transfer must end.
    cut: CancellationToken,
}

impl Transfer {
    /// Says that the client can send or receive bytes from now on. From now on the transfer may be
    /// cut if it is slow.
    pub fn begin(&self) {
        *self.spared.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Like [`begin`](Self::begin), for the next part of a transfer whose length counts for each
    /// part alone.
    pub fn begin_part(&self) {
        self.moved_len.store(0, Ordering::Relaxed);
        self.begin();
    }

    /// Says that the client has done its part. From now on the transfer is not cut.
    pub fn end(&self) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Counts bytes that the client has sent or received.
    pub fn moved(&self, len: u64) {
        self.moved_len.fetch_add(len, Ordering::Relaxed);
    }

    /// Completes when the transfer must end, because its slot was given to another tenant.
    pub fn cut_off(&self) -> WaitForCancellationFutureOwned {
        self.cut.clone().cancelled_owned()
    }

    /// Makes [`cut_off`](Self::cut_off) complete.
    pub(super) fn cut(&self) {
        self.cut.cancel();
    }

    /// The rate in bytes per second since [`begin`](Self::begin), if this transfer of `len` bytes
    /// may be cut. `None` if it has not begun, is too young, or will end soon. One that was to end
    /// soon and has not ended may be cut.
    pub(super) fn rate_if_slow(&self, len: u64, now: Instant) -> Option<u64> {
        let begun = (*self.begun.lock().unwrap_or_else(PoisonError::into_inner))?;
        let (age, moved_len) = (now.duration_since(begun), self.moved_len.load(Ordering::Relaxed));
        let rate = moved_len / age.as_secs().max(1);
        if age < MIN_AGE {
            return None;
        }
        if len.saturating_sub(moved_len) > rate.saturating_mul(SOON_SECS) {
            return Some(rate);
        }
        let mut spared = self.spared.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, before_len) = *spared.get_or_insert((now, moved_len));
        let spared_secs = now.duration_since(since).as_secs();
        if spared_secs <= SOON_SECS {
            return None;
        }
        // It should have ended. What counts now is what it has moved since then; nothing if another
        // part has begun at this moment.
        let rate = moved_len.saturating_sub(before_len) / spared_secs;
        if len.saturating_sub(moved_len) > rate.saturating_mul(SOON_SECS) {
            return Some(rate);
        }
        *spared = Some((now, moved_len));
        None
    }
}
