//! The parts of a store, and the limits of its use of the machine.

use std::sync::Arc;

use super::quota::Quotas;
use crate::blob::BlobStore;
use crate::blob::records::RecordStore;
use crate::index::Index;
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Metrics;

/// The parts and limits from which a [`Store`](super::Store) or a [`Server`](super::Server) is
/// built.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// The registration log.
    pub records: Arc<dyn RecordStore>,
    /// The index.
    pub index: Arc<dyn Index>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Threads that verify and decode.
    pub verify_worker_count: usize,
    /// Bytes of layouts to cache in memory.
    pub layout_cache_len: u64,
    /// Blobs that may be made durable at once.
    pub publish_count: usize,
    /// Bytes on the disk to leave free: writes are refused while fewer are free.
    pub min_free_len: u64,
    /// Uploads that may be under way at once.
    pub upload_count: usize,
    /// Bytes of uploads that may be under way at once, as declared.
    pub upload_len: u64,
    /// Pieces of xorbs that may be read, decoded and sent at once.
    pub read_count: usize,
    /// The quotas of repositories.
    pub quotas: Quotas,
}

impl Settings {
    /// Settings over these parts, with one worker and one upload at a time, without a cache of
    /// layouts and without quotas.
    #[must_use]
    pub fn over(
        blobs: Arc<dyn BlobStore>,
        records: Arc<dyn RecordStore>,
        index: Arc<dyn Index>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            blobs,
            records,
            index,
            clock,
            metrics,
            verify_worker_count: 1,
            layout_cache_len: 0,
            publish_count: 16,
            min_free_len: 0,
            upload_count: 1,
            upload_len: u64::MAX,
            read_count: 4,
            quotas: Quotas::default(),
        }
    }
}
