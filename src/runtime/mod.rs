//! The doors to tokio and the machine: what runs elsewhere, what runs later, what time it is, when to stop or to
//! look again, how a file gets its name, and how lines get into one.
//!
//! Nothing in here knows what a xorb is. Code outside does not spawn, block, publish files or read the clock by itself.

pub mod blocking;
pub mod clock;
pub mod descriptors;
pub(crate) mod durable;
pub mod fair;
pub mod journal;
pub mod metrics;
pub mod outage;
pub mod process;
pub mod reload;
pub mod shutdown;
pub(crate) mod system;
pub mod task;
pub mod telemetry;
