//! Records: small blobs that are appended in order and never changed. A lost index is rebuilt from
//! them.
//!
//! This is the contract; [`fs`] and [`memory`] implement it, and `conformance` tests it. The store
//! does not know the contents of a record.
//!
//! * A record is stored completely or not at all. After `append` returned `Ok` it survives a power
//!   cut; after an error it may be stored or not.
//! * A record's number is greater than that of every record stored before the append, whatever the
//!   clock says and however often the process was restarted. Numbers may be skipped.
//! * Records are removed, but never replaced.
//! * The store does not detect damage of a record: writers put a hash into each record.

#[cfg(test)]
mod conformance;
pub mod fs;
pub mod memory;

use std::error::Error as StdError;
use std::fmt;
use std::io;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use thiserror::Error;

use super::{BlobError, BlobErrorKind};
use crate::format::StoreId;

/// Bytes of one record, at most: the largest shard (80 MiB), and a head that says whose it is. What
/// is longer is refused before it is written, and before memory is taken to read it.
pub const MAX_RECORD_LEN: u64 = 128 << 20;

/// Numbers in one page of a list, at most.
pub const PAGE_COUNT: usize = 4096;

/// The number of a record: what tells which of two came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u64);

impl Seq {
    /// The record with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Seq {
    /// 16 hexadecimal digits, so that names sort like numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Where records are kept.
pub trait RecordStore: fmt::Debug + Send + Sync + 'static {
    /// Appends a record; returns its number when it is durable.
    fn append(&self, record: Bytes) -> BoxFuture<'_, Result<Seq, BlobError>>;

    /// Numbers of the records behind `after`, ascending: [`PAGE_COUNT`] of them at most, and none
    /// at the end.
    fn list(&self, after: Option<Seq>) -> BoxFuture<'_, Result<Vec<Seq>, BlobError>>;

    /// The last record; `None` where there is none. Reads names only.
    fn last(&self) -> BoxFuture<'_, Result<Option<Seq>, BlobError>>;

    /// The bytes of a record; `None` where there is no such record.
    fn read(&self, seq: Seq) -> BoxFuture<'_, Result<Option<Bytes>, BlobError>>;

    /// Removes a record, durably. Returns whether it was there.
    fn remove(&self, seq: Seq) -> BoxFuture<'_, Result<bool, BlobError>>;

    /// Whether the store is marked as complete. Reads only a directory entry.
    fn is_complete(&self) -> BoxFuture<'_, Result<bool, BlobError>>;

    /// Says so, durably and for ever.
    fn set_complete(&self) -> BoxFuture<'_, Result<(), BlobError>>;

    /// The id of the store whose records these are; `None` if it was never set.
    fn store_id(&self) -> BoxFuture<'_, Result<Option<StoreId>, BlobError>>;

    /// Says it, durably. An id that was said before is never replaced: that is an error.
    fn set_store_id(&self, id: StoreId) -> BoxFuture<'_, Result<(), BlobError>>;

    /// Gives the next records numbers behind this one, also where no such record is there (any
    /// more).
    fn start_behind(&self, seq: Seq);
}

impl BlobError {
    fn record(op: &'static str, seq: Seq, source: io::Error) -> Self {
        let is_too_long = source.kind() == io::ErrorKind::FileTooLarge;
        let failed = Self::io(op, None, source);
        let kind = if is_too_long { BlobErrorKind::Corrupt } else { failed.kind };
        Self { kind, source: Box::new(OfRecord { seq, source: failed.source }), ..failed }
    }

    fn too_long(op: &'static str, len: u64) -> Self {
        Self { op, key: None, kind: BlobErrorKind::Corrupt, source: Box::new(TooLong { len }) }
    }
}

/// Which record something went wrong with.
#[derive(Debug, Error)]
#[error("record {seq}")]
struct OfRecord {
    seq: Seq,
    #[source]
    source: Box<dyn StdError + Send + Sync>,
}

/// A record that no reader would take.
#[derive(Debug, Error)]
#[error("it has {len} bytes; the limit is {MAX_RECORD_LEN}")]
struct TooLong {
    len: u64,
}
