//! The only way to spawn tasks. A task belongs to a group, so that a shutdown can wait for it.

use std::future::Future;

use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// Tasks that belong together and end together.
#[derive(Clone, Debug, Default)]
pub struct TaskGroup {
    tracker: TaskTracker,
}

impl TaskGroup {
    /// A group without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task in the current span.
    #[expect(clippy::disallowed_methods, reason = "the only place that spawns tasks")]
    pub fn spawn<F>(&self, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::spawn(self.tracker.track_future(work.in_current_span()));
    }

    /// Waits until every task has ended. Tasks may still be added meanwhile.
    pub async fn join(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
