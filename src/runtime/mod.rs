//! The doors to tokio and the machine: what runs elsewhere, what runs later, what time it is, when to stop, and how a
//! file gets its name.
//!
//! Nothing in here knows what a xorb is. Code outside does not spawn, block, publish files or read the clock by itself.

pub mod blocking;
pub mod clock;
pub mod descriptors;
pub(crate) mod durable;
pub mod fair;
pub mod metrics;
pub mod shutdown;
pub mod task;
pub mod telemetry;
