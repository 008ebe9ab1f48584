//! The time of the last progress of a transfer, to distinguish a slow transfer from a broken one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The time of the last progress.
#[derive(Debug)]
pub(super) struct Activity {
    begin: Instant,
    last_millis: AtomicU64,
}

impl Activity {
    /// Begins with a progress now.
    pub(super) fn new() -> Self {
        Self { begin: Instant::now(), last_millis: AtomicU64::new(0) }
    }

    /// Records a progress now.
    pub(super) fn touch(&self) {
        let millis = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    /// Waits until there was no progress for `limit`.
    pub(super) async fn silence(&self, limit: Duration) {
        loop {
            let last = Duration::from_millis(self.last_millis.load(Ordering::Relaxed));
            match limit.checked_sub(self.begin.elapsed().saturating_sub(last)) {
                None | Some(Duration::ZERO) => return,
                Some(rest) => sleep(rest).await,
            }
        }
    }
}
