//! The index: which xorbs there are, in which state, and where their chunks lie.
//!
//! Three sentences hold at every moment, also after a crash:
//!
//! * **A live row implies a durable blob.** The row goes live only after the blob was published.
//! * **A blob is deleted only under a committed `Deleting` row.**
//! * **Nothing moves a `Deleting` row back.**
//!
//! Each method is one whole transaction, durable when it returns `Ok`. Every change of state is one conditional
//! statement whose row count is checked, so the database decides races, not our code. Blobs are somebody else's
//! matter: the index does not know where they are.

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
mod records;
mod rows;
pub mod sqlite;
mod steps;
mod usage;

use std::fmt::Debug;
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
pub use self::records::{Recorded, StoreMark};
pub use self::steps::{Begun, Cursor, Entered, RegisterIndex};
pub use self::usage::{Allowance, Excess, Limits, Measure, Quantity, RepoUsage, Usage, record_len};
use crate::format::compression::Scheme;
use crate::format::shard::Sha256;
use crate::format::xorb::Layout;
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// The life of a xorb's row.
///
/// | state | meaning | readers see | leaves by |
/// |---|---|---|---|
/// | `Staged` | an upload was verified and is being published; the blob may or may not exist | nothing | blob durable → `Live`; upload failed or process died → `Deleting` |
/// | `Live` | the blob is durable and verified | it | unreferenced for too long → `Condemned` |
/// | `Condemned` | unreferenced, in its grace period | it | referenced or uploaded again → `Live`; grace over → `Deleting` |
/// | `Deleting` | the blob is going away; no way back | nothing | blob deleted → row deleted |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XorbState {
    /// An upload is being published.
    Staged,
    /// Readable.
    Live,
    /// Readable, but about to go.
    Condemned,
    /// Gone, except for the last traces.
    Deleting,
}

/// A xorb that readers may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XorbRow {
    /// Which one.
    pub hash: XorbHash,
    /// CRC-64/NVME of the blob. Tells apart two serializations of one xorb.
    pub crc64: u64,
    /// Where its chunks are.
    pub layout: Layout,
    /// Whether its blob is known to be damaged: what is said here is true, but its bytes are not to be had.
    pub is_damaged: bool,
    /// When its blob was last replaced by another serialization, if it ever was.
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
    /// Within which walls deduplication may mention it: those of whoever uploaded it, if that is known by now.
    pub domain: Option<String>,
    /// The grant that it was uploaded under, if there was one. It is spent from then on.
    pub grant: Option<SpentGrant>,
}

/// A grant that is not good for an upload any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentGrant {
    /// What tells it from all others.
    pub nonce: [u8; 16],
    /// Its end; afterwards nobody needs to know that it was spent.
    pub expires: Timestamp,
}

/// What is known of a xorb's chunks beside their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkColumns {
    /// Their hashes, in order.
    pub hashes: Vec<ChunkHash>,
    /// Their compression, in order.
    pub schemes: Vec<Scheme>,
}

/// Which upload staged a row. Random, so that two uploads never hold the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(i64);

impl Ticket {
    /// A ticket that nobody else has.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

/// What staging a xorb found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// The row is staged under the ticket given: publish the blob, then [`Index::publish_xorb`].
    Staged,
    /// The xorb is there already. Its row is live, and fresh for the garbage collection.
    Live,
    /// The xorb is there, but its blob is known to be damaged. The row is as fresh, and under the ticket given: replace
    /// the blob, then [`HealthIndex::heal_xorb`].
    Damaged,
    /// The xorb is being deleted; try again when that is over.
    Deleting,
}

/// Sums over everything that readers may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of xorbs.
    pub xorb_count: u64,
    /// Bytes of their blobs.
    pub serialized_len: u64,
    /// Bytes of their chunks.
    pub raw_len: u64,
}

/// The database. Each method is one transaction; see the module for what always holds.
pub trait Index:
    ClaimIndex
    + Collect
    + Compact
    + HealthIndex
    + Measure
    + Recorded
    + RegisterIndex
    + RepairIndex
    + Debug
    + Send
    + Sync
    + 'static
{
    /// The xorb, if readers may see it. One indexed read.
    fn find_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>>;

    /// Hashes and compression of its chunks, if readers may see it.
    fn find_chunks(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<ChunkColumns>, IndexError>>;

    /// Claims a row for an upload before its blob is published. A row that is already staged changes hands: its
    /// former holder can no longer make it live.
    fn stage_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<Staging, IndexError>>;

    /// Makes a staged row live, after its blob was published. An error of kind [`IndexErrorKind::Lost`] where the row
    /// is not staged under this ticket any more; nothing is changed then.
    fn publish_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Notes that somebody of this domain has uploaded a xorb that is visible already: deduplication may mention it
    /// there as well. Returns whether it is visible.
    fn share_xorb(&self, hash: XorbHash, domain: String) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Those of these xorbs that readers may see, that have a single chunk, and that nobody of this domain has uploaded.
    fn foreign_single_chunks(
        &self,
        hashes: Vec<XorbHash>,
        domain: String,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Makes a visible and sound xorb live, and as fresh for the garbage collection as if it had just been uploaded,
    /// provided that this domain has it; `None` stands for all of them. A time before its last touch leaves that.
    /// Returns whether that is so.
    fn renew_xorb(
        &self,
        hash: XorbHash,
        domain: Option<String>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Notes that a grant is spent whose xorb was there already. May be repeated.
    fn spend_grant(&self, grant: SpentGrant) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Whether a grant is spent. One indexed read.
    fn is_grant_spent(&self, nonce: [u8; 16]) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Forgets the spent grants that ended before this. Returns how many there were.
    fn forget_grants(&self, before: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// Gives up a staged row: `Staged` → `Deleting`. Returns whether it was staged.
    fn abandon_xorb(&self, hash: XorbHash, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Forgets a row in `Deleting`, after its blob was deleted. Returns whether there was one.
    fn forget_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Every row in `Staged` or `Deleting`: what a process that died has left.
    fn unfinished_xorbs(&self) -> BoxFuture<'_, Result<Vec<(XorbHash, XorbState)>, IndexError>>;

    /// Sums over everything that readers may see. Costs one row, whatever is stored.
    fn totals(&self) -> BoxFuture<'_, Result<Totals, IndexError>>;

    /// Every xorb that readers may see, in no order. Reads the whole table: for checks, not for requests.
    fn list_xorbs(&self) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Layout and chunk hashes of those of these xorbs that readers may see, in no order.
    fn xorb_contents(&self, hashes: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<XorbContents>, IndexError>>;

    /// These chunks of those of these xorbs that readers may see, in no order; where a xorb ends earlier, those that it
    /// has, or none. Each xorb is to be named once. Takes memory for these chunks only; the row is read whole.
    fn xorb_parts(&self, wanted: Vec<(XorbHash, ChunkRange)>) -> BoxFuture<'_, Result<Vec<XorbPart>, IndexError>>;

    /// Registers files, all or none: terms, references, readers, deduplication. Every xorb named must be visible and
    /// is live afterwards, with a reference that keeps it from being collected, or else fresh: no step of a collection
    /// runs at the same time. What it leads to is compared with its allowance in the same transaction, so that of two
    /// registrations that exceed it together one is refused.
    /// The record with this number, which tells of it, is taken in the same transaction, unless everything was known.
    /// One that is not [short](Registration::is_short) keeps others from writing; see [`RegisterIndex`]. The caller has
    /// the locks of its files.
    fn register_of<'a>(
        &'a self,
        registration: &'a Registration,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Registered, IndexError>>;

    /// The same where no record tells of it.
    fn register<'a>(&'a self, registration: &'a Registration) -> BoxFuture<'a, Result<Registered, IndexError>> {
        self.register_of(registration, None)
    }

    /// The file, if this reader may see it, with the terms that these bytes of it are in; without terms where no part
    /// is asked for. Costs as much as there are terms around the part, whatever the file has.
    fn find_file(
        &self,
        hash: FileHash,
        reader: Reader,
        part: Option<ByteRange>,
    ) -> BoxFuture<'_, Result<Option<FileRow>, IndexError>>;

    /// A file with this sha256: one for which it is verified and that this reader may see, or else one for which the
    /// reader's own repository claims it. What others claim is not told.
    fn find_sha256(&self, sha256: Sha256, reader: Reader) -> BoxFuture<'_, Result<Option<KnownSha256>, IndexError>>;

    /// A visible and sound xorb that holds a chunk which clients may ask for, within a domain; its stay is promised until
    /// `lease_until`. The whole is one transaction: a xorb that is mentioned cannot be on its way out.
    fn find_dedup(
        &self,
        chunk: ChunkHash,
        domain: Option<String>,
        lease_until: Timestamp,
    ) -> BoxFuture<'_, Result<Option<DedupHit>, IndexError>>;

    /// Claims of a sha256 that nobody has verified, of files that have a length within `lens`, in the order in which they
    /// were registered: the first ones, or those after this file.
    fn unverified_claims(
        &self,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>>;

    /// Files that this reader may see, in the order of their hashes' bytes, from behind `after` on.
    fn files_after(
        &self,
        reader: Reader,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<FileEntry>, IndexError>>;

    /// Xorbs that readers may see, likewise.
    fn xorbs_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbEntry>, IndexError>>;

    /// Says what became of a claim: what the file has takes the place of all claims of its sha256, whoever has made them.
    /// Returns whether there was an unverified one.
    fn settle_claim(&self, claim: Claim, state: ClaimState) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Some files with everything that is known of them, in ascending order of their hashes from behind `after` on;
    /// none at the end. For backups.
    fn file_records(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<Vec<FileRecord>, IndexError>>;

    /// Enters files, all or none, in place of what was known of the same ones. Every xorb of theirs must be visible,
    /// else the error is of kind [`IndexErrorKind::Lost`]. For a new index that nobody else uses: nothing is proven.
    fn restore_files(&self, files: Vec<RestoredFile>) -> BoxFuture<'_, Result<(), IndexError>>;
}
