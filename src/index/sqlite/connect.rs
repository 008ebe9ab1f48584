//! Options of the connections to the database, the measured longest write, and the durability of
//! the file's name.

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
    // Connections are not tested before each use: a test is a round trip to another thread, which
    // takes as long as a lookup. A connection to a local file does not break, and sqlx tests each
    // connection when it is released.
    SqlitePoolOptions::new()
        .max_connections(max_connection_count)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
}

/// Measures the longest time for which an operation held the writing connection, because other
/// writers wait meanwhile.
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

/// Makes the name of the database file durable. SQLite syncs the file and its WAL, but not the
/// directory in which it created the file.
pub(super) fn sync_parent(path: &Path) -> Result<(), IndexError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| IndexError {
        op: "sync the directory of the database",
        kind: IndexErrorKind::Other,
        source: Box::new(error),
    })
}
