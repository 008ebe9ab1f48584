//! Computations for a request, which run inline if they are short. Long ones run on separate
//! threads, because the thread that handles the request also serves other sockets. Each tenant has
//! its own queue for these threads.

use super::{Server, Store};
use crate::runtime::fair::Tenant;

/// Maximum number of items (terms, chunks, parts of xorbs) that are computed inline, on the thread
/// of the request. To plan and write an item takes about a microsecond, and the two context
/// switches to a computing thread and back take about fifty. A short range of a file stays inline,
/// because a row of the index has at most 512 terms.
const INLINE_COUNT: usize = 1024;

/// Maximum number of items (entries of a directory or shard, chunks) that are parsed or hashed
/// inline. A chunk takes 0.15 µs, an entry less, and the two context switches about fifty.
const INLINE_ITEM_COUNT: usize = 512;

/// Number of computing threads: half of the verifying ones, so that the threads with the sockets
/// do not wait long for a CPU.
pub(super) fn thread_count(verify_worker_count: usize) -> usize {
    verify_worker_count.div_ceil(2)
}

impl Server {
    /// Runs a computation for a response over `item_count` items: inline if these are few,
    /// otherwise on a computing thread, in the queue of [`Tenant::current`]. If the future is
    /// dropped, work that has begun on a thread completes, and queued work is dropped.
    pub async fn compute<T, F>(&self, item_count: usize, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        if item_count <= INLINE_COUNT { work() } else { self.computing.run(work).await }
    }
}

impl Store {
    /// Parses, hashes or compares `item_count` items for a tenant: inline if these are few,
    /// otherwise on a verifying thread, as [`Pool::run_for`](crate::runtime::blocking::Pool) does.
    pub(super) async fn compute_for<T, F>(&self, tenant: Tenant, item_count: usize, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        if item_count <= INLINE_ITEM_COUNT { work() } else { self.pool.run_for(tenant, work).await }
    }
}
