//! Retries of requests: which failures are retried, how often, and after which delay.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::error::RequestError;
use super::watch::Watch;

/// Delay after the first failure. It doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(250);

/// Maximum delay if the server does not ask for a delay.
const MAX_DELAY: Duration = Duration::from_secs(15);

/// Maximum delay that a server can ask for (`Retry-After`), without the random part.
const MAX_ASKED_DELAY: Duration = Duration::from_secs(60);

/// How often a request is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Retries of one request. Progress of a transfer resets the count.
    pub count: u32,
}

impl Default for RetryPolicy {
    /// Five retries: delays of 4 to 8 seconds in all.
    fn default() -> Self {
        Self { count: 5 }
    }
}

impl RetryPolicy {
    /// The delay after this many consecutive failures (at least 1); `None` if no retry is left.
    /// `asked` is the server's `Retry-After`, `random` is in `[0, 1)`.
    ///
    /// Up to half of the delay is random, so that clients that failed at the same time do not retry
    /// at the same time. If the server asks for a delay, the random part is added to that delay.
    #[must_use]
    pub fn delay(self, failure_count: u32, asked: Option<Duration>, random: f64) -> Option<Duration> {
        if failure_count > self.count {
            return None;
        }
        let doublings = failure_count.saturating_sub(1).min(16);
        let delay = FIRST_DELAY.saturating_mul(1 << doublings).min(MAX_DELAY);
        let spread = (delay / 2).mul_f64(random);
        Some(match asked {
            None => delay / 2 + spread,
            Some(asked) => asked.min(MAX_ASKED_DELAY) + spread,
        })
    }
}

/// Counts consecutive failures of one transfer, and waits before each retry.
pub(super) struct Retries {
    policy: RetryPolicy,
    watch: Arc<dyn Watch>,
    failure_count: u32,
}

impl Retries {
    pub(super) fn new(policy: RetryPolicy, watch: Arc<dyn Watch>) -> Self {
        Self { policy, watch, failure_count: 0 }
    }

    /// The transfer made progress: earlier failures no longer count.
    pub(super) fn progressed(&mut self) {
        self.failure_count = 0;
    }

    /// Counts a failure and waits before a retry. Returns the error instead if it is permanent or
    /// no retries are left.
    pub(super) async fn after(&mut self, error: RequestError) -> Result<(), RequestError> {
        self.failure_count += 1;
        if !error.is_transient() {
            return Err(error);
        }
        let Some(delay) = self.policy.delay(self.failure_count, error.retry_after(), rand::random()) else {
            return Err(error);
        };
        self.watch.retrying(&error, delay);
        sleep(delay).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
