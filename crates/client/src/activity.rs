//! When a transfer moved last, to tell a slow one from a dead one.

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
    /// Something that moved just now.
    pub(super) fn new() -> Self {
        Self { begin: Instant::now(), last_millis: AtomicU64::new(0) }
    }

    /// It moves.
    pub(super) fn touch(&self) {
        let millis = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    /// Returns once nothing has moved for so long.
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
