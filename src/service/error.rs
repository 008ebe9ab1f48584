//! Errors that callers branch on, one enum per verb.

use std::time::Duration;

use thiserror::Error;

use super::reconstruct::Inconsistency;
use crate::blob::{BlobError, BlobErrorKind};
use crate::format::xorb::XorbError;
use crate::format::{FileHash, XorbHash};
use crate::index::{IndexError, IndexErrorKind};
use crate::runtime::fair::Busy;
use crate::runtime::outage::Outage;

/// Why an upload was refused. Nothing of it is visible.
#[derive(Debug, Error)]
pub enum UploadError {
    /// Too many uploads are in flight.
    #[error("too many uploads are in flight")]
    Overloaded {
        /// When to try again.
        retry_after: Duration,
    },
    /// The tenant has its share of uploads in flight, and other tenants wait.
    #[error("the tenant has its share of uploads in flight")]
    AboveShare {
        /// When to try again.
        retry_after: Duration,
    },
    /// The body is longer than this endpoint takes.
    #[error("the body is longer than {limit} bytes")]
    TooLarge {
        /// Maximum bytes.
        limit: u64,
    },
    /// The bytes are not a xorb.
    #[error(transparent)]
    Invalid(#[from] XorbError),
    /// The bytes are a xorb, but another one.
    #[error("the xorb has the hash {actual}, not {claimed}")]
    HashMismatch {
        /// The hash in the request.
        claimed: XorbHash,
        /// The hash of the bytes.
        actual: XorbHash,
    },
    /// The bytes are the xorb, but not in the serialization of the grant.
    #[error("the grant is for {len} bytes with another checksum, or for another number of bytes")]
    NotAsGranted {
        /// Bytes that the grant is for.
        len: u64,
    },
    /// The bytes of this grant have been received before.
    #[error("the grant has been used")]
    GrantSpent,
    /// There are no bytes to commit: none were sent under this grant, or they have expired.
    #[error("no bytes were received for this grant")]
    NothingSent,
    /// The connection or the request ended before the body did.
    #[error("the body ended early")]
    Aborted(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The client stopped sending, or sends too slowly.
    #[error("the body makes no progress")]
    Stalled,
    /// Other tenants wait, this tenant is above its share, and this body is its slowest.
    #[error("the body is the slowest while other tenants wait")]
    TooSlow,
    /// This xorb is being deleted at the moment.
    #[error("the xorb is being deleted")]
    BeingDeleted {
        /// When to try again.
        retry_after: Duration,
    },
    /// The xorb was stored when this upload began, so nothing was written. Its blob was found
    /// damaged meanwhile.
    #[error("the stored xorb is damaged")]
    FoundDamaged {
        /// When to try again.
        retry_after: Duration,
    },
    /// The store failed.
    #[error("the upload could not be stored")]
    Store(#[from] StoreError),
}

/// Why stored bytes could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The index has a xorb whose blob is missing.
    #[error("xorb {hash} is in the index, but its blob is missing")]
    Missing {
        /// Which xorb.
        hash: XorbHash,
    },
    /// It was deleted after the reader had found it in the index.
    #[error("xorb {hash} no longer exists")]
    Deleted {
        /// Which xorb.
        hash: XorbHash,
    },
    /// The stored bytes do not decode.
    #[error("the blob of xorb {hash} is damaged")]
    Damaged {
        /// Which xorb.
        hash: XorbHash,
        /// The fault.
        #[source]
        source: XorbError,
    },
    /// The stored bytes decode, but not to the uploaded chunk.
    #[error("chunk {chunk} of xorb {hash} is not what was uploaded: the blob is damaged")]
    Altered {
        /// Which xorb.
        hash: XorbHash,
        /// Index of the chunk.
        chunk: u32,
    },
    /// The blob is known to be damaged, and is not opened.
    #[error("the blob of xorb {hash} is known to be damaged")]
    Quarantined {
        /// Which xorb.
        hash: XorbHash,
    },
    /// The blob was replaced by another serialization or deleted during the read. A retry succeeds
    /// or gets [`Deleted`](Self::Deleted).
    #[error("the blob of xorb {hash} was replaced")]
    Replaced {
        /// Which xorb.
        hash: XorbHash,
    },
    /// The file was removed during the read.
    #[error("file {file} no longer exists")]
    Removed {
        /// Which file.
        file: FileHash,
    },
    /// The rows of a file contradict each other.
    #[error("file {file} cannot be read")]
    Inconsistent {
        /// Which file.
        file: FileHash,
        /// How.
        #[source]
        source: Inconsistency,
    },
    /// The store failed.
    #[error("the xorb could not be read")]
    Store(#[from] StoreError),
}

/// A failure of the store itself; opaque to clients.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The blob store failed.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The index failed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// Nothing failed: the load is too high.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// Less space is free than the operator reserves.
    #[error("{free_len} bytes are free, min_free_space is {min_free_len}")]
    LowSpace {
        /// Bytes that are free.
        free_len: u64,
        /// The reserve in bytes.
        min_free_len: u64,
    },
}

/// What a client is told about a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The disk is full, or free space is below the reserve.
    NoSpace,
    /// Trying again may help.
    Unavailable,
    /// The load is too high, and this tenant is not above its share; trying again helps.
    Overloaded,
    /// The tenant is above its share; trying again helps.
    AboveShare,
    /// A temporary failure of the machine, with advice for the operator.
    Outage(Outage),
    /// A fault that a retry does not fix: damage, a bug, or an index of another version.
    Broken,
}

impl StoreError {
    /// The kind for the client.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        match self {
            Self::LowSpace { .. } => StoreErrorKind::NoSpace,
            Self::Blob(error) => match error.kind {
                BlobErrorKind::NoSpace => StoreErrorKind::NoSpace,
                BlobErrorKind::Outage(outage) => StoreErrorKind::Outage(outage),
                BlobErrorKind::Corrupt | BlobErrorKind::Other => StoreErrorKind::Broken,
            },
            Self::Busy(Busy { is_above_share: false }) => StoreErrorKind::Overloaded,
            Self::Busy(Busy { is_above_share: true }) => StoreErrorKind::AboveShare,
            Self::Index(error) => match error.kind {
                IndexErrorKind::NoSpace => StoreErrorKind::NoSpace,
                IndexErrorKind::Outage(outage) => StoreErrorKind::Outage(outage),
                IndexErrorKind::Unavailable | IndexErrorKind::Lost => StoreErrorKind::Unavailable,
                IndexErrorKind::Inconsistent
                | IndexErrorKind::Damaged
                | IndexErrorKind::Newer
                | IndexErrorKind::Older
                | IndexErrorKind::Other => StoreErrorKind::Broken,
            },
        }
    }
}
