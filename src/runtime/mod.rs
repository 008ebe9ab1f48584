//! The only access to tokio and the machine: blocking work, tasks, the clock, stop and reload
//! signals, publishing of files, journals and metrics.
//!
//! Other modules do not spawn, block, publish files or read the clock directly. No code in here
//! depends on what a xorb is.

pub mod blocking;
pub mod clock;
pub mod descriptors;
pub(crate) mod durable;
pub mod fair;
pub mod incarnation;
pub mod journal;
pub mod metrics;
pub mod outage;
pub mod process;
pub mod reload;
pub mod shutdown;
pub(crate) mod system;
pub mod task;
pub mod telemetry;
