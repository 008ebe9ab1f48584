//! Limits of a gate, and its refusal.

use std::time::Duration;

use thiserror::Error;

/// A refusal: there was no permit in time, or too many requests wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no permit in time")]
pub struct Busy {
    /// Whether the tenant has more than its share, so that fewer of its own requests would help.
    pub is_above_share: bool,
}

/// Limits of a gate.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Units of all permits together.
    pub capacity: u32,
    /// Maximum number of units of one tenant. If the tenant holds no units, a single request may
    /// exceed it.
    pub per_tenant: u32,
    /// Maximum number of new requests of one tenant that wait. With 0, a request is refused at once
    /// if no permit is free. It does not limit running requests.
    pub waiting_count: usize,
    /// How long a request may wait.
    pub patience: Duration,
}
