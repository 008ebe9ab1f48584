//! Metrics of garbage collection.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Metrics of garbage collections by this process.
#[derive(Debug, Default)]
pub struct CollectionMetrics {
    /// Collections started.
    pub runs: Counter,
    /// Collections that were aborted because of an inconsistency.
    pub aborted: Counter,
    /// Condemned xorbs.
    pub condemned: Counter,
    /// Deleted xorbs.
    pub deleted: Counter,
    /// Serialized bytes of the deleted xorbs.
    pub freed_bytes: Counter,
    /// Failed attempts to condemn or delete a xorb.
    pub failed: Counter,
    /// Xorbs that compaction has rewritten, so that no file references them any more.
    pub compacted: Counter,
    /// Bytes of the xorbs that compaction has written.
    pub compacted_bytes: Counter,
    /// Files that were switched to new xorbs.
    pub switched_files: Counter,
    /// Failed attempts to rewrite a xorb or to switch a file.
    pub compaction_failed: Counter,
    /// Time of the last collection that completed its plan, in seconds since 1970.
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
