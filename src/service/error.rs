//! The errors of uploads, reads and registrations, and the errors of the store itself.
//! `http/error.rs` turns each variant into a response. Other operations define their errors in
//! their own modules.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use super::reconstruct::Inconsistency;
use crate::blob::{BlobError, BlobErrorKind};
use crate::format::shard::ParseError;
use crate::format::xorb::XorbError;
use crate::format::{ChunkRange, FileHash, XorbHash};
use crate::index::{Allowance, Excess, IndexError, IndexErrorKind, Quantity};
use crate::runtime::fair::Busy;
use crate::runtime::outage::Outage;

/// Why an upload failed. The upload has made nothing visible. After [`Store`](Self::Store) this is
/// not certain, because a transaction may be committed although it reports an error.
#[derive(Debug, Error)]
pub enum UploadError {
    /// Too many uploads are in flight.
    #[error("too many uploads are in flight")]
    Overloaded {
        /// How long the client is told to wait before it retries.
        retry_after: Duration,
    },
    /// The tenant has its share of uploads in flight, and other tenants need the rest.
    #[error("the tenant has its share of uploads in flight")]
    AboveShare {
        /// How long the client is told to wait before it retries.
        retry_after: Duration,
    },
    /// The body is longer than this endpoint accepts.
    #[error("the body is longer than {limit} bytes")]
    TooLarge {
        /// Maximum length of the body in bytes.
        limit: u64,
    },
    /// The bytes are not a xorb.
    #[error(transparent)]
    Invalid(#[from] XorbError),
    /// The bytes are a valid xorb, but not the one that the request names.
    #[error("the xorb has the hash {actual}, not {claimed}")]
    HashMismatch {
        /// The hash in the request.
        claimed: XorbHash,
        /// The hash of the bytes.
        actual: XorbHash,
    },
    /// The length or checksum of the bytes is not that of the grant.
    #[error("the grant is for {len} bytes with another checksum, or for another number of bytes")]
    NotAsGranted {
        /// The number of bytes that the grant is for.
        len: u64,
    },
    /// The bytes of this grant were received before, or the grant was committed.
    #[error("the grant has been used")]
    GrantSpent,
    /// The grant cannot be committed: no bytes were sent under it, or they were discarded.
    #[error("no bytes were received for this grant")]
    NothingSent,
    /// The connection or the request ended before the body did.
    #[error("the body ended early")]
    Aborted(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The client stopped sending, or sends too slowly.
    #[error("the body makes no progress")]
    Stalled,
    /// The upload was cut: another tenant needs its slot, this tenant is above its share, and this
    /// body is one of the slowest.
    #[error("the body is the slowest while other tenants wait")]
    TooSlow,
    /// GC is deleting this xorb now.
    #[error("the xorb is being deleted")]
    BeingDeleted {
        /// How long the client is told to wait before it retries.
        retry_after: Duration,
    },
    /// The xorb was stored when this upload began, so the received bytes were verified but not
    /// written to a draft. Meanwhile the stored blob was found damaged, so the bytes are needed.
    #[error("the stored xorb is damaged")]
    FoundDamaged {
        /// How long the client is told to wait before it retries.
        retry_after: Duration,
    },
    /// The store failed.
    #[error("the upload could not be stored")]
    Store(#[from] StoreError),
}

/// Why stored bytes could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The index has a row of a xorb whose blob is missing or too short. Or a stored file needs a
    /// xorb without a row.
    #[error("xorb {hash} is in the index, but its blob is missing")]
    Missing {
        /// Which xorb.
        hash: XorbHash,
    },
    /// The xorb was deleted after the reader had found it in the index.
    #[error("xorb {hash} no longer exists")]
    Deleted {
        /// Which xorb.
        hash: XorbHash,
    },
    /// The stored bytes cannot be decoded.
    #[error("the blob of xorb {hash} is damaged")]
    Damaged {
        /// Which xorb.
        hash: XorbHash,
        /// Why the bytes cannot be decoded.
        #[source]
        source: XorbError,
    },
    /// The stored bytes can be decoded, but the result does not have the hash of the chunk.
    #[error("chunk {chunk} of xorb {hash} is not what was uploaded: the blob is damaged")]
    Altered {
        /// Which xorb.
        hash: XorbHash,
        /// Index of the chunk.
        chunk: u32,
    },
    /// The row of the xorb says that its blob is damaged, so the blob is not read.
    #[error("the blob of xorb {hash} is known to be damaged")]
    Quarantined {
        /// Which xorb.
        hash: XorbHash,
    },
    /// The blob was replaced by another serialization of the xorb after the reader had found its
    /// layout. A retry reads the new blob.
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
        /// The contradiction.
        #[source]
        source: Inconsistency,
    },
    /// The store failed.
    #[error("the xorb could not be read")]
    Store(#[from] StoreError),
}

/// Why a shard was refused. Nothing of it was entered.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// The bytes are not a shard.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// A xorb that the shard names does not exist.
    #[error("xorb {xorb} is not stored")]
    MissingXorb {
        /// The xorb.
        xorb: XorbHash,
    },
    /// The blob of a xorb that the shard names is known to be damaged.
    #[error("xorb {xorb} is damaged")]
    DamagedXorb {
        /// The xorb.
        xorb: XorbHash,
    },
    /// A xorb of the shard has other chunks or lengths than the shard states.
    #[error("xorb {xorb} has other chunks than the shard states")]
    OtherChunks {
        /// The xorb.
        xorb: XorbHash,
    },
    /// A term names chunks that its xorb does not have, or states another length.
    #[error("term {term} of file {file} does not match chunks {chunks} of xorb {xorb} in length")]
    Term {
        /// The file.
        file: FileHash,
        /// The index of the term in the file, from 0.
        term: usize,
        /// The xorb that it names.
        xorb: XorbHash,
        /// The chunks that it names.
        chunks: ChunkRange,
    },
    /// The client did not prove that it knows the chunks of a term.
    #[error("the verification hash of term {term} of file {file} is missing or wrong")]
    NoProof {
        /// The file.
        file: FileHash,
        /// The index of the term in the file, from 0.
        term: usize,
        /// The xorb that it names.
        xorb: XorbHash,
    },
    /// The terms hash to another file.
    #[error("the terms hash to file {actual}, not {claimed}")]
    FileHash {
        /// The hash in the shard.
        claimed: FileHash,
        /// The hash of the terms.
        actual: FileHash,
    },
    /// The file is registered with another sha256.
    #[error("file {file} has another sha256")]
    OtherSha256 {
        /// The file.
        file: FileHash,
        /// Whether the file was read and has the other sha256. If not, the file will be read soon.
        is_verified: bool,
    },
    /// The registration would exceed a quota.
    #[error(transparent)]
    OverQuota(OverQuota),
    /// The store failed.
    #[error("the shard could not be registered")]
    Store(#[from] StoreError),
}

/// A registration was refused because it would exceed a limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct OverQuota {
    /// The repository or owner that has the limit. An owner has `/*` after its name.
    pub holder: String,
    /// The limited quantity.
    pub quantity: Quantity,
    /// The limit.
    pub limit: u64,
    /// The usage.
    pub used: u64,
    /// The increase by the registration.
    pub added: u64,
}

impl OverQuota {
    pub(super) fn new(repo: &str, allowance: &Allowance, excess: Excess) -> Self {
        let owner = allowance.owner.as_ref().filter(|_| excess.is_owner_wide);
        let holder = owner.map_or_else(|| repo.to_owned(), |(owner, _)| format!("{owner}/*"));
        let Excess { quantity, limit, used, added, .. } = excess;
        Self { holder, quantity, limit, used, added }
    }
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.quantity {
            Quantity::Files => "files",
            Quantity::LogicalBytes => "bytes of files",
            Quantity::PhysicalBytes => "stored bytes",
        };
        let Self { holder, limit, used, added, .. } = self;
        write!(f, "{holder} uses {used} of {limit} {what}, and this would add {added}")
    }
}

/// A failure of the store itself. A client is told only its [kind](StoreError::kind).
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
    /// The disk has less free space than the setting `min_free_space`.
    #[error("{free_len} bytes are free, min_free_space is {min_free_len}")]
    LowSpace {
        /// Free space in bytes.
        free_len: u64,
        /// The setting, in bytes.
        min_free_len: u64,
    },
}

/// What a client is told about a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The disk is full, or its free space is below `min_free_space`.
    NoSpace,
    /// The index is busy, or another operation changed the row first. A retry may succeed.
    Unavailable,
    /// The load is too high, although this tenant is not above its share. A later retry can
    /// succeed.
    Overloaded,
    /// The load is too high, and this tenant is above its share. A later retry can succeed.
    AboveShare,
    /// A temporary failure of the machine; [`Outage`] has advice for the operator.
    Outage(Outage),
    /// A fault that a retry does not fix: damage, a bug, or an index of another version.
    Broken,
}

impl StoreError {
    /// What a client is told about this error.
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
                IndexErrorKind::Unavailable | IndexErrorKind::InProgress | IndexErrorKind::Lost => {
                    StoreErrorKind::Unavailable
                }
                IndexErrorKind::Inconsistent
                | IndexErrorKind::Damaged
                | IndexErrorKind::Newer
                | IndexErrorKind::Older
                | IndexErrorKind::Other => StoreErrorKind::Broken,
            },
        }
    }
}
