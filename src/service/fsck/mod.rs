//! The check of a whole store (`zorb fsck`). It compares the row of every xorb with its blob, and
//! every blob with the rows. It compares the references of every file (its rows in `xorb_files`)
//! with its terms. It follows the branches and tags of every Hub repository to their files.
//!
//! [`Walk`] reads the store and returns findings, a page at a time. Each [`Finding`] proposes a
//! [`Repair`], and [`Fsck::execute`] performs it. Time passes between the two, so a repair first
//! checks whether the fault still exists. A fault that no longer exists counts as repaired. The
//! exception is [`Repair::Add`]: it adds the difference that the walk has measured, without a
//! check. A finding of this kind must therefore be executed only once.
//!
//! # Beside a running server
//!
//! The walk only reads, so it may run beside a server. These repairs may, too: marking a row as
//! damaged or sound, rebuilding references, correcting totals, setting times back, and removing a
//! blob that the index does not know. The other repairs publish or adopt blobs, remove drafts, or
//! delete the rows of unfinished uploads. They need exclusive use of the store
//! ([`Presence::Alone`]). Without it, `execute` does nothing and returns [`Outcome::NeedsAlone`].
//!
//! # Blobs that the index does not know
//!
//! The index does not know a blob if its name is neither in the row of a xorb nor an *object* (a
//! name in the table `objects`). An upload enters the name of its blob into the index before it
//! publishes the blob. So a blob that the index does not know does not belong to a running upload.
//!
//! A sound blob of a xorb without a row is adopted, because the row may have been lost and files
//! may need the blob. It gets a live row, and GC deletes the xorb if no file references it. A sound
//! blob also replaces the damaged blob of its xorb.
//!
//! All other unknown blobs are removed. The name of such a blob becomes a dead object first, so
//! that no row can use the name. Then the blob is deleted, and then the object. Only one process at
//! a time may delete blobs of a store (see [`gc`](super::gc)), so the caller of [`Fsck::execute`]
//! must hold that right.
//!
//! # Crashes
//!
//! Most repairs are one transaction, so a crash leaves them complete or not begun. These repairs
//! can be interrupted halfway:
//!
//! * A removal may leave a dead object with its blob. GC deletes both.
//! * The replacement of a damaged blob may leave the xorb marked as damaged and the sound blob
//!   unknown to the index. The next run finds both.
//! * An unfinished row may be left in `Deleting`. The next run or the start of a server deletes it.
//! * Only some of the times in the future may be set back. The next run finds the others.
//!
//! # Times in the future
//!
//! A clock that ran ahead leaves times in the future in the index. Until these times have passed,
//! GC does not run. The scrub does not read a blob whose verification lies in the future. Data URLs
//! for a xorb whose replacement lies in the future are refused. The repair sets these times back to
//! the present. No grace period becomes shorter than promised, because every recorded event really
//! happened before the present. A xorb that was condemned in the future becomes live, because the
//! wrong clock condemned it.
//!
//! The store looks the same if the clock of *this* machine is behind and the clock that wrote the
//! times was right. Times that are set back to such a wrong present are too old. Once this clock is
//! right, a xorb that was touched today looks unused for as long as the clock was behind, and GC
//! may delete it. A program cannot distinguish the two cases, so the operator must confirm the
//! clock ([`Fsck::trusts_clock`]). Otherwise the times are left unchanged.
//!
//! Leases (`lease_until`) are not set back, because clients rely on them. A lease that is too long
//! only costs space.
//!
//! # Memory
//!
//! A walk holds a page of rows, the names of the blobs in one of 256 directories, and the xorbs of
//! one file in memory; and for one Hub repository as much as a sweep of it, and the hashes of its
//! files once more.

mod execute;
mod plan;

use std::sync::Arc;

pub use self::execute::Outcome;
pub use self::plan::Walk;
use super::Store;
use super::verify::BlobVerifier;
use crate::blob::BlobKey;
use crate::format::{FileHash, XorbHash};
use crate::index::{AffectedFiles, TotalsError};

/// Maximum number of files that a finding names.
const NAMED_FILE_COUNT: u32 = 10;

/// Whether another process may publish blobs of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// No: this process has locked the data directory, so it is the server or no server runs.
    Alone,
    /// Yes: this process has not locked the data directory, so a server may run or start.
    Shared,
}

/// A store to be checked, and the options of the check.
#[derive(Clone, Debug)]
pub struct Fsck {
    /// The store.
    pub store: Arc<Store>,
    /// Whether another process may publish blobs of the store.
    pub presence: Presence,
    /// Whether every blob is read and hashed. Otherwise the check reads a blob only if its length
    /// differs from its row, if its row says "damaged", or if the index does not know it.
    pub is_deep: bool,
    /// Whether the operator has confirmed that the clock is right, so that times in the future are
    /// set back to it.
    pub trusts_clock: bool,
}

/// The kind of a finding. Its name ([`as_str`](Self::as_str)) is in the output of `zorb fsck
/// --json`, so the meaning of a name never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The blob that a row names does not exist.
    MissingBlob,
    /// A blob is shorter or longer than its row says, and its bytes are not the xorb.
    WrongLength,
    /// A blob is not the xorb of its row, or the disk cannot read it.
    WrongBytes,
    /// A blob is the xorb of its row, but the row describes another serialization of the xorb.
    WrongRow,
    /// A row says "damaged", but its blob is sound.
    FalseAlarm,
    /// A blob could not be read for a reason other than damage, such as a missing permission.
    Unchecked,
    /// The index does not know a blob, and the blob is sound.
    OrphanBlob,
    /// The index does not know a blob, and the blob is not the xorb of its name.
    OrphanGarbage,
    /// The terms of a file name xorbs without a visible row.
    LostXorbs,
    /// The references of a file differ from its terms.
    WrongReferences,
    /// The terms of a file do not parse.
    UnreadableTerms,
    /// The stored totals differ from the sums over the rows of all visible xorbs.
    WrongTotals,
    /// A row is in `Staged` or `Deleting`, because an upload or a deletion was interrupted.
    UnfinishedRow,
    /// There are drafts of interrupted uploads.
    TemporaryFiles,
    /// There are times in the future.
    FutureTimes,
    /// The registration log has records that the index has not applied, because of a crash.
    UnappliedRecords,
    /// A branch or tag of a Hub repository needs something that is missing or damaged.
    BrokenRepository,
    /// Branches or tags of a Hub repository have files whose contents it cannot read: a client has
    /// removed them, or their registration was lost.
    LostContents,
}

impl Kind {
    /// The name of the kind.
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
            Self::UnappliedRecords => "unapplied_records",
            Self::BrokenRepository => "broken_repository",
            Self::LostContents => "lost_contents",
        }
    }
}

/// The proposed repair of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Marks the row as damaged. Then the xorb is not served until it is uploaded again or restored
    /// from an archive.
    Quarantine,
    /// Marks the row as sound, so that the xorb is served again.
    Release,
    /// Updates the row to describe the blob.
    Describe,
    /// Adds a row for the blob, or makes the row of a damaged blob name it.
    Adopt,
    /// Makes the name a dead object, then deletes the blob.
    Remove,
    /// Rebuilds the references of the file from its terms.
    Rebuild,
    /// Adds this difference to the totals.
    Add(TotalsError),
    /// Deletes the row and its blob, as the start of a server does.
    Finish,
    /// Removes the drafts.
    Clear,
    /// Sets times in the future back to the present, if the operator trusts the clock.
    SetBack,
    /// None: only an upload or an archive can restore the xorb.
    Upload,
    /// None: a client has to send the contents again, or delete the files.
    Commit,
    /// None: the operator must investigate.
    LookInto,
    /// None: the records or a backup have what is lost.
    Recover,
    /// None: the start of a server repairs the fault.
    Start,
}

impl Repair {
    /// The text for the operator.
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
            Self::Commit => "upload them again, or delete them from the branches and tags",
            Self::LookInto => "see the detail",
            Self::Recover => "rebuild the index from its records, or restore a backup",
            Self::Start => "start zorb serve to apply them",
        }
    }

    /// Whether there is nothing that a run with a repair does.
    #[must_use]
    pub const fn is_by_hand(self) -> bool {
        matches!(self, Self::Commit | Self::LookInto | Self::Recover | Self::Start)
    }

    /// Whether the repair needs exclusive use of the store.
    #[must_use]
    pub const fn needs_alone(self) -> bool {
        matches!(self, Self::Describe | Self::Adopt | Self::Finish | Self::Clear)
    }
}

/// A fault of the store.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The kind of fault.
    pub kind: Kind,
    /// The xorb with the fault; `None` if the fault is not of a xorb.
    pub xorb: Option<XorbHash>,
    /// The blob that the index does not know; `None` for other kinds.
    pub blob: Option<BlobKey>,
    /// The file with the fault; `None` if the fault is not of a file.
    pub file: Option<FileHash>,
    /// The files that need the xorb, or the file itself.
    pub files: AffectedFiles,
    /// The missing xorbs of [`Kind::LostXorbs`]; empty for other kinds.
    pub lost: Vec<XorbHash>,
    /// A description of the fault for the operator, on one line.
    pub detail: String,
    /// The proposed repair.
    pub repair: Repair,
}

impl Finding {
    fn new(kind: Kind, detail: impl Into<String>, repair: Repair) -> Self {
        let files = AffectedFiles::default();
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
        self.files = AffectedFiles { files: vec![file], count: 1 };
        self
    }
}

impl Finding {
    /// The finding that the index has not applied `count` records. The walk does not return this
    /// finding: the caller makes it, after it has compared the records with the index.
    #[must_use]
    pub fn unapplied(count: usize) -> Self {
        let detail = format!("records of the last run that the index has not applied: {count}");
        Self::new(Kind::UnappliedRecords, detail, Repair::Start)
    }
}

impl Fsck {
    /// Begins a walk through the store.
    #[must_use]
    pub fn walk(&self) -> Walk<'_> {
        Walk::new(self)
    }

    fn verifier(&self) -> BlobVerifier {
        BlobVerifier { blobs: Arc::clone(&self.store.blobs), pool: self.store.pool.clone() }
    }
}
