//! When to try again, and how long to wait before.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::error::RequestError;
use super::server::Watch;

/// Wait after the first failure; it doubles with each one that follows.
const FIRST_DELAY: Duration = Duration::from_millis(250);

/// Longest wait of our own choice.
const MAX_DELAY: Duration = Duration::from_secs(15);

/// Longest wait that a server may ask for.
const MAX_ASKED_DELAY: Duration = Duration::from_secs(60);

/// How often to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Failures in a row after which the next one is final. Progress of a transfer counts anew.
    pub count: u32,
}

impl Default for RetryPolicy {
    /// Five times: about eight seconds in all.
    fn default() -> Self {
        Self { count: 5 }
    }
}

impl RetryPolicy {
    /// How long to wait after so many failures in a row, at least one; `None` to give up. `random`
    /// is in `[0, 1)`.
    ///
    /// The delay is spread over a half of its length, so that clients that failed together do not
    /// come back together.
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

/// The failures of one transfer so far.
pub(super) struct Retries {
    policy: RetryPolicy,
    watch: Arc<dyn Watch>,
    failure_count: u32,
}

impl Retries {
    pub(super) fn new(policy: RetryPolicy, watch: Arc<dyn Watch>) -> Self {
        Self { policy, watch, failure_count: 0 }
    }

    /// The transfer got on: failures so far do not count.
    pub(super) fn progressed(&mut self) {
        self.failure_count = 0;
    }

    /// Waits, when trying again can help and has not been done too often; gives the error back
    /// otherwise.
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
