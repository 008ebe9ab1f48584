//! Xorbs: the life of their rows, where their chunks are, and who owns them.

use std::num::NonZeroI64;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::grants::SpentGrant;
use crate::format::compression::Scheme;
use crate::format::xorb::Layout;
use crate::format::{ChunkHash, ChunkRange, XorbHash};
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
/// A staged row goes live when its blob is durable. It moves to `Deleting` if its upload fails, or
/// at the next start if the server stops. Then the blob may or may not exist. A live row is
/// condemned if no file references the xorb and no client has used it for the time `gc_grace`. A
/// condemned row goes live again when the xorb is used, and otherwise moves to `Deleting` after
/// `gc_delete_delay`. In `Deleting`, the blob is deleted first, and then the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XorbState {
    /// An upload of the xorb is being published.
    Staged,
    /// The xorb is readable, unless its blob is damaged.
    Live,
    /// The xorb is still readable, unless its blob is damaged, but will be deleted.
    Condemned,
    /// The xorb is being deleted.
    Deleting,
}

/// A visible xorb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XorbRow {
    /// Its hash.
    pub hash: XorbHash,
    /// The incarnation of its blob, which distinguishes the blobs that a xorb had over time.
    pub incarnation: Incarnation,
    /// CRC-64/NVME of the blob. Different serializations of one xorb have different checksums.
    pub crc64: u64,
    /// Where in the blob its chunks are.
    pub layout: Layout,
    /// Whether its blob is known to be damaged. The row is valid even then, but the blob must not
    /// be read.
    pub is_damaged: bool,
    /// When the description of this blob was last corrected to another serialization, if ever.
    /// Layouts that were read before are wrong.
    pub replaced_at: Option<Timestamp>,
}

/// The description of a verified blob, for the row of its xorb.
#[derive(Clone, Debug)]
pub struct NewXorb {
    /// The hash of the xorb.
    pub hash: XorbHash,
    /// CRC-64/NVME of the blob.
    pub crc64: u64,
    /// Where in the blob its chunks are.
    pub layout: Layout,
    /// The chunks' hashes, as many as the layout has chunks.
    pub chunk_hashes: Vec<ChunkHash>,
    /// The chunks' compression, as many as the layout has chunks.
    pub schemes: Vec<Scheme>,
    /// The owner that deduplication may mention the xorb to; `None` adds no owner.
    pub owner: Option<String>,
    /// The grant of the upload, if any. It is recorded as spent in the same transaction.
    pub grant: Option<SpentGrant>,
}

/// What the index stores about the chunks of a xorb, besides the layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkColumns {
    /// The hash of each chunk, in order.
    pub hashes: Vec<ChunkHash>,
    /// The compression of each chunk, in order.
    pub schemes: Vec<Scheme>,
}

/// Layout and chunk hashes of a xorb. A shard is checked against them.
#[derive(Clone, Debug)]
pub struct XorbContents {
    /// Its hash.
    pub hash: XorbHash,
    /// Where in the blob its chunks are.
    pub layout: Layout,
    /// The hashes of its chunks, as many as the layout has chunks.
    pub chunk_hashes: Vec<ChunkHash>,
}

/// Consecutive chunks of a xorb. A term is checked against them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XorbPart {
    /// The hash of the xorb.
    pub xorb: XorbHash,
    /// The position of the first of these chunks in the xorb.
    pub start: u32,
    /// The number of raw bytes of each chunk.
    pub raw_lens: Vec<u32>,
    /// The hash of each chunk.
    pub chunk_hashes: Vec<ChunkHash>,
}

/// The number of the upload or repair that last wrote a row. It is random, so that no two uploads
/// have the same. The blob that an upload publishes has this number as its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(i64);

impl Ticket {
    /// A new ticket.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random::<NonZeroI64>().get())
    }

    /// Its number, as the index stores it.
    pub(super) const fn number(self) -> i64 {
        self.0
    }

    /// The ticket with this stored number.
    pub(super) const fn from_number(number: i64) -> Self {
        Self(number)
    }

    /// The incarnation of the blob that the upload with this ticket publishes.
    #[must_use]
    pub const fn incarnation(self) -> Incarnation {
        Incarnation::from_number(self.0.cast_unsigned())
    }
}

/// The outcome of staging a xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// The row is staged under this ticket: publish the blob, then [`XorbIndex::publish_xorb`].
    Staged,
    /// The xorb exists already. Its row is live, was touched, and has this ticket now.
    Live {
        /// Bytes of its blob.
        serialized_len: u64,
    },
    /// The xorb exists, but its blob is damaged. Its row is live, was touched, and has this ticket
    /// now. The caller begins an object, publishes a new blob, and then calls
    /// [`ObjectIndex::replace_xorb`](super::ObjectIndex::replace_xorb).
    Damaged,
    /// The xorb is being deleted; retry after its deletion.
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

/// The methods of [`Index`](super::Index) for xorbs.
pub trait XorbIndex {
    /// The row of a xorb, if it is visible. One indexed read.
    fn find_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>>;

    /// Hashes and compression of the chunks of a xorb, if it is visible.
    fn find_chunks(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<ChunkColumns>, IndexError>>;

    /// Layout and chunk hashes of the visible xorbs among `hashes`, in no order.
    fn xorb_contents(&self, hashes: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<XorbContents>, IndexError>>;

    /// The wanted chunks of the visible xorbs in `wanted`, in no order. A range past the end of its
    /// xorb is cut off there. Each xorb may occur once in `wanted`. The result takes memory for the
    /// wanted chunks only, although the database reads the columns of all chunks.
    fn xorb_parts(&self, wanted: Vec<(XorbHash, ChunkRange)>) -> BoxFuture<'_, Result<Vec<XorbPart>, IndexError>>;

    /// Reserves the row of a xorb for an upload, before its blob is published. A new row gets the
    /// ticket, which also names the blob. A row that is already staged gets the new ticket and the
    /// new name, so that the previous upload can no longer make it live. The previous name becomes
    /// a dead object.
    fn stage_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<Staging, IndexError>>;

    /// Makes a staged row live, after its blob was published. If the row is no longer staged under
    /// this ticket, nothing is changed, and the error is of kind
    /// [`IndexErrorKind::Lost`](super::IndexErrorKind::Lost).
    fn publish_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;

    /// Records a further owner of a visible xorb, so that deduplication may mention the xorb to
    /// this owner, too. Returns whether the xorb is visible.
    fn share_xorb(&self, hash: XorbHash, owner: String) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// The xorbs among `hashes` that are visible, have a single chunk, and do not belong to this
    /// owner.
    fn foreign_single_chunks(
        &self,
        hashes: Vec<XorbHash>,
        owner: String,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Touches a visible and sound xorb of this owner, and makes it live if it is condemned. An
    /// owner of `None` stands for any owner. If `now` is before the last touch, `since` stays as it
    /// is. Returns whether there is such a xorb.
    fn renew_xorb(
        &self,
        hash: XorbHash,
        owner: Option<String>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Abandons a staged row: `Staged` → `Deleting`. Returns whether it was staged.
    fn abandon_xorb(&self, hash: XorbHash, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Deletes a row in `Deleting`, after its blob was deleted. Returns whether there was one.
    fn forget_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Every row in `Staged` or `Deleting`. At a start these are the uploads and deletions that a
    /// stopped process did not finish.
    fn unfinished_xorbs(&self) -> BoxFuture<'_, Result<Vec<(XorbHash, XorbState)>, IndexError>>;

    /// Sums over all visible xorbs. Reads one row.
    fn totals(&self) -> BoxFuture<'_, Result<Totals, IndexError>>;

    /// Every visible xorb, in no order. For backups, not for requests, because it reads the whole
    /// table.
    fn list_xorbs(&self) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;
}
