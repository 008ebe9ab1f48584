//! The index in PostgreSQL, for any number of processes.
//!
//! Writers: each write transaction takes one advisory lock before its first look at the data, in a
//! statement of its own. So write transactions of all processes run one after another, like those
//! of SQLite, and a verb decides on the latest committed rows: at READ COMMITTED each statement has
//! a new snapshot. The lock and the decision must be two statements. One statement for both would
//! decide on a snapshot from before its wait, and could delete a xorb that has just been
//! referenced.
//!
//! Readers take no lock and never wait. A verb that reads with several statements uses one
//! snapshot, REPEATABLE READ READ ONLY.
//!
//! One lock for all writers is the simplest rule that is right. Finer locks, per xorb bucket and
//! per repository, would let registrations of different repositories run together. They are not
//! built yet. Because writers are serialized, ids of rows are in the order of commits, so a page by
//! id misses nothing.
//!
//! An error of a commit may mean that it was done and its response lost. It is reported as an
//! error, and the caller may repeat the verb.
//!
//! The files have the names of those for SQLite, with the same verbs. The schema is one migration,
//! applied by [`PostgresIndex::migrate`]; [`PostgresIndex::open`] only checks its version.

mod archive;
mod bulk;
mod claims;
mod collect;
mod compact;
mod connect;
mod discard;
mod failure;
mod files;
mod grants;
mod health;
mod hub;
#[cfg(test)]
#[cfg(feature = "postgres-tests")]
mod interleaving;
mod key_ring;
mod listing;
mod lists;
mod named;
mod objects;
mod open;
mod records;
mod register;
mod remove;
mod repair;
mod restoring;
mod rows;
mod session;
#[cfg(test)]
#[cfg(feature = "postgres-tests")]
mod session_tests;
mod store_locks;
mod switch;
mod terms;
#[cfg(test)]
#[cfg(feature = "postgres-tests")]
pub(crate) mod test_hooks;
#[cfg(test)]
#[cfg(feature = "postgres-tests")]
pub(super) mod test_server;
mod tx;
mod usage;
mod xorbs;

use sqlx::PgPool;

use self::connect::LongestWrite;
use self::failure::map;
pub use self::key_ring::SealedKeys;
pub use self::session::{ServerAccess, Session, SessionHandle};
use super::Index;
#[cfg(any(test, feature = "full-tests"))]
use super::probe;
use super::records::ClosedRecords;
use crate::runtime::clock::Timestamp;

/// A PostgreSQL database as an [`Index`].
#[derive(Clone, Debug)]
pub struct PostgresIndex {
    writers: PgPool,
    readers: PgPool,
    longest_write: LongestWrite,
    /// The session of this process, if others can serve the store at the same time.
    session: Option<SessionHandle>,
    /// Without a session: the records that this process has closed.
    closed: ClosedRecords,
    /// Whether every registration is written in steps, even a short one.
    #[cfg(test)]
    registers_in_steps: bool,
}

impl Index for PostgresIndex {}

const fn millis(timestamp: Timestamp) -> i64 {
    timestamp.as_millis().cast_signed()
}
