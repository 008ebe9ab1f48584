//! Blobs: the bytes of xorbs, stored whole under a key and read in ranges.
//!
//! This is the contract; [`fs`] and [`memory`] keep it, and `conformance` is the same contract as a
//! test suite. The store knows keys, byte ranges and durability. It does not know what is in a
//! blob, and it keeps no list of what ought to exist: that is the index. Beside it [`records`] are
//! kept, of which the index can be made again.
//!
//! * A blob is either wholly there or not there. Bytes become visible under a key only in
//!   [`Draft::publish`].
//! * After `publish` returned `Ok`, the blob survives a power cut. After an error it may or may not
//!   be there.
//! * A key is used once: callers publish under a new [`Incarnation`]. Publishing to a key that
//!   exists replaces the blob in one step; readers that have begun keep the old bytes. Only a
//!   repair does that, with the same bytes.
//! * A read gives exactly the bytes asked for or ends in an error, never short.
//! * Deleting what is not there is a success.

#[cfg(test)]
mod conformance;
pub mod fs;
pub mod memory;
pub mod records;

use std::error::Error as StdError;
use std::fmt;
use std::future::ready;
use std::io;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use thiserror::Error;

use crate::format::{ByteRange, XorbHash};
use crate::runtime::incarnation::Incarnation;
use crate::runtime::outage::Outage;

/// Where blobs are kept.
pub trait BlobStore: fmt::Debug + Send + Sync + 'static {
    /// Begins a blob that has no key yet. Blocks; to be called on a blocking thread.
    ///
    /// # Errors
    ///
    /// The store cannot take data now.
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError>;

    /// Opens a blob and streams the bytes of `range` in pieces of a few 100 KiB; `None` where there
    /// is no such blob.
    ///
    /// A blob that ends before `range` does makes the stream end with an error of kind
    /// [`BlobErrorKind::Corrupt`].
    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>>;

    /// Length of a blob in bytes; `None` if it does not exist. A missing directory is an error
    /// instead: it says nothing about the blob.
    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>>;

    /// Removes a blob, durably. Returns whether there was one.
    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>>;

    /// Every key there is, in no order.
    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>>;

    /// Every key whose hash begins with this byte as text, unordered. 256 calls list the store
    /// without holding all keys at once.
    fn list_group(&self, group: u8) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        async move {
            let mut keys = self.list().await?;
            keys.retain(|key| key.group() == group);
            Ok(keys)
        }
        .boxed()
    }

    /// Every key of this hash, unordered. As expensive as [`list_group`](Self::list_group).
    fn list_of(&self, hash: XorbHash) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        async move {
            let mut keys = self.list_group(BlobKey::new(hash, Incarnation::UNNAMED).group()).await?;
            keys.retain(|key| key.xorb_hash() == hash);
            Ok(keys)
        }
        .boxed()
    }

    /// How many drafts there are, those of running uploads included.
    fn draft_count(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        async { Ok(0) }.boxed()
    }

    /// Removes what drafts of a process that died have left. Only for the start, when there are no
    /// drafts. Returns how many there were.
    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>>;

    /// Proves that the store takes data: writes a little and removes it again.
    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>>;

    /// Closes cached files of removed blobs, which frees their disk space. Cheap enough for every
    /// second.
    fn close_removed(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    /// Bytes that it can take before it is full, as far as its file system says; `None` where there
    /// is no telling.
    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>>;
}

/// A blob that is being written. It is removed if it is dropped unpublished.
pub trait Draft: fmt::Debug + Send + 'static {
    /// Appends bytes. Blocks; to be called on a blocking thread.
    ///
    /// # Errors
    ///
    /// The bytes could not be written; the draft must be dropped.
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError>;

    /// Hands over what was collected of the bytes, so that what is against them is known before
    /// anything else is done for this blob. Blocks, like a write.
    ///
    /// # Errors
    ///
    /// Those of [`Draft::write`].
    fn flush(&mut self) -> Result<(), BlobError>;

    /// Returns the written bytes instead of publishing them, and removes the draft. Blocks, like a
    /// write.
    ///
    /// # Errors
    ///
    /// Those of [`Draft::write`], or the bytes cannot be read back.
    fn into_bytes(self: Box<Self>) -> Result<Vec<u8>, BlobError>;

    /// Makes the blob durable and visible under `key`.
    fn publish(self: Box<Self>, key: BlobKey) -> BoxFuture<'static, Result<(), BlobError>>;
}

/// Pieces of a blob, in order.
pub type BlobStream = BoxStream<'static, Result<Bytes, BlobError>>;

/// The name of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlobKey {
    hash: XorbHash,
    incarnation: Incarnation,
}

impl BlobKey {
    /// The key of one of a xorb's blobs.
    #[must_use]
    pub const fn new(hash: XorbHash, incarnation: Incarnation) -> Self {
        Self { hash, incarnation }
    }

    /// The first byte of the hash as text.
    fn group(&self) -> u8 {
        let name = self.hash.to_string();
        name.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or_default()
    }

    /// The xorb whose blob this is.
    #[must_use]
    pub const fn xorb_hash(&self) -> XorbHash {
        self.hash
    }

    /// Which of its blobs.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The key with this text, if it is one.
    fn parse(text: &str) -> Option<Self> {
        let (hash, incarnation) = match text.split_once('.') {
            None => (text, Incarnation::UNNAMED),
            Some((hash, incarnation)) => (hash, Incarnation::parse(incarnation)?),
        };
        Some(Self { hash: hash.parse().ok()?, incarnation })
    }
}

impl fmt::Display for BlobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation {
            Incarnation::UNNAMED => write!(f, "{}", self.hash),
            incarnation => write!(f, "{}.{incarnation}", self.hash),
        }
    }
}

/// An operation on the store that failed: what was done to what, and why it did not work.
#[derive(Debug, Error)]
#[error("blob store: cannot {op}{}", .key.map(|key| format!(" xorb {key}")).unwrap_or_default())]
pub struct BlobError {
    /// What was being done, as an infinitive.
    pub op: &'static str,
    /// What it was done to, where there is a key.
    pub key: Option<BlobKey>,
    /// What the caller may want to do about it.
    pub kind: BlobErrorKind,
    /// What went wrong below.
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

/// What a caller may want to do about a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobErrorKind {
    /// No space left: the operator has to free some.
    NoSpace,
    /// The machine cannot do it for now.
    Outage(Outage),
    /// The stored bytes are not what they were.
    Corrupt,
    /// Anything else; trying again may help.
    Other,
}

impl BlobError {
    fn io(op: &'static str, key: Option<BlobKey>, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => BlobErrorKind::NoSpace,
            io::ErrorKind::UnexpectedEof => BlobErrorKind::Corrupt,
            _ => Outage::of(&source).map_or(BlobErrorKind::Other, BlobErrorKind::Outage),
        };
        Self { op, key, kind, source: Box::new(source) }
    }

    fn short(key: BlobKey, range: ByteRange, at: u64) -> Self {
        let missing = ShortBlob { range, at };
        Self { op: "read", key: Some(key), kind: BlobErrorKind::Corrupt, source: Box::new(missing) }
    }
}

/// A blob that ends within the bytes that the index says it has.
#[derive(Debug, Error)]
#[error("the blob ends at byte {at}; requested bytes {range}")]
struct ShortBlob {
    range: ByteRange,
    at: u64,
}
