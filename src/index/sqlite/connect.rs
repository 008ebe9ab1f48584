//! Connections to the file: how long one is waited for, when it is tested, and that the file's name is durable.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::sqlite::SqlitePoolOptions;

use crate::index::error::{IndexError, IndexErrorKind};

/// How long a request waits for a connection before it is told that the index is unavailable.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// So many connections at most.
pub(super) fn pool_options(max_connection_count: u32) -> SqlitePoolOptions {
    // Not tested before each use, which is a question to another thread and its answer, as long as a lookup itself: there is no
    // network that a connection could have lost, and each is tested when it is given back.
    SqlitePoolOptions::new()
        .max_connections(max_connection_count)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
}

/// For how long the connection that writes was taken at most: as long as other writers have waited for one.
#[derive(Clone, Debug, Default)]
pub(super) struct LongestWrite {
    state: Arc<Mutex<WriteTimes>>,
}

#[derive(Debug, Default)]
struct WriteTimes {
    began: Option<Instant>,
    longest: Duration,
}

impl LongestWrite {
    pub(super) fn begin(&self) {
        self.times().began = Some(Instant::now());
    }

    pub(super) fn end(&self) {
        let mut times = self.times();
        if let Some(began) = times.began.take() {
            times.longest = times.longest.max(began.elapsed());
        }
    }

    pub(super) fn get(&self) -> Duration {
        self.times().longest
    }

    fn times(&self) -> MutexGuard<'_, WriteTimes> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the file's name durable. SQLite syncs the file and its log, but not the folder of a file that it created.
pub(super) fn sync_parent(path: &Path) -> Result<(), IndexError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| IndexError {
        op: "sync the directory of the database",
        kind: IndexErrorKind::Other,
        source: Box::new(error),
    })
}
