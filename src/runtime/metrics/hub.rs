//! Metrics of Hub repositories.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Metrics of the sweeps by this process.
#[derive(Debug, Default)]
pub struct HubMetrics {
    /// Claims to files that sweeps have removed.
    pub swept_files: Counter,
    /// Sweeps that failed, or found a repository damaged.
    pub sweep_failures: Counter,
}

impl HubMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Files removed from Hub repositories because no branch or tag needs them";
        registry.register("hub_swept_files", help, self.swept_files.clone());
        registry.register("hub_sweep_failures", "Sweeps of Hub repositories that failed", self.sweep_failures.clone());
    }
}
