//! One admitted transfer: its progress, and whether it must end in favour of another tenant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Age from which the rate of a transfer is meaningful.
const MIN_AGE: Duration = Duration::from_secs(5);

/// A transfer that ends within so many seconds at its rate is not cut.
const SOON_SECS: u64 = 10;

/// The progress of one transfer, shared by its mover and by the admission table.
#[derive(Debug, Default)]
pub struct Transfer {
    /// When the client's part began; `None` while the server has work to do.
    begun: Mutex<Option<Instant>>,
    moved_len: AtomicU64,
    cut: CancellationToken,
}

impl Transfer {
    /// The client's part begins.
    pub fn begin(&self) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// The client's part is over: the transfer is not cut any more.
    pub fn end(&self) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The client has sent or received so many bytes more.
    pub fn moved(&self, len: u64) {
        self.moved_len.fetch_add(len, Ordering::Relaxed);
    }

    /// Ready when the transfer must end because other tenants wait and it is the slowest.
    pub fn cut_off(&self) -> WaitForCancellationFutureOwned {
        self.cut.clone().cancelled_owned()
    }

    pub(super) fn cut(&self) {
        self.cut.cancel();
    }

    /// Bytes per second since the beginning, where a transfer of `len` bytes in all may be cut.
    pub(super) fn rate_if_slow(&self, len: u64, now: Instant) -> Option<u64> {
        let begun = (*self.begun.lock().unwrap_or_else(PoisonError::into_inner))?;
        let (age, moved_len) = (now.duration_since(begun), self.moved_len.load(Ordering::Relaxed));
        let rate = moved_len / age.as_secs().max(1);
        let is_slow = age >= MIN_AGE && len.saturating_sub(moved_len) > rate.saturating_mul(SOON_SECS);
        is_slow.then_some(rate)
    }
}
