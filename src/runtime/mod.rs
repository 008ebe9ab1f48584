//! The doors to tokio: what runs elsewhere, what runs later, what time it is, and when to stop.
//!
//! Nothing in here knows what a xorb is. Code outside does not spawn, block or read the clock by itself.

pub mod blocking;
pub mod clock;
pub mod metrics;
pub mod shutdown;
pub mod task;
pub mod telemetry;
