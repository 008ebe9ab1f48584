//! What takes long to compute for an answer: it leaves the thread that asks, which has the sockets of others to look
//! after, and takes its turn among its like, of the [current](crate::runtime::fair::Tenant::current) tenant among others'.

use super::Cas;

/// Items (terms, chunks, parts of xorbs) of which the answer is computed where it is asked for. To plan one and to write it down
/// takes about a microsecond, to go to another thread and back some fifty. A window of a file, of whose terms the index gives
/// some 512 at once, is less.
const INLINE_COUNT: usize = 1024;

/// So many at once, where so many threads verify: half of them, so that those who look after sockets get a core soon.
pub(super) fn turn_count(verify_worker_count: usize) -> usize {
    verify_worker_count.div_ceil(2)
}

impl Cas {
    /// Computes something of so many items: here where it is little, else on a thread that has nothing else to do. When
    /// whoever asks goes away, what has begun comes to its end, and what has not is dropped.
    pub async fn compute<T, F>(&self, item_count: usize, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        if item_count <= INLINE_COUNT { work() } else { self.computing.run(work).await }
    }
}
