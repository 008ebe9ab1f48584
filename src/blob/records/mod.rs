//! Records: small blobs that are appended in order and never changed. A lost index is rebuilt from
//! them.
//!
//! This is the contract; [`fs`], [`memory`] and `s3` implement it, and `conformance` tests it. The
//! store does not know the contents of a record.
//!
//! * A record is stored completely or not at all. After `append` has returned `Ok`, the record
//!   survives a power cut. After an error it may or may not be stored.
//! * The number of a new record is greater than that of every stored record, whatever the clock
//!   says and however often the process was restarted. Numbers may be skipped.
//! * Records are removed, but never replaced.
//! * The store does not detect damage of a record. So writers put a hash into each record.

#[cfg(test)]
mod conformance;
pub mod fs;
pub mod memory;
#[cfg(feature = "s3")]
pub mod s3;

use std::error::Error as StdError;
use std::fmt;
use std::io;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use thiserror::Error;

use super::{BlobError, BlobErrorKind};
use crate::format::StoreId;

/// Maximum number of bytes of a record. The largest shard (80 MiB) fits, with a head that names its
/// repository. A longer record is refused before it is written, or before memory is allocated to
/// read it.
pub const MAX_RECORD_LEN: u64 = 128 << 20;

/// Maximum number of records in one page of a list.
pub const PAGE_COUNT: usize = 4096;

/// The number of a record. Of two stored records, the one with the lower number was appended first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u64);

impl Seq {
    /// The number of a record, from an integer.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number as an integer.
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

/// A store of records.
pub trait RecordStore: fmt::Debug + Send + Sync + 'static {
    /// Appends a record. Returns its number when the record is durable.
    fn append(&self, record: Bytes) -> BoxFuture<'_, Result<Seq, BlobError>>;

    /// Numbers of the records after `after`, ascending: at most [`PAGE_COUNT`], and none at the
    /// end.
    fn list(&self, after: Option<Seq>) -> BoxFuture<'_, Result<Vec<Seq>, BlobError>>;

    /// The number of the last record; `None` if there is no record. Reads names only.
    fn last(&self) -> BoxFuture<'_, Result<Option<Seq>, BlobError>>;

    /// The bytes of a record; `None` if it does not exist.
    fn read(&self, seq: Seq) -> BoxFuture<'_, Result<Option<Bytes>, BlobError>>;

    /// Removes a record, durably. Returns whether it existed.
    fn remove(&self, seq: Seq) -> BoxFuture<'_, Result<bool, BlobError>>;

    /// Whether the store is marked as complete, which means that every registration has a record.
    /// Reads only a directory entry.
    fn is_complete(&self) -> BoxFuture<'_, Result<bool, BlobError>>;

    /// Marks the store as complete, durably. The mark is never removed.
    fn set_complete(&self) -> BoxFuture<'_, Result<(), BlobError>>;

    /// The id of the store that these records belong to; `None` if it was never set.
    fn store_id(&self) -> BoxFuture<'_, Result<Option<StoreId>, BlobError>>;

    /// Sets the id of the store, durably. Fails if an id was set before, even the same one.
    fn set_store_id(&self, id: StoreId) -> BoxFuture<'_, Result<(), BlobError>>;

    /// From now on this process gives new records numbers greater than `seq`, whether or not a
    /// record has this number.
    fn reserve_through(&self, seq: Seq);
}

impl BlobError {
    fn record(op: &'static str, seq: Seq, source: io::Error) -> Self {
        let is_too_long = source.kind() == io::ErrorKind::FileTooLarge;
        let failed = Self::io(op, None, source);
        let kind = if is_too_long { BlobErrorKind::Corrupt } else { failed.kind };
        Self { kind, ..failed }.of_record(seq)
    }

    fn of_record(self, seq: Seq) -> Self {
        Self { source: Box::new(OfRecord { seq, source: self.source }), ..self }
    }

    fn too_long(op: &'static str, len: u64) -> Self {
        Self { op, key: None, kind: BlobErrorKind::Corrupt, source: Box::new(TooLong { len }) }
    }
}

/// Adds the number of the record to an error.
#[derive(Debug, Error)]
#[error("record {seq}")]
struct OfRecord {
    seq: Seq,
    #[source]
    source: Box<dyn StdError + Send + Sync>,
}

/// A record that exceeds [`MAX_RECORD_LEN`].
#[derive(Debug, Error)]
#[error("it has {len} bytes; the limit is {MAX_RECORD_LEN}")]
struct TooLong {
    len: u64,
}
