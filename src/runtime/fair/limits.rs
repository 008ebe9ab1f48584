//! What a gate lets in, and what it says to whom it does not.

use std::time::Duration;

use thiserror::Error;

/// No permit in time, or too many requests wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no permit in time")]
pub struct Busy {
    /// Whether the one who asked has more than its share: fewer requests of its own would help.
    pub is_above_share: bool,
}

/// What a gate lets in.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Units that may be out at once.
    pub capacity: u32,
    /// Units that one tenant may have at once, unless it asks for more in one go and has none.
    pub per_tenant: u32,
    /// Maximum waiting new requests of one tenant; with 0 a request is refused at once if no permit
    /// is free. Running requests are bounded by the number of connections.
    pub waiting_count: usize,
    /// How long one may wait.
    pub patience: Duration,
}
