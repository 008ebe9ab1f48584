//! What a gate lets in, and what it says to whom it does not.

use std::time::Duration;

use thiserror::Error;

/// There was no turn in time, or too many wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no turn in time")]
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
    /// Requests of one tenant that may wait at once to begin; with 0 whoever finds no room is refused at once. Of those that have
    /// begun there are as many as connections at most.
    pub waiting_count: usize,
    /// How long one may wait.
    pub patience: Duration,
}
