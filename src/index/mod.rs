//! The index: the stored xorbs, their states, and the places of their chunks.
//!
//! Three invariants hold at every moment, also after a crash:
//!
//! * **A live row implies a durable blob.** The row goes live only after the blob was published.
//! * **A blob is deleted only under a committed `Deleting` row or dead object.**
//! * **No operation moves a `Deleting` row back.**
//!
//! Each method is one whole transaction, durable when it returns `Ok`. Every change of state is one
//! conditional statement whose row count is checked, so the database decides races, not our code.
//! The index knows nothing about the storage of blobs.

mod archive;
mod claims;
mod collect;
mod compact;
#[cfg(test)]
mod conformance;
mod error;
mod files;
mod health;
mod listing;
mod migrate;
mod objects;
mod records;
mod rows;
pub mod sqlite;
mod steps;
mod usage;

use std::fmt::Debug;
use std::num::NonZeroI64;
use std::ops::Range;

use futures_util::future::BoxFuture;

pub use self::archive::{FileRecord, RestoredFile, Sha256State};
pub use self::claims::ClaimIndex;
pub use self::collect::{Collect, RemovedClaims, TermPage, TermRun, XorbLife};
pub use self::compact::{Compact, FilePage, FileSwitch, RunSwitch, Switched, TermRow, TermRowPage};
pub use self::error::{IndexError, IndexErrorKind};
pub use self::files::{
    Claim, ClaimState, DedupHit, FileRow, KnownSha256, NewFile, Reader, Registered, Registration, XorbContents,
    XorbPart,
};
pub use self::health::{
    Drift, FaultPage, FileFault, FilesHit, FutureTimes, HealthIndex, HealthSums, RepairIndex, XorbHealth,
};
pub use self::listing::{FileEntry, XorbEntry};
pub use self::objects::{DeadObject, ObjectIndex, ObjectSums};
pub use self::records::{RecordIndex, StoreMark};
pub use self::steps::{Begun, Cursor, Entered, RegisterIndex};
pub use self::usage::{Allowance, Excess, Limits, Quantity, RepoUsage, Usage, UsageIndex, record_len};
use crate::format::compression::Scheme;
use crate::format::shard::Sha256;
use crate::format::xorb::Layout;
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// The life of a xorb's row.
///
/// | state | meaning | visible | next |
/// |---|---|---|---|
/// | `Staged` | its verified upload is being published | no | `Live`, or `Deleting` |
/// | `Live` | the blob is durable and verified | yes | `Condemned` |
/// | `Condemned` | unreferenced, in its grace period | yes | `Live`, or `Deleting` |
/// | `Deleting` | the blob is being deleted | no | the row is deleted |
///
/// A staged row goes live when its blob is durable, and moves to `Deleting` when its upload fails
/// or its process dies: its blob may exist or not. A live row is condemned when it was unreferenced
/// for too long. A condemned row goes live again with a reference or an upload, and moves to
/// `Deleting` after its grace period. The row is deleted after its blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XorbState {
    /// An upload is being published.
    Staged,
    /// Readable.
    Live,
    /// Readable, until its grace period is over.
    Condemned,
    /// Being deleted.
    Deleting,
}

/// A visible xorb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XorbRow {
    /// Which one.
    pub hash: XorbHash,
    /// Which of its blobs.
    pub incarnation: Incarnation,
    /// CRC-64/NVME of the blob. Two serializations of a xorb differ in it.
    pub crc64: u64,
    /// Where its chunks are.
    pub layout: Layout,
    /// Whether its blob is known to be damaged. The row is valid then, but the bytes cannot be
    /// read.
    pub is_damaged: bool,
    /// When this blob was last described as another serialization, if ever.
    pub replaced_at: Option<Timestamp>,
}

/// What a verified upload adds to its row when it goes live.
#[derive(Clone, Debug)]
pub struct NewXorb {
    /// Which one.
    pub hash: XorbHash,
    /// CRC-64/NVME of the blob.
    pub crc64: u64,
    /// Where its chunks are.
    pub layout: Layout,
    /// The chunks' hashes, as many as the layout has chunks.
    pub chunk_hashes: Vec<ChunkHash>,
    /// The chunks' compression, as many as the layout has chunks.
    pub schemes: Vec<Scheme>,
    /// The owner that deduplication may mention it to, if known by now.
    pub owner: Option<String>,
    /// The grant of its upload, if any. It is spent from then on.
    pub grant: Option<SpentGrant>,
}

/// A grant that cannot be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentGrant {
    /// Its unique number.
    pub nonce: [u8; 16],
    /// Its end. The row is not needed afterwards.
    pub expires: Timestamp,
}

/// The columns of a xorb's chunks besides the layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkColumns {
    /// Their hashes, in order.
    pub hashes: Vec<ChunkHash>,
    /// Their compression, in order.
    pub schemes: Vec<Scheme>,
}

/// The upload that staged a row. Random, so that no two uploads have the same. Its blob has the
/// same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(i64);

impl Ticket {
    /// A new ticket.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random::<NonZeroI64>().get())
    }

    /// The name of the blob that is published under it.
    #[must_use]
    pub const fn incarnation(self) -> Incarnation {
        Incarnation::from_number(self.0.cast_unsigned())
    }
}

/// The outcome of staging a xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// The row is staged under this ticket: publish the blob, then [`Index::publish_xorb`].
    Staged,
    /// The xorb exists already. Its row is live, was touched, and has this ticket.
    Live {
        /// Bytes of its blob.
        serialized_len: u64,
    },
    /// The xorb exists, but its blob is damaged. The row was touched and has this ticket: begin an
    /// object, publish its blob, then [`ObjectIndex::replace_xorb`].
    Damaged,
    /// The xorb is being deleted; retry after that.
    Deleting,
}

/// Sums over all visible xorbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of xorbs.
    pub xorb_count: u64,
    /// Bytes of their blobs.
    pub serialized_len: u64,
    /// Bytes of their chunks.
    pub raw_len: u64,
}

/// The database. Each method is one transaction; the module lists the invariants.
pub trait Index:
    ClaimIndex
    + Collect
    + Compact
    + HealthIndex
    + ObjectIndex
    + UsageIndex
    + RecordIndex
    + RegisterIndex
    + RepairIndex
    + Debug
    + Send
    + Sync
    + 'static
{
    /// The xorb, if it is visible. One indexed read.
    fn find_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>>;

    /// Hashes and compression of its chunks, if it is visible.
    fn find_chunks(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<ChunkColumns>, IndexError>>;

    /// Claims a row for an upload before its blob is published, and names the blob. A row that is
    /// already staged gets the new ticket and the new name, so that the previous upload can no
    /// longer publish it. The previous name is a dead object then.
    fn stage_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<Staging, IndexError>>;

    /// Makes a staged row live, after its blob was published. An error of kind
    /// [`IndexErrorKind::Lost`] if the row is no longer staged under this ticket; then nothing is
    /// changed.
    fn publish_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Records a further owner of a visible xorb: deduplication may mention it to that one, too.
    /// Returns whether the xorb is visible.
    fn share_xorb(&self, hash: XorbHash, owner: String) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Those of these xorbs that are visible, have a single chunk, and do not belong to this owner.
    fn foreign_single_chunks(
        &self,
        hashes: Vec<XorbHash>,
        owner: String,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Makes a visible and sound xorb of this owner live, and touches it like an upload; `None`
    /// stands for all owners. A time before its last touch is ignored. Returns whether there is
    /// such a xorb.
    fn renew_xorb(
        &self,
        hash: XorbHash,
        owner: Option<String>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Records a grant as spent whose xorb existed already. May be repeated.
    fn spend_grant(&self, grant: SpentGrant) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Whether a grant is spent. One indexed read.
    fn is_grant_spent(&self, nonce: [u8; 16]) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Deletes the spent grants that ended before this. Returns their number.
    fn forget_grants(&self, before: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// Abandons a staged row: `Staged` → `Deleting`. Returns whether it was staged.
    fn abandon_xorb(&self, hash: XorbHash, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Deletes a row in `Deleting`, after its blob was deleted. Returns whether there was one.
    fn forget_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Every row in `Staged` or `Deleting`: the unfinished work of a dead process.
    fn unfinished_xorbs(&self) -> BoxFuture<'_, Result<Vec<(XorbHash, XorbState)>, IndexError>>;

    /// Sums over all visible xorbs. Reads one row.
    fn totals(&self) -> BoxFuture<'_, Result<Totals, IndexError>>;

    /// Every visible xorb, in no order. Reads the whole table: for checks, not for requests.
    fn list_xorbs(&self) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Layout and chunk hashes of those of these xorbs that are visible, in no order.
    fn xorb_contents(&self, hashes: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<XorbContents>, IndexError>>;

    /// These chunks of those of these xorbs that are visible, in no order. A range past the end of
    /// its xorb is cut off there. Each xorb may occur once. Takes memory for these chunks only,
    /// although the row is read whole.
    fn xorb_parts(&self, wanted: Vec<(XorbHash, ChunkRange)>) -> BoxFuture<'_, Result<Vec<XorbPart>, IndexError>>;

    /// Registers files, all or none: terms, references, readers, deduplication.
    ///
    /// Every named xorb must be visible and is live afterwards. A reference retains it, or else it
    /// was touched. The limits are checked in the same transaction, so that of two registrations
    /// that exceed one together the second is refused.
    ///
    /// The record with this number is taken in the same transaction, unless everything was known. A
    /// registration that is not [short](Registration::is_short) blocks other writers; see
    /// [`RegisterIndex`]. The caller holds the locks of its files.
    fn register_of<'a>(
        &'a self,
        registration: &'a Registration,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Registered, IndexError>>;

    /// [`register_of`](Index::register_of) without a record.
    fn register<'a>(&'a self, registration: &'a Registration) -> BoxFuture<'a, Result<Registered, IndexError>> {
        self.register_of(registration, None)
    }

    /// The file, if this reader may see it, with the terms that cover this part; without a part, no
    /// terms. The cost is proportional to the terms of the part, not of the file.
    fn find_file(
        &self,
        hash: FileHash,
        reader: Reader,
        part: Option<ByteRange>,
    ) -> BoxFuture<'_, Result<Option<FileRow>, IndexError>>;

    /// A file with this sha256: verified and visible to this reader, or else claimed by the
    /// reader's own repository. Claims of other repositories stay hidden.
    fn find_sha256(&self, sha256: Sha256, reader: Reader) -> BoxFuture<'_, Result<Option<KnownSha256>, IndexError>>;

    /// A visible and sound xorb of this owner with a chunk that clients may query; it is leased
    /// until `lease_until`. One transaction: a xorb in the response cannot be on its way to
    /// deletion.
    fn find_dedup(
        &self,
        chunk: ChunkHash,
        owner: Option<String>,
        lease_until: Timestamp,
    ) -> BoxFuture<'_, Result<Option<DedupHit>, IndexError>>;

    /// Unverified claims of a sha256, of files with a length within `lens`, in the order of their
    /// registration. `after` is the last file of the previous page.
    fn unverified_claims(
        &self,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>>;

    /// Files after `after` that this reader may see, in the order of their hashes' bytes.
    fn files_after(
        &self,
        reader: Reader,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<FileEntry>, IndexError>>;

    /// Visible xorbs after `after`, in the same order.
    fn xorbs_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbEntry>, IndexError>>;

    /// Settles a claim: the true sha256 of the file replaces all claims to it, of every repository.
    /// Returns whether there was an unverified one.
    fn settle_claim(&self, claim: Claim, state: ClaimState) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// A page of files after `after` with all their metadata, ascending by hash; empty at the end.
    /// For backups.
    fn file_records(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<Vec<FileRecord>, IndexError>>;

    /// Inserts files, all or none, and replaces existing rows of them. Every xorb of theirs must be
    /// visible, else the error is of kind [`IndexErrorKind::Lost`]. For a new index without other
    /// users: no proofs are checked.
    fn restore_files(&self, files: Vec<RestoredFile>) -> BoxFuture<'_, Result<(), IndexError>>;
}
