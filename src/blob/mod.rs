//! Blobs: the bytes of xorbs, stored whole under a key and read in ranges.
//!
//! This is the contract; [`fs`], [`memory`] and `s3` implement it, and `conformance` tests it. The
//! store knows keys, byte ranges and durability. It does not know the contents of a blob. Which
//! blobs should exist is known to the index only. [`records`] is a second store, from which a lost
//! index is rebuilt.
//!
//! * A blob exists completely or not at all. Bytes become visible under a key only in
//!   [`Draft::publish`].
//! * After `publish` has returned `Ok`, the blob survives a power cut. After an error it may or may
//!   not exist.
//! * A key is normally used once, because callers publish under a new [`Incarnation`]. Publishing
//!   to an existing key replaces the blob atomically, and running reads continue with the old
//!   bytes. Only a repair does this, with the same bytes.
//! * A read returns exactly the requested bytes or ends with an error. It is never short.
//! * Deleting a missing blob succeeds.

#[cfg(test)]
mod conformance;
pub mod fs;
pub mod memory;
pub mod records;
#[cfg(feature = "s3")]
pub mod s3;

use std::error::Error as StdError;
use std::fmt;
use std::future::ready;
use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use rustix::fs::statvfs;
use thiserror::Error;

use crate::format::{ByteRange, XorbHash};
use crate::runtime::incarnation::Incarnation;
use crate::runtime::outage::Outage;

/// A store of blobs.
pub trait BlobStore: fmt::Debug + Send + Sync + 'static {
    /// Begins a blob that has no key yet. Blocks; to be called on a blocking thread.
    ///
    /// # Errors
    ///
    /// A draft cannot be created.
    fn draft(&self) -> Result<Box<dyn Draft>, BlobError>;

    /// Opens a blob and streams the bytes of `range` in pieces of a few 100 KiB; `None` if the blob
    /// does not exist.
    ///
    /// If the blob is shorter than `range`, the stream ends with an error of kind
    /// [`BlobErrorKind::Corrupt`].
    fn read(&self, key: BlobKey, range: ByteRange) -> BoxFuture<'_, Result<Option<BlobStream>, BlobError>>;

    /// Length of a blob in bytes; `None` if it does not exist. If the directory of the blob is
    /// missing, this is an error, because the disk may not be mounted.
    fn head(&self, key: BlobKey) -> BoxFuture<'_, Result<Option<u64>, BlobError>>;

    /// Removes a blob, durably. Returns whether the blob existed.
    fn delete(&self, key: BlobKey) -> BoxFuture<'_, Result<bool, BlobError>>;

    /// All keys, unordered.
    fn list(&self) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>>;

    /// All keys of one group, unordered. The keys of a group have a hash whose text begins with the
    /// two hexadecimal digits of the byte `group`. So 256 calls list the store without having all
    /// keys in memory at once.
    fn list_group(&self, group: u8) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        async move {
            let mut keys = self.list().await?;
            keys.retain(|key| key.group() == group);
            Ok(keys)
        }
        .boxed()
    }

    /// All keys of this xorb, unordered. As expensive as [`list_group`](Self::list_group).
    fn list_of(&self, hash: XorbHash) -> BoxFuture<'_, Result<Vec<BlobKey>, BlobError>> {
        async move {
            let mut keys = self.list_group(BlobKey::new(hash, Incarnation::UNNAMED).group()).await?;
            keys.retain(|key| key.xorb_hash() == hash);
            Ok(keys)
        }
        .boxed()
    }

    /// The number of drafts, including those of running uploads.
    fn draft_count(&self) -> BoxFuture<'_, Result<usize, BlobError>> {
        async { Ok(0) }.boxed()
    }

    /// Removes all drafts, which a stopped process has left, and returns their number. To be called
    /// only at the start, when this process has no drafts.
    fn remove_stray_drafts(&self) -> BoxFuture<'_, Result<usize, BlobError>>;

    /// Checks that the store can be written to: writes some bytes and removes them.
    fn probe(&self) -> BoxFuture<'_, Result<(), BlobError>>;

    /// Closes cached files of removed blobs, which frees their disk space. Cheap enough to be
    /// called every second.
    fn close_removed(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    /// Free bytes, according to the file system of the store; `None` if unknown.
    fn free_len(&self) -> BoxFuture<'_, Result<Option<u64>, BlobError>>;

    /// The maker of URLs with which clients read blobs from where they are; `None` if clients can
    /// read only through the server.
    fn direct(&self) -> Option<&dyn DirectUrls> {
        None
    }
}

/// Makes URLs with which clients read ranges of blobs past the server.
pub trait DirectUrls: fmt::Debug + Send + Sync + 'static {
    /// A URL for `GET` with the header `Range` of this range, valid for `life` from now. It opens
    /// no other range and no other blob, if [`check`](Self::check) was successful. `None` if it
    /// cannot be signed. Sends nothing: the blob may not exist.
    fn sign(&self, key: BlobKey, range: ByteRange, life: Duration) -> Option<String>;

    /// Checks that URLs open what they are signed for, and nothing else. The error says which of
    /// the two does not hold, or that it could not be found out.
    fn check(&self) -> BoxFuture<'_, Result<(), BlobError>>;
}

/// A blob that is being written. If it is dropped before `publish`, its bytes are removed.
pub trait Draft: fmt::Debug + Send + 'static {
    /// Appends bytes. Blocks; to be called on a blocking thread.
    ///
    /// # Errors
    ///
    /// The bytes could not be written, and the caller must drop the draft.
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError>;

    /// Writes the buffered bytes. So a write error is reported before the caller's next step for
    /// this blob, such as staging its row in the index. Blocks, like a write.
    ///
    /// # Errors
    ///
    /// See [`Draft::write`].
    fn flush(&mut self) -> Result<(), BlobError>;

    /// Returns the written bytes instead of publishing them, and removes the draft. Blocks, like a
    /// write.
    ///
    /// # Errors
    ///
    /// See [`Draft::write`]. Also if the bytes cannot be read back.
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
    /// The key of one blob of a xorb.
    #[must_use]
    pub const fn new(hash: XorbHash, incarnation: Incarnation) -> Self {
        Self { hash, incarnation }
    }

    /// The byte that the first two hexadecimal digits of the hash represent.
    fn group(&self) -> u8 {
        let name = self.hash.to_string();
        name.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or_default()
    }

    /// The hash of the xorb.
    #[must_use]
    pub const fn xorb_hash(&self) -> XorbHash {
        self.hash
    }

    /// The number that distinguishes this blob from other blobs of the same xorb.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Parses the text of [`Display`](fmt::Display).
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

/// A failed operation on a store of blobs or records, with its cause.
#[derive(Debug, Error)]
#[error("blob store: cannot {op}{}", .key.map(|key| format!(" xorb {key}")).unwrap_or_default())]
pub struct BlobError {
    /// The operation, as an infinitive such as "begin a draft".
    pub op: &'static str,
    /// The key of the blob, if the operation is about a single blob.
    pub key: Option<BlobKey>,
    /// How the caller may react.
    pub kind: BlobErrorKind,
    /// The cause.
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

/// How a caller may react to a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobErrorKind {
    /// The disk is full: the operator has to act.
    NoSpace,
    /// The machine or its disk fails, possibly for a while only.
    Outage(Outage),
    /// The stored bytes have the wrong length, so they are not those that were written. Also an
    /// appended record that is too long.
    Corrupt,
    /// Anything else; a retry may succeed.
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

/// Free bytes of the file system with this directory. Blocks.
fn free_len_of(directory: &Path) -> io::Result<u64> {
    let space = statvfs(directory)?;
    // `f_bavail` excludes the blocks that the file system reserves for root.
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// A blob that ends before the end of the requested range.
#[derive(Debug, Error)]
#[error("the blob ends at byte {at}; requested bytes {range}")]
struct ShortBlob {
    range: ByteRange,
    at: u64,
}
