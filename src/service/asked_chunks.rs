//! A filter in memory of the chunks that deduplication knows.
//!
//! Stock clients query the first chunk of every file, and the index has none of a new file: 20 000
//! files are 20 000 queries. Most of the cost is the way to a connection's thread and back. No xorb
//! that this process registered has a chunk outside the filter, so the index is not queried.
//!
//! The filter is used once it holds all chunks of the index; until then each is queried. It never
//! forgets: a deleted chunk, and one in a hundred others, cost a query as before. Chunks that
//! another process adds are missing until the next start, so a client uploads them once more.
//! Compaction adds none: the chunks of a new xorb were in the old ones.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fastbloom::AtomicBloomFilter;

use super::Cas;
use super::error::StoreError;
use crate::format::ChunkHash;

/// Chunks that the filter is made for, at least: 1.2 MB.
const MIN_CHUNK_COUNT: usize = 1_000_000;

/// Share of unknown chunks that are queried nevertheless, up to the size that the filter is made
/// for. At twice that size it is one in ten.
const FALSE_SHARE: f64 = 0.01;

/// Chunks that are read with one query.
const PAGE_COUNT: u32 = if cfg!(test) { 2 } else { 10_000 };

/// The filter.
#[derive(Debug, Default)]
pub(super) struct AskedChunks {
    filter: OnceLock<AtomicBloomFilter>,
    is_complete: AtomicBool,
}

impl AskedChunks {
    /// Whether no registration has this chunk, as far as is known.
    pub(super) fn lacks(&self, chunk: &ChunkHash) -> bool {
        // Acquire: chunks inserted before it was complete are seen.
        self.is_complete.load(Ordering::Acquire)
            && self.filter.get().is_some_and(|filter| !filter.contains(chunk.as_bytes()))
    }

    /// Adds chunks, when the index has them or may have them, and before the response to the
    /// client. Without a filter there is nothing to do: the caller wrote the chunks before the
    /// filter was made, so [`Cas::load_asked_chunks`] reads them.
    pub(super) fn insert<'c>(&self, chunks: impl IntoIterator<Item = &'c ChunkHash>) {
        let Some(filter) = self.filter.get() else { return };
        for chunk in chunks {
            filter.insert(chunk.as_bytes());
        }
    }
}

impl Cas {
    /// Fills the filter from the index; from then on it is used. To be called once, beside
    /// requests.
    ///
    /// # Errors
    ///
    /// The index failed; then every chunk is queried.
    pub async fn load_asked_chunks(&self) -> Result<(), StoreError> {
        let count = usize::try_from(self.index.dedup_chunk_count().await?).unwrap_or(usize::MAX);
        let expected_count = count.saturating_mul(2).max(MIN_CHUNK_COUNT);
        let make = || AtomicBloomFilter::with_false_pos(FALSE_SHARE).expected_items(expected_count);
        // Before the first page is read: see `insert`.
        self.asked_chunks.filter.get_or_init(make);
        let mut after = None;
        loop {
            let page = self.index.dedup_chunks_after(after, PAGE_COUNT).await?;
            self.asked_chunks.insert(&page);
            let Some(last) = page.last() else { break };
            after = Some(*last);
        }
        self.asked_chunks.is_complete.store(true, Ordering::Release);
        Ok(())
    }
}
