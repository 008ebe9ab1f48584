//! The one door to spawning: a group of tasks that is joined at shutdown.

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
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
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
