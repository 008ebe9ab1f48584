//! What the process counts, in the form that Prometheus reads.
//!
//! The handles are plain counters: incrementing one is an atomic add, and code that counts does not
//! know the registry.

mod collection;
mod process;
mod repos;

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

pub use self::collection::CollectionMetrics;
pub use self::process::ProcessMetrics;
pub use self::repos::{RepoMetrics, RepoSample};
use super::journal::JournalCounts;

/// Every metric of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Responses sent, by route, method and status.
    pub requests: Family<RequestLabels, Counter>,
    /// Time from the request's head to the response's head.
    pub request_seconds: Family<RouteLabels, Histogram>,
    /// Requests in flight.
    pub requests_in_flight: Gauge,
    /// Connections being held.
    pub connections: Gauge,
    /// Connections refused because their address had too many.
    pub connections_refused: Counter,
    /// Connections closed because the client read too slowly.
    pub slow_readers: Counter,
    /// Pieces waiting for a permit, at the last scrape.
    pub io_permits_waiting: Gauge,
    /// Memory reserved for long responses, at the last scrape.
    pub response_memory: Gauge,
    /// Open file descriptors, at the last scrape.
    pub descriptors_open: Gauge,
    /// File descriptors that may be open.
    pub descriptors_max: Gauge,
    /// Body bytes received.
    pub received_bytes: Counter,
    /// Body bytes sent.
    pub sent_bytes: Counter,
    /// Uploads being received or stored.
    pub uploads_in_flight: Gauge,
    /// Time that workers spent on verifying one upload.
    pub verify_seconds: Histogram,
    /// Layouts found in memory.
    pub layout_hits: Counter,
    /// Layouts read from the index.
    pub layout_misses: Counter,
    /// Claims of a sha256 that were found true.
    pub sha256_verified: Counter,
    /// Claims of a sha256 that were found false.
    pub sha256_mismatch: Counter,
    /// Files whose sha256 could not be verified at the last try.
    pub sha256_unreadable: Gauge,
    /// Xorbs that a check of their blob found sound.
    pub scrub_verified: Counter,
    /// Bytes that checks have read.
    pub scrub_bytes: Counter,
    /// Xorbs that a check found damaged.
    pub scrub_damaged: Counter,
    /// Checks that failed for another reason than the blob.
    pub scrub_failures: Counter,
    /// Time of the oldest verification of a valid xorb, in seconds since 1970, at the last scrape.
    pub scrub_oldest: Gauge,
    /// Damaged xorbs that came back.
    pub repaired: Counter,
    /// Xorbs whose blob was replaced by a shorter one.
    pub replaced: Counter,
    /// Bytes of replaced blobs that were not deleted yet, at the last scrape.
    pub store_replaced_bytes: Gauge,
    /// Damaged xorbs in the store, at the last scrape.
    pub store_damaged_xorbs: Gauge,
    /// Lines of the audit log.
    pub audit: JournalCounts,
    /// Registrations refused because there would be more than a quota allows.
    pub quota_refused: Counter,
    /// Xorbs in the store, at the last scrape.
    pub store_xorbs: Gauge,
    /// How long a write of the index has kept other writers waiting at most, as of the last scrape.
    pub index_longest_write: Gauge<f64, AtomicU64>,
    /// Serialized bytes in the store, as of the last scrape.
    pub store_bytes: Gauge,
    /// Free bytes on the file system of the store, at the last scrape.
    pub store_free_bytes: Gauge,
    /// Of collections of garbage.
    pub collection: CollectionMetrics,
    /// Of the process.
    pub process: ProcessMetrics,
    /// Of the largest repositories.
    pub repos: RepoMetrics,
}

/// What tells requests apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The route's pattern, never the path itself.
    pub route: String,
    /// The method; unknown ones are `OTHER`.
    pub method: &'static str,
    /// The status of the response.
    pub status: u16,
}

/// What tells durations apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    /// The route's pattern, never the path itself.
    pub route: String,
}

impl Metrics {
    /// A registry with every metric at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0005, 2.0, 18))),
            requests_in_flight: Gauge::default(),
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            slow_readers: Counter::default(),
            io_permits_waiting: Gauge::default(),
            response_memory: Gauge::default(),
            descriptors_open: Gauge::default(),
            descriptors_max: Gauge::default(),
            received_bytes: Counter::default(),
            sent_bytes: Counter::default(),
            uploads_in_flight: Gauge::default(),
            verify_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 16)),
            layout_hits: Counter::default(),
            layout_misses: Counter::default(),
            sha256_verified: Counter::default(),
            sha256_mismatch: Counter::default(),
            sha256_unreadable: Gauge::default(),
            scrub_verified: Counter::default(),
            scrub_bytes: Counter::default(),
            scrub_damaged: Counter::default(),
            scrub_failures: Counter::default(),
            scrub_oldest: Gauge::default(),
            repaired: Counter::default(),
            replaced: Counter::default(),
            store_replaced_bytes: Gauge::default(),
            store_damaged_xorbs: Gauge::default(),
            audit: JournalCounts::default(),
            quota_refused: Counter::default(),
            store_xorbs: Gauge::default(),
            index_longest_write: Gauge::default(),
            store_bytes: Gauge::default(),
            store_free_bytes: Gauge::default(),
            collection: CollectionMetrics::default(),
            process: ProcessMetrics::default(),
            repos: RepoMetrics::default(),
        };
        metrics.register();
        metrics
    }

    /// The text of the response to `/metrics`.
    ///
    /// # Errors
    ///
    /// None that happen: the text goes to memory.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn register(&mut self) {
        self.process.register(&mut self.registry);
        let registry = self.registry.sub_registry_with_prefix("zorb");
        self.process.register_build(registry);
        registry.register_collector(Box::new(self.repos.clone()));
        registry.register("http_requests", "Responses sent", self.requests.clone());
        let help = "Time from the request's head to the response's head";
        registry.register_with_unit("http_request", help, Unit::Seconds, self.request_seconds.clone());
        registry.register("http_requests_in_flight", "Requests in flight", self.requests_in_flight.clone());
        registry.register("http_connections", "Open connections", self.connections.clone());
        let help = "Connections refused because their address has too many";
        registry.register("http_connections_refused", help, self.connections_refused.clone());
        let help = "Connections closed because the client read too slowly";
        registry.register("http_slow_readers", help, self.slow_readers.clone());
        registry.register(
            "io_permits_waiting",
            "Pieces of downloads and uploads waiting for a permit",
            self.io_permits_waiting.clone(),
        );
        let help = "Memory reserved for long responses and plans";
        registry.register_with_unit("response_memory", help, Unit::Bytes, self.response_memory.clone());
        registry.register("descriptors_open", "Open file descriptors", self.descriptors_open.clone());
        registry.register("descriptors_max", "Limit of open file descriptors", self.descriptors_max.clone());
        registry.register_with_unit("received", "Body bytes received", Unit::Bytes, self.received_bytes.clone());
        registry.register_with_unit("sent", "Body bytes sent", Unit::Bytes, self.sent_bytes.clone());
        let help = "Uploads being received or stored";
        registry.register("uploads_in_flight", help, self.uploads_in_flight.clone());
        let help = "CPU time of workers spent on verifying one upload";
        registry.register_with_unit("verify", help, Unit::Seconds, self.verify_seconds.clone());
        registry.register("layout_cache_hits", "Layouts found in the cache", self.layout_hits.clone());
        registry.register("layout_cache_misses", "Layouts read from the index", self.layout_misses.clone());
        registry.register(
            "sha256_verified",
            "Claimed sha256 digests that match the file",
            self.sha256_verified.clone(),
        );
        registry.register(
            "sha256_mismatch",
            "Claimed sha256 digests that do not match the file",
            self.sha256_mismatch.clone(),
        );
        let help = "Files whose sha256 could not be verified at the last attempt";
        registry.register("sha256_unreadable", help, self.sha256_unreadable.clone());
        registry.register("scrub_verified", "Xorbs verified as valid", self.scrub_verified.clone());
        registry.register_with_unit("scrub_read", "Bytes read by verification", Unit::Bytes, self.scrub_bytes.clone());
        registry.register("scrub_damaged", "Xorbs found damaged", self.scrub_damaged.clone());
        let help = "Verifications that failed for another reason than the blob";
        registry.register("scrub_failures", help, self.scrub_failures.clone());
        let help = "Unix time of the oldest verification of a xorb, 0 if one was never verified";
        registry.register_with_unit("scrub_oldest_timestamp", help, Unit::Seconds, self.scrub_oldest.clone());
        let help = "Damaged xorbs repaired by an upload or from a backup";
        registry.register("store_repaired_xorbs", help, self.repaired.clone());
        let help = "Xorbs stored in a shorter serialization than before";
        registry.register("store_replaced_xorbs", help, self.replaced.clone());
        let help = "Serialized bytes of replaced blobs that are retained";
        registry.register_with_unit("store_replaced", help, Unit::Bytes, self.store_replaced_bytes.clone());
        let help = "Xorbs with a damaged blob";
        registry.register("store_damaged_xorbs", help, self.store_damaged_xorbs.clone());
        registry.register("audit_lines", "Lines written to the audit log", self.audit.written.clone());
        let help = "Lines lost by the audit log";
        registry.register("audit_lines_lost", help, self.audit.lost.clone());
        let help = "Registrations refused because of a quota";
        registry.register("quota_refused_registrations", help, self.quota_refused.clone());
        registry.register("store_xorbs", "Xorbs in the store", self.store_xorbs.clone());
        registry.register_with_unit("store", "Serialized bytes in the store", Unit::Bytes, self.store_bytes.clone());
        let help = "Free bytes on the file system of the store";
        registry.register_with_unit("store_free", help, Unit::Bytes, self.store_free_bytes.clone());
        let help = "Longest time that a write of the index kept other writers waiting";
        registry.register_with_unit("index_longest_write", help, Unit::Seconds, self.index_longest_write.clone());
        self.collection.register(registry);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
