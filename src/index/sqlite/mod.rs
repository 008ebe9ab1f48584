//! The index in one SQLite file.
//!
//! The database has a write-ahead log (WAL) and `synchronous=FULL`, so a committed transaction
//! survives a power cut. A single connection writes, so that writers queue for it in their order
//! and not in SQLite's busy handler. Several connections read, and never wait for the writer.
//!
//! The methods of each trait are in the file with its name, for example those of
//! [`ClaimIndex`](super::ClaimIndex) in `claims.rs`. A method with one statement runs it with
//! `read` or `write` of `tx.rs`. A method with several statements holds a connection and begins a
//! transaction on it.

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
mod listing;
mod lists;
mod named;
mod objects;
mod open;
mod records;
mod register;
mod remove;
mod repair;
mod replace;
mod rows;
mod store_locks;
mod switch;
mod terms;
#[cfg(test)]
pub(crate) mod test_hooks;
mod tx;
mod usage;
mod wal;
mod xorbs;

use self::connect::Connections;
pub(super) use self::failure::map;
pub use self::replace::Replacement;
use super::Index;
#[cfg(any(test, feature = "full-tests"))]
pub use super::probe;
use super::records::ClosedRecords;
use crate::runtime::clock::Timestamp;

/// The number of connections for reading. Each has a thread and a page cache of about 2 MiB.
const READER_COUNT: u32 = 4;

/// A SQLite file as an [`Index`].
#[derive(Clone, Debug)]
pub struct SqliteIndex {
    writer: Connections,
    readers: Connections,
    closed: ClosedRecords,
    /// Whether every registration is written in steps, even a short one.
    #[cfg(test)]
    registers_in_steps: bool,
}

impl Index for SqliteIndex {}

const fn millis(timestamp: Timestamp) -> i64 {
    timestamp.as_millis().cast_signed()
}
