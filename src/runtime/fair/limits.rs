//! Limits of a gate (a fair semaphore, see the parent module), and its refusal.

use std::time::Duration;

use thiserror::Error;

/// A refusal: there was no permit in time, or too many requests wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no permit in time, or too many waiting requests")]
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
    /// Maximum number of requests of one tenant that wait for their first permit. Requests that
    /// wait for a further permit are not limited. With 0, a request is refused at once if no permit
    /// is free.
    pub waiting_count: usize,
    /// How long `enter` and `acquire_next` wait for a permit. `wait` and `resume` have no limit.
    pub patience: Duration,
}
