//! Observers of transfers.

use std::fmt;
use std::time::Duration;

use super::error::RequestError;

/// Observer of a transfer.
pub trait Watch: fmt::Debug + Send + Sync + 'static {
    /// So many bytes are through. Goes back when a transfer has to start over.
    fn position(&self, len: u64);
    /// So many bytes there are.
    fn total(&self, len: u64);
    /// It failed, and will be tried again after the delay.
    fn retrying(&self, error: &RequestError, delay: Duration);
}

/// Observes nothing, for transfers and pushes that are not observed.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn position(&self, _: u64) {}

    fn total(&self, _: u64) {}

    fn retrying(&self, _: &RequestError, _: Duration) {}
}
