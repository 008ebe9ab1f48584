//! Long computations for a response: they leave the requesting thread, which serves other sockets,
//! too. They queue for threads of their own, by [current](crate::runtime::fair::Tenant::current)
//! tenant.

use super::Cas;

/// Items (terms, chunks, parts of xorbs) up to which the response is computed inline. Planning and
/// writing an item takes about a microsecond, a change of the thread and back about fifty. The
/// index returns 512 terms of a window of a file at once, which is less.
const INLINE_COUNT: usize = 1024;

/// Computations at once, for this many verifying threads: half of them, so that the threads with
/// the sockets get a core soon.
pub(super) fn thread_count(verify_worker_count: usize) -> usize {
    verify_worker_count.div_ceil(2)
}

impl Cas {
    /// Computes something of so many items: inline where they are few, else on a computing thread.
    /// When the caller is cancelled, work that has begun completes, and queued work is dropped.
    pub async fn compute<T, F>(&self, item_count: usize, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        if item_count <= INLINE_COUNT { work() } else { self.computing.run(work).await }
    }
}
