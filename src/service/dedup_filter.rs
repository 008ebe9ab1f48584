//! A Bloom filter in memory of the chunks that deduplication finds. It saves queries to the index.
//!
//! Stock clients send a dedup query for the first chunk of every file. The index has none of the
//! chunks of a new file, so an upload of 20 000 new files is 20 000 queries without a hit. Most of
//! the cost of such a query is the switch to the thread of a database connection and back. The
//! filter contains every chunk that the index had at the start and every chunk that this process
//! has registered since. For a chunk that is not in the filter, the index is not queried.
//!
//! The filter is used only after all chunks of the index were inserted. Until then the index is
//! queried for every chunk. Chunks are never removed from the filter. So a query for a deleted
//! chunk still reaches the index, as does one in a hundred queries for unknown chunks. Chunks that
//! another process registers are not in the filter until the next start. So a client that has these
//! chunks uploads them once more. Compaction adds no chunks, because the chunks of a new xorb were
//! in the old xorbs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fastbloom::AtomicBloomFilter;

use super::Server;
use super::error::StoreError;
use crate::format::ChunkHash;

/// The filter is made for at least this number of chunks, and then takes 1.2 MB.
const MIN_CHUNK_COUNT: usize = 1_000_000;

/// The fraction of unknown chunks that the filter seems to contain, so that the index is queried.
/// The fraction is greater if the filter contains more chunks than it was made for: one in ten at
/// twice the number.
const FALSE_SHARE: f64 = 0.01;

/// Chunks that one query reads from the index.
const PAGE_COUNT: u32 = if cfg!(test) { 2 } else { 10_000 };

/// The filter; it is empty and not used until [`Server::load_dedup_filter`].
#[derive(Debug, Default)]
pub(super) struct DedupFilter {
    filter: OnceLock<AtomicBloomFilter>,
    /// Whether all chunks of the index were inserted, so that the filter may be used.
    is_complete: AtomicBool,
}

impl DedupFilter {
    /// Whether the index certainly does not have this chunk, unless another process added it.
    /// `false` if that is unknown.
    pub(super) fn lacks(&self, chunk: &ChunkHash) -> bool {
        // Acquire, so that a thread which reads `true` also sees all chunks that were inserted
        // before the filter was complete.
        self.is_complete.load(Ordering::Acquire)
            && self.filter.get().is_some_and(|filter| !filter.contains(chunk.as_bytes()))
    }

    /// Adds chunks. To be called after the write of the chunks to the index, even if that write may
    /// have failed, and before the response to the client. Does nothing before the filter is made:
    /// [`Server::load_dedup_filter`] makes the filter before it reads the index, so it will read
    /// these chunks.
    pub(super) fn insert<'c>(&self, chunks: impl IntoIterator<Item = &'c ChunkHash>) {
        let Some(filter) = self.filter.get() else { return };
        for chunk in chunks {
            filter.insert(chunk.as_bytes());
        }
    }
}

impl Server {
    /// Fills the filter from the index. The filter is used from then on. To be called once after
    /// the start; requests may run meanwhile.
    ///
    /// # Errors
    ///
    /// The index failed. Then the filter is not used, and the index is queried for every chunk.
    pub async fn load_dedup_filter(&self) -> Result<(), StoreError> {
        let count = usize::try_from(self.store.index.dedup_chunk_count().await?).unwrap_or(usize::MAX);
        let expected_count = count.saturating_mul(2).max(MIN_CHUNK_COUNT);
        let make = || AtomicBloomFilter::with_false_pos(FALSE_SHARE).expected_items(expected_count);
        // Must be before the first page is read, for the reason given at `insert`.
        self.dedup_filter.filter.get_or_init(make);
        let mut after = None;
        loop {
            let page = self.store.index.dedup_chunks_after(after, PAGE_COUNT).await?;
            self.dedup_filter.insert(&page);
            let Some(last) = page.last() else { break };
            after = Some(*last);
        }
        self.dedup_filter.is_complete.store(true, Ordering::Release);
        Ok(())
    }
}
