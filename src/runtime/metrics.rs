//! The metrics of the process, in the text format of Prometheus.
//!
//! Code that counts has a handle, such as a counter, and does not know the registry. To increment a
//! counter is one atomic add. Gauges "at the last scrape" are set by the handler of `/metrics`.

mod collection;
mod hub;
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
pub use self::hub::HubMetrics;
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
    /// Open connections.
    pub connections: Gauge,
    /// Connections refused because their address had too many, or because all were busy.
    pub connections_refused: Counter,
    /// Connections closed because the client read too slowly.
    pub slow_readers: Counter,
    /// Pieces of downloads and uploads that wait for a permit, at the last scrape.
    pub io_permits_waiting: Gauge,
    /// Memory reserved for long responses and plans, at the last scrape.
    pub response_memory: Gauge,
    /// Open file descriptors, at the last scrape.
    pub descriptors_open: Gauge,
    /// The limit of open file descriptors.
    pub descriptors_max: Gauge,
    /// Bytes of request bodies received, for the routes that transfer data.
    pub received_bytes: Counter,
    /// Bytes of response bodies sent, for the routes that transfer data.
    pub sent_bytes: Counter,
    /// Uploads being received or stored.
    pub uploads_in_flight: Gauge,
    /// Time that workers spent on one upload: elapsed time, with the writes to the draft.
    pub verify_seconds: Histogram,
    /// Lookups that found the layout of a xorb in memory.
    pub layout_hits: Counter,
    /// Lookups that queried the index for the layout of a xorb.
    pub layout_misses: Counter,
    /// Claimed sha256 digests that match the file.
    pub sha256_verified: Counter,
    /// Claimed sha256 digests that do not match the file.
    pub sha256_mismatch: Counter,
    /// Files whose sha256 could not be verified at the last attempt.
    pub sha256_unreadable: Gauge,
    /// Xorbs that the scrub verified as valid.
    pub scrub_verified: Counter,
    /// Bytes that the scrub has read.
    pub scrub_bytes: Counter,
    /// Xorbs found damaged, by the scrub or by a read.
    pub scrub_damaged: Counter,
    /// Verifications that failed for another reason than a damaged blob.
    pub scrub_failures: Counter,
    /// When the sound xorb that was not verified for longest was last verified, in seconds since
    /// 1970; 0 if one was never verified. At the last scrape.
    pub scrub_oldest: Gauge,
    /// Damaged xorbs that were repaired or found valid again.
    pub repaired: Counter,
    /// Sound xorbs whose blob was replaced by a shorter one.
    pub replaced: Counter,
    /// Bytes of replaced blobs that were not deleted yet, at the last scrape.
    pub store_replaced_bytes: Gauge,
    /// Damaged xorbs in the store, at the last scrape.
    pub store_damaged_xorbs: Gauge,
    /// Lines of the audit log.
    pub audit: JournalCounts,
    /// Registrations and commits refused because they would exceed a quota.
    pub quota_refused: Counter,
    /// Xorbs in the store, at the last scrape.
    pub store_xorbs: Gauge,
    /// Longest time that a write of the index kept other writers waiting, at the last scrape.
    pub index_longest_write: Gauge<f64, AtomicU64>,
    /// Serialized bytes in the store, at the last scrape.
    pub store_bytes: Gauge,
    /// Free bytes on the file system of the store, at the last scrape.
    pub store_free_bytes: Gauge,
    /// Metrics of garbage collection.
    pub collection: CollectionMetrics,
    /// Metrics of Hub repositories.
    pub hub: HubMetrics,
    /// Metrics of the process itself.
    pub process: ProcessMetrics,
    /// Usage of the largest repositories.
    pub repos: RepoMetrics,
}

/// The labels of `requests`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The route's pattern, never the path itself.
    pub route: String,
    /// The method; unknown ones are `OTHER`.
    pub method: &'static str,
    /// The status of the response.
    pub status: u16,
}

/// The labels of `request_seconds`.
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
            hub: HubMetrics::default(),
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
    /// In practice none, because the text is written to memory.
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
        let help = "Connections refused because their address has too many or all are busy";
        registry.register("http_connections_refused", help, self.connections_refused.clone());
        let help = "Connections closed because the client read too slowly";
        registry.register("http_slow_readers", help, self.slow_readers.clone());
        let help = "Pieces of downloads and uploads waiting for a permit";
        registry.register("io_permits_waiting", help, self.io_permits_waiting.clone());
        let help = "Memory reserved for long responses and plans";
        registry.register_with_unit("response_memory", help, Unit::Bytes, self.response_memory.clone());
        registry.register("descriptors_open", "Open file descriptors", self.descriptors_open.clone());
        registry.register("descriptors_max", "Limit of open file descriptors", self.descriptors_max.clone());
        let help = "Bytes of request bodies received";
        registry.register_with_unit("received", help, Unit::Bytes, self.received_bytes.clone());
        registry.register_with_unit("sent", "Bytes of response bodies sent", Unit::Bytes, self.sent_bytes.clone());
        self.register_store();
    }

    fn register_store(&mut self) {
        let registry = self.registry.sub_registry_with_prefix("zorb");
        let help = "Uploads being received or stored";
        registry.register("uploads_in_flight", help, self.uploads_in_flight.clone());
        let help = "Time that workers spent on verifying and writing one upload";
        registry.register_with_unit("verify", help, Unit::Seconds, self.verify_seconds.clone());
        let help = "Lookups of a chunk layout that found it in the cache";
        registry.register("layout_cache_hits", help, self.layout_hits.clone());
        let help = "Lookups of a chunk layout that queried the index";
        registry.register("layout_cache_misses", help, self.layout_misses.clone());
        let help = "Claimed sha256 digests that match the file";
        registry.register("sha256_verified", help, self.sha256_verified.clone());
        let help = "Claimed sha256 digests that do not match the file";
        registry.register("sha256_mismatch", help, self.sha256_mismatch.clone());
        let help = "Files whose sha256 could not be verified at the last attempt";
        registry.register("sha256_unreadable", help, self.sha256_unreadable.clone());
        registry.register("scrub_verified", "Xorbs that the scrub verified as valid", self.scrub_verified.clone());
        registry.register_with_unit("scrub_read", "Bytes that the scrub read", Unit::Bytes, self.scrub_bytes.clone());
        registry.register("scrub_damaged", "Xorbs found damaged", self.scrub_damaged.clone());
        let help = "Verifications that failed for another reason than damage";
        registry.register("scrub_failures", help, self.scrub_failures.clone());
        let help = "Unix time of the oldest verification of a valid xorb, 0 if one was never verified";
        registry.register_with_unit("scrub_oldest_timestamp", help, Unit::Seconds, self.scrub_oldest.clone());
        let help = "Damaged xorbs repaired or found valid again";
        registry.register("store_repaired_xorbs", help, self.repaired.clone());
        let help = "Xorbs whose blob was replaced by a shorter serialization";
        registry.register("store_replaced_xorbs", help, self.replaced.clone());
        let help = "Serialized bytes of replaced blobs that are not deleted yet";
        registry.register_with_unit("store_replaced", help, Unit::Bytes, self.store_replaced_bytes.clone());
        let help = "Xorbs with a damaged blob";
        registry.register("store_damaged_xorbs", help, self.store_damaged_xorbs.clone());
        registry.register("audit_lines", "Lines written to the audit log", self.audit.written.clone());
        let help = "Lines that were dropped and are missing in the audit log";
        registry.register("audit_lines_lost", help, self.audit.lost.clone());
        let help = "Registrations and commits refused because of a quota";
        registry.register("quota_refused_registrations", help, self.quota_refused.clone());
        registry.register("store_xorbs", "Xorbs in the store", self.store_xorbs.clone());
        registry.register_with_unit("store", "Serialized bytes in the store", Unit::Bytes, self.store_bytes.clone());
        let help = "Free bytes on the file system of the store";
        registry.register_with_unit("store_free", help, Unit::Bytes, self.store_free_bytes.clone());
        let help = "Longest time that a write of the index kept other writers waiting";
        registry.register_with_unit("index_longest_write", help, Unit::Seconds, self.index_longest_write.clone());
        self.collection.register(registry);
        self.hub.register(registry);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
