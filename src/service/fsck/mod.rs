//! The check of a whole store: rows against blobs, blobs against rows, references against terms.
//!
//! [`Walk`] reads the store and returns findings, a page at a time. [`Finding::repair`](Repair)
//! proposes a repair for each, and [`Fsck::execute`] performs it. Every repair checks again, in its
//! own transaction, so that meanwhile changes stay and a second repair does nothing.
//!
//! # Beside a running server
//!
//! Finding is reading. Repairs in one conditional statement are safe beside a server as well:
//! marking a row as damaged or sound, rebuilding references, correcting totals. The others replace
//! blobs or treat unfinished uploads as dead. They need the store for themselves
//! ([`Presence::Alone`]); otherwise they are left.
//!
//! **A blob that the index does not know is never deleted directly.** Its name becomes a dead
//! object first, so that no row gets it. Then the blob is deleted, then the object. An upload names
//! its blob in the index before it publishes it, so such a blob is not that of a running upload.
//! One process at a time deletes blobs of a store (see [`gc`](super::gc)): the caller of
//! [`Fsck::execute`] holds that right. A sound blob of a xorb without a row is worth more than its
//! space: its row may have been lost, and files may need it. It is entered as a live xorb, which
//! the garbage collection deletes if no file refers to it. It also takes the place of a damaged
//! blob of its xorb.
//!
//! A crash leaves each repair whole or not begun, with two exceptions. The blob of a dead object is
//! deleted by garbage collection. A xorb that is marked as damaged and was just repaired is found
//! by the next run.
//!
//! # Times in the future
//!
//! A clock that ran ahead leaves times in the future. Until these have passed, ages mean nothing:
//! no garbage is collected, verified blobs are not read again, and URLs of replaced ones are
//! refused. They can be set back to the present. Every touch was before now, so counting from now
//! shortens no client's time. Xorbs that were condemned in the future are made live, since the
//! wrong clock condemned them.
//!
//! But it looks the same where *this* clock is behind, and all others are right. Set back to a
//! wrong present, a xorb touched today would look years old once the clock is right again, and be
//! deleted. A program cannot distinguish the two, so the operator must decide
//! ([`Fsck::trusts_clock`]); otherwise the finding is left.
//!
//! Leases are left as they are: clients rely on them, and a lease that is too long only costs
//! space.
//!
//! # Memory
//!
//! A page of rows, the names of one directory of blobs in 256, and the xorbs of one file. A heal
//! from an archive also holds the hashes to be healed.

mod execute;
mod plan;

use std::sync::Arc;

pub use self::execute::Outcome;
pub use self::plan::Walk;
use super::verify::BlobVerifier;
use crate::blob::{BlobKey, BlobStore};
use crate::format::{FileHash, XorbHash};
use crate::index::{Drift, FilesHit, Index};
use crate::runtime::blocking::Pool;
use crate::runtime::clock::Clock;

/// Files that a finding names, at most.
const NAMED_FILE_COUNT: u32 = 10;

/// Whether other processes may be using the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// This process has locked the data directory: no server runs.
    Alone,
    /// A server may run.
    Shared,
}

/// A store to be checked.
#[derive(Clone, Debug)]
pub struct Fsck {
    /// Its blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// The index.
    pub index: Arc<dyn Index>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Where blobs are verified.
    pub pool: Pool,
    /// Whether other processes may be using the store.
    pub presence: Presence,
    /// Whether every blob is read and hashed, instead of only its length checked.
    pub is_deep: bool,
    /// Whether the operator has confirmed that the clock is right, so that times in the future are
    /// set back to it.
    pub trusts_clock: bool,
}

/// The kind of a finding. Names never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A row has no blob.
    MissingBlob,
    /// A blob is shorter or longer than its row says, and not the xorb.
    WrongLength,
    /// A blob is not the xorb.
    WrongBytes,
    /// A blob is the xorb, and its row describes another serialization of it.
    WrongRow,
    /// A row says "damaged", and the blob is sound.
    FalseAlarm,
    /// A blob could not be checked.
    Unchecked,
    /// A sound blob has no row.
    OrphanBlob,
    /// A blob without a row is not a xorb.
    OrphanGarbage,
    /// The terms of a file name xorbs that do not exist.
    LostXorbs,
    /// The references of a file differ from its terms.
    WrongReferences,
    /// The terms of a file do not parse.
    UnreadableTerms,
    /// The totals differ from the sums over all rows.
    WrongTotals,
    /// A row of an upload or a deletion that was interrupted.
    UnfinishedRow,
    /// Drafts of uploads that were interrupted.
    TemporaryFiles,
    /// Times in the future.
    FutureTimes,
    /// Records that a crash has left and the index has not applied.
    UntakenRecords,
}

impl Kind {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MissingBlob => "missing_blob",
            Self::WrongLength => "wrong_length",
            Self::WrongBytes => "wrong_bytes",
            Self::WrongRow => "wrong_row",
            Self::FalseAlarm => "false_alarm",
            Self::Unchecked => "unchecked",
            Self::OrphanBlob => "orphan_blob",
            Self::OrphanGarbage => "orphan_garbage",
            Self::LostXorbs => "lost_xorbs",
            Self::WrongReferences => "wrong_references",
            Self::UnreadableTerms => "unreadable_terms",
            Self::WrongTotals => "wrong_totals",
            Self::UnfinishedRow => "unfinished_row",
            Self::TemporaryFiles => "temporary_files",
            Self::FutureTimes => "future_times",
            Self::UntakenRecords => "unapplied_records",
        }
    }
}

/// The proposed repair of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// The row is marked as damaged: the xorb is not served until it is uploaded again or restored
    /// from an archive.
    Quarantine,
    /// The row is marked as sound.
    Release,
    /// The row is written anew from the blob.
    Describe,
    /// The blob gets a row.
    Adopt,
    /// The name becomes a dead object, then the blob is removed.
    Remove,
    /// The references are rebuilt from the terms.
    Rebuild,
    /// The difference is added to the totals.
    Add(Drift),
    /// The row and its blob are removed, as at the start of a server.
    Finish,
    /// The drafts are removed.
    Clear,
    /// Times in the future are set back to the present, where the clock is trusted.
    SetBack,
    /// No repair is possible here: it needs an upload or an archive.
    Upload,
    /// No repair; the operator should investigate.
    LookInto,
    /// No repair here: the start of a server does it.
    Start,
}

impl Repair {
    /// As text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quarantine => "quarantine it",
            Self::Release => "end its quarantine",
            Self::Describe => "describe the existing blob",
            Self::Adopt => "add a row",
            Self::Remove => "remove it",
            Self::Rebuild => "rebuild them from the file's terms",
            Self::Add(_) => "correct them",
            Self::Finish => "finish it",
            Self::Clear => "remove them",
            Self::SetBack => "reset them to now, with --trust-clock if the clock of this machine is right",
            Self::Upload => "upload it again, or restore it with --from ARCHIVE",
            Self::LookInto => "see the detail",
            Self::Start => "start zorb serve to apply them",
        }
    }

    /// Whether no other process may use the store during the repair.
    #[must_use]
    pub const fn needs_alone(self) -> bool {
        matches!(self, Self::Describe | Self::Adopt | Self::Finish | Self::Clear)
    }
}

/// A fault of the store.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// The xorb that it is about, if it is about one.
    pub xorb: Option<XorbHash>,
    /// The blob of it that the index does not know.
    pub blob: Option<BlobKey>,
    /// The file that it is about, if it is about one.
    pub file: Option<FileHash>,
    /// The affected files.
    pub files: FilesHit,
    /// Lost xorbs.
    pub lost: Vec<XorbHash>,
    /// One line for the operator.
    pub detail: String,
    /// The proposed repair.
    pub repair: Repair,
}

impl Finding {
    fn new(kind: Kind, detail: impl Into<String>, repair: Repair) -> Self {
        let files = FilesHit::default();
        Self { kind, xorb: None, blob: None, file: None, files, lost: Vec::new(), detail: detail.into(), repair }
    }

    fn of_xorb(mut self, xorb: XorbHash) -> Self {
        self.xorb = Some(xorb);
        self
    }

    fn of_blob(mut self, blob: BlobKey) -> Self {
        (self.xorb, self.blob) = (Some(blob.xorb_hash()), Some(blob));
        self
    }

    fn of_file(mut self, file: FileHash) -> Self {
        self.file = Some(file);
        self.files = FilesHit { files: vec![file], count: 1 };
        self
    }
}

impl Finding {
    /// The finding that the index has not applied so many records. The comparison finds them, not
    /// the walk.
    #[must_use]
    pub fn untaken(count: usize) -> Self {
        let detail = format!("records of the last run that the index has not applied: {count}");
        Self::new(Kind::UntakenRecords, detail, Repair::Start)
    }
}

impl Fsck {
    /// Walks through the store.
    #[must_use]
    pub fn walk(&self) -> Walk<'_> {
        Walk::new(self)
    }

    fn verifier(&self) -> BlobVerifier {
        BlobVerifier { blobs: Arc::clone(&self.blobs), pool: self.pool.clone() }
    }
}
