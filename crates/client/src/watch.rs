//! Observers of transfers.

use std::fmt;
use std::time::Duration;

use super::error::RequestError;

/// Observer of a transfer.
pub trait Watch: fmt::Debug + Send + Sync + 'static {
    /// Bytes transferred so far. Decreases when a transfer restarts.
    fn position(&self, len: u64);
    /// Bytes of the whole transfer.
    fn total(&self, len: u64);
    /// The transfer failed, and will be retried after the delay.
    fn retrying(&self, error: &RequestError, delay: Duration);
}

/// An observer that does nothing, for transfers and pushes that need none.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn position(&self, _: u64) {}

    fn total(&self, _: u64) {}

    fn retrying(&self, _: &RequestError, _: Duration) {}
}
