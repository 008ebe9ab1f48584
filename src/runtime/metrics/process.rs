//! Metrics of the process, under the names that all Prometheus clients use, and the version of the
//! program.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::runtime::clock::Timestamp;

/// Metrics of the process, at the last scrape.
#[derive(Debug, Default)]
pub struct ProcessMetrics {
    cpu_seconds: Counter<f64, AtomicU64>,
    /// Bytes of resident memory.
    pub resident_bytes: Gauge,
    /// Open file descriptors.
    pub open_fds: Gauge,
    max_fds: Gauge,
    start_time: Gauge,
    build: Family<BuildLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

impl ProcessMetrics {
    /// Sets the start time of the process, and its limit of file descriptors.
    pub fn started(&self, now: Timestamp, max_fds: usize) {
        self.start_time.set(now.as_secs().cast_signed());
        self.max_fds.set(i64::try_from(max_fds).unwrap_or(i64::MAX));
    }

    /// Sets the CPU time that the process has used so far, as the operating system counts it.
    pub fn set_cpu_time(&self, time: Duration) {
        // The operating system counts, so the value is set. The atomic holds the bits of the f64.
        self.cpu_seconds.inner().store(time.as_secs_f64().to_bits(), Ordering::Relaxed);
    }

    /// Registers the process metrics. `bare` is a registry without the prefix `zorb`, because these
    /// metrics have the same names in every program.
    pub(super) fn register(&self, bare: &mut Registry) {
        let help = "CPU time that this process has used";
        bare.register_with_unit("process_cpu", help, Unit::Seconds, self.cpu_seconds.clone());
        let help = "Resident memory of this process";
        bare.register_with_unit("process_resident_memory", help, Unit::Bytes, self.resident_bytes.clone());
        bare.register("process_open_fds", "Open file descriptors", self.open_fds.clone());
        bare.register("process_max_fds", "Limit of open file descriptors", self.max_fds.clone());
        let help = "Unix time of the start of this process";
        bare.register_with_unit("process_start_time", help, Unit::Seconds, self.start_time.clone());
    }

    /// Registers the version of this program.
    pub(super) fn register_build(&self, own: &mut Registry) {
        self.build.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        own.register("build_info", "The version of this server; always 1", self.build.clone());
    }
}
