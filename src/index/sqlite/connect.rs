//! Connections to the file: how long a request waits for one, when it is tested, and the durability
//! of the file's name.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::sqlite::SqlitePoolOptions;

use crate::index::error::{IndexError, IndexErrorKind};

/// How long a request waits for a connection before the index counts as unavailable.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of a pool with this many connections.
pub(super) fn pool_options(max_connection_count: u32) -> SqlitePoolOptions {
    // Not tested before each use: a test is a round trip to another thread, as long as a lookup. A
    // local file loses no connection, and each is tested on release.
    SqlitePoolOptions::new()
        .max_connections(max_connection_count)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
}

/// The longest time that the writing connection was taken, which is how long other writers have
/// waited for it.
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

/// Makes the file's name durable. SQLite syncs the file and its WAL, but not the directory of a
/// file that it created.
pub(super) fn sync_parent(path: &Path) -> Result<(), IndexError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| IndexError {
        op: "sync the directory of the database",
        kind: IndexErrorKind::Other,
        source: Box::new(error),
    })
}
