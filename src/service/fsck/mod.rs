//! The check of a whole store: rows against blobs, blobs against rows, references against terms.
//!
//! [`Walk`] goes through the store and finds, a page at a time; [`Finding::repair`](Repair) says what would be done
//! about each, and [`Fsck::execute`] does it. A finding is a proposal: every repair looks again, in its own transaction,
//! so that what has changed meanwhile stays as it is, and doing it twice does nothing.
//!
//! # Beside a running server
//!
//! Finding is reading. Of the repairs, those that are one conditional statement are safe beside a server as well: a row
//! is marked as damaged or sound, references are rebuilt, totals are mended. The others put blobs into their place or
//! take unfinished uploads for dead. For them nobody else may be there ([`Presence::Alone`]); else they are left.
//!
//! **A blob without a row is never just deleted.** An upload may be publishing it at this very moment, and the row would
//! come a moment later, for a blob that is gone. So the row is claimed first, in `Deleting`, which it only can be while
//! there is none; from then on an upload is told to come back. Then the blob goes, then the row. And one process at a time deletes blobs of
//! a store (see [`gc`](super::gc)): whoever calls [`Fsck::execute`] holds the right to. A sound blob without a
//! row is worth more than the space that it takes: it may be what the files lack whose row was lost. It is entered as a
//! live xorb, which the garbage collection takes when nobody refers to it.
//!
//! What a crash leaves: each repair whole or not begun, a claimed row in `Deleting` (the next start, or run, goes on), or
//! a xorb that is marked as damaged and was just mended (the next run notices).
//!
//! # Times in the future
//!
//! A clock that ran ahead leaves times that have not come yet, and until they have, ages mean nothing: no garbage is
//! collected, what was verified then is not read again, and URLs of what was replaced then are refused. They can be set
//! back to the present: whatever has been touched was touched before now, so that counting from now takes no time from
//! anybody. What was condemned then is made live, since it was condemned by that clock.
//!
//! But it is the same picture where *this* clock is behind, and everybody else right. Set back to a wrong present, what
//! was touched today would look years old as soon as the clock is right again, and go. A program cannot tell the two
//! apart, so somebody has to say so ([`Fsck::trusts_clock`]); else the finding is left.
//!
//! Promises with an end of their own are left as they are: clients were told, and a promise for too long costs nothing but
//! room.
//!
//! # Memory
//!
//! A page of rows, the names of one folder of blobs in 256, and the xorbs of one file; and for a heal from an archive
//! the hashes of what is to be healed.

mod execute;
mod plan;

use std::sync::Arc;

pub use self::execute::Outcome;
pub use self::plan::Walk;
use super::examine::Examiner;
use crate::blob::BlobStore;
use crate::format::{FileHash, XorbHash};
use crate::index::{Drift, FilesHit, Index};
use crate::runtime::blocking::Pool;
use crate::runtime::clock::Clock;

/// Files that a finding names of those that it hits.
const NAMED_FILE_COUNT: u32 = 10;

/// Whether somebody else may be using the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The data folder is locked by us: no server runs.
    Alone,
    /// A server may run.
    Shared,
}

/// A store to be checked.
#[derive(Clone, Debug)]
pub struct Fsck {
    /// Its blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// Everything else.
    pub index: Arc<dyn Index>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Where blobs are verified.
    pub pool: Pool,
    /// Whether somebody else may be there.
    pub presence: Presence,
    /// Whether every blob is read and hashed, and not only its length looked at.
    pub is_deep: bool,
    /// Whether somebody has made sure that the clock is right, so that times in the future are set back to it.
    pub trusts_clock: bool,
}

/// What is wrong. Names never change their meaning.
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
    /// A blob that is no xorb has no row.
    OrphanGarbage,
    /// The terms of a file name xorbs that are not there.
    LostXorbs,
    /// The references of a file are not what its terms say.
    WrongReferences,
    /// The terms of a file do not parse.
    UnreadableTerms,
    /// The totals are not the sums of what is there.
    WrongTotals,
    /// A row of an upload or a deletion that did not end.
    UnfinishedRow,
    /// Drafts of uploads that did not end.
    TemporaryFiles,
    /// Times that have not come yet.
    FutureTimes,
    /// Records that a crash has left and the index has not taken.
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

/// What would be done about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// The row is marked as damaged: the xorb is not served until it is uploaded again or comes from an archive.
    Quarantine,
    /// The row is marked as sound.
    Release,
    /// The row is written anew from the blob.
    Describe,
    /// The blob gets a row.
    Adopt,
    /// The blob is removed, under a row that says so.
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
    /// Nothing that can be done here: it takes an upload or an archive.
    Upload,
    /// Nothing, but look into it.
    LookInto,
    /// Nothing that can be done here: the start of a server does it.
    Start,
}

impl Repair {
    /// In words.
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

    /// Whether nobody else may be there.
    #[must_use]
    pub const fn needs_alone(self) -> bool {
        matches!(self, Self::Describe | Self::Adopt | Self::Finish | Self::Clear)
    }
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What kind of thing.
    pub kind: Kind,
    /// The xorb that it is about, if it is about one.
    pub xorb: Option<XorbHash>,
    /// The file that it is about, if it is about one.
    pub file: Option<FileHash>,
    /// The files that are hit.
    pub files: FilesHit,
    /// Xorbs that are lost.
    pub lost: Vec<XorbHash>,
    /// One line for people.
    pub detail: String,
    /// What would be done.
    pub repair: Repair,
}

impl Finding {
    fn new(kind: Kind, detail: impl Into<String>, repair: Repair) -> Self {
        let files = FilesHit::default();
        Self { kind, xorb: None, file: None, files, lost: Vec::new(), detail: detail.into(), repair }
    }

    fn of_xorb(mut self, xorb: XorbHash) -> Self {
        self.xorb = Some(xorb);
        self
    }

    fn of_file(mut self, file: FileHash) -> Self {
        self.file = Some(file);
        self.files = FilesHit { files: vec![file], count: 1 };
        self
    }
}

impl Finding {
    /// That the index has not taken so many records. The comparison finds them, and not the walk.
    #[must_use]
    pub fn untaken(count: usize) -> Self {
        let detail = format!("records of the last run that the index has not applied: {count}");
        Self::new(Kind::UntakenRecords, detail, Repair::Start)
    }
}

impl Fsck {
    /// Goes through the store.
    #[must_use]
    pub fn walk(&self) -> Walk<'_> {
        Walk::new(self)
    }

    fn examiner(&self) -> Examiner {
        Examiner { blobs: Arc::clone(&self.blobs), pool: self.pool.clone() }
    }
}
