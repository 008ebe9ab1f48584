//! Limits of a gate, and its refusal.

use std::time::Duration;

use thiserror::Error;

/// No permit in time, or too many requests wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no permit in time")]
pub struct Busy {
    /// Whether the tenant has more than its share: fewer requests of its own would help.
    pub is_above_share: bool,
}

/// Limits of a gate.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Units of all permits together.
    pub capacity: u32,
    /// Units that one tenant may have at once, unless it asks for more in one go and has none.
    pub per_tenant: u32,
    /// Maximum waiting new requests of one tenant; with 0 a request is refused at once if no permit
    /// is free. Running requests are bounded by the number of connections.
    pub waiting_count: usize,
    /// How long a request may wait.
    pub patience: Duration,
}
