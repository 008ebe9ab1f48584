//! What is counted of collections of garbage.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Metrics of collections of garbage, by this process.
#[derive(Debug, Default)]
pub struct CollectionMetrics {
    /// Collections begun.
    pub runs: Counter,
    /// Collections that did nothing because something was not understood.
    pub aborted: Counter,
    /// Xorbs condemned.
    pub condemned: Counter,
    /// Xorbs deleted.
    pub deleted: Counter,
    /// Bytes of their blobs.
    pub freed_bytes: Counter,
    /// Xorbs that could not be condemned or deleted; each failure counts.
    pub failed: Counter,
    /// Xorbs that were rewritten, so that no file refers to them any more.
    pub compacted: Counter,
    /// Bytes of the xorbs that were made of them.
    pub compacted_bytes: Counter,
    /// Files that were switched to new xorbs.
    pub switched_files: Counter,
    /// Xorbs and files that could not be rewritten or switched; each failure counts.
    pub compaction_failed: Counter,
    /// When a collection last did all that it had planned, in seconds since 1970.
    pub last_success: Gauge,
}

impl CollectionMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("gc_runs", "Garbage collections started", self.runs.clone());
        registry.register(
            "gc_aborted",
            "Garbage collections aborted because of an inconsistency",
            self.aborted.clone(),
        );
        registry.register("gc_condemned_xorbs", "Xorbs condemned", self.condemned.clone());
        registry.register("gc_deleted_xorbs", "Xorbs deleted", self.deleted.clone());
        let help = "Serialized bytes of deleted xorbs";
        registry.register_with_unit("gc_freed", help, Unit::Bytes, self.freed_bytes.clone());
        registry.register("gc_failures", "Xorbs that could not be condemned or deleted", self.failed.clone());
        registry.register(
            "gc_compacted_xorbs",
            "Xorbs rewritten by compaction and no longer referenced",
            self.compacted.clone(),
        );
        let help = "Serialized bytes of xorbs written by compaction";
        registry.register_with_unit("gc_compaction_written", help, Unit::Bytes, self.compacted_bytes.clone());
        registry.register("gc_switched_files", "Files switched to new xorbs", self.switched_files.clone());
        let help = "Xorbs and files that compaction failed on";
        registry.register("gc_compaction_failures", help, self.compaction_failed.clone());
        let help = "Unix time of the last complete garbage collection";
        registry.register_with_unit("gc_last_success_timestamp", help, Unit::Seconds, self.last_success.clone());
    }
}
