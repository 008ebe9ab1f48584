//! The index: a database of xorbs, files, repositories, and what each repository uses.
//!
//! Three invariants hold at every moment, also after a crash:
//!
//! * **A live row implies a durable blob.** The row goes live only after the blob was published.
//! * **A blob is deleted only under a committed `Deleting` row or dead object.**
//! * **No operation moves a `Deleting` row back.** If an acknowledged file still needs the xorb, a
//!   server start deletes the row and inserts a new one for the same blob.
//!
//! A method that changes the index does so in one transaction, which is durable when the method
//! returns `Ok`. Only [`ClaimIndex::settle_true_claims`] uses several. A method that only reads may
//! read in several snapshots, unless its documentation says otherwise.
//!
//! Every change of a xorb's state is one conditional statement, and the code checks how many rows
//! it changed. So the database decides races. The index knows nothing about the storage of blobs.
//!
//! Words:
//!
//! * A *term* is a range of chunks of one xorb, and a file is a list of terms. A file *references*
//!   each xorb that its terms name. References retain xorbs.
//! * An *owner* is the part of a repository's name before the last slash. Deduplication tells a
//!   client only of xorbs of its own owner. A *deduplication entry* is a chunk that clients may
//!   look up, with a xorb that has it.
//! * A xorb is *visible* if its row is live or condemned, and *sound* unless its blob is known to
//!   be damaged. To *touch* a xorb is to set its time of last use, `since`. A *lease* protects it
//!   from collection until a given time.
//! * The *raw* bytes of a chunk are its uncompressed bytes; the *serialized* bytes of a xorb are
//!   the bytes of its blob. A *layout* says where in the blob each chunk is.
//! * A *claim* of a repository to a file permits the repository to read it. A claim of a sha256 is
//!   a client's statement that a file has this sha256.
//! * A *record* describes a registration, a removal or a compaction in the registration log, from
//!   which a lost index is rebuilt. A method with the parameter `record` marks the record with this
//!   number as applied, in the transaction of its change.

mod archive;
mod claims;
mod collect;
mod compact;
#[cfg(test)]
mod conformance;
mod decode;
mod error;
mod files;
mod grants;
mod health;
mod hub;
mod listing;
mod lists;
mod migrate;
mod objects;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(test, feature = "full-tests"))]
pub mod probe;
mod records;
mod register;
mod repair;
mod restore_rows;
mod rows;
pub mod sqlite;
mod store_locks;
mod terms;
mod usage;
mod xorbs;

use std::fmt::Debug;

pub use self::archive::{ArchiveIndex, FileRecord, RestoredFile, Sha256State};
pub use self::claims::{Claim, ClaimIndex, ClaimState, KnownSha256};
pub use self::collect::{Collect, RemovedClaims, TermPage, TermRun, XorbLife};
pub use self::compact::{Compact, FilePage, FileSwitch, RunSwitch, Switched, TermRow, TermRowPage};
pub use self::error::{IndexError, IndexErrorKind};
pub use self::files::{DedupHit, FileIndex, FileRow, Reader};
pub use self::grants::{GrantIndex, SpentGrant};
pub use self::health::{AffectedFiles, HealthIndex, HealthSums, XorbHealth};
pub use self::hub::{
    HubBlob, HubCommit, HubDeletionIndex, HubGenerations, HubIndex, HubObject, HubRef, HubRenameIndex, HubRepo,
    HubRepoAt, HubSweepIndex, HubTree, NewHubRepo, RepoKind, RepoOrder, RepoPlace, ShownRepos, UnneededCommit,
    UnneededFile,
};
pub use self::listing::{FileEntry, ListIndex, XorbEntry};
pub use self::objects::{DeadObject, ObjectIndex, ObjectSums};
pub use self::records::{RecordIndex, StoreMark, give_up_record};
pub use self::register::{Cursor, NewFile, OpenRegistration, RegisterIndex, Registered, Registration, StepOutcome};
pub use self::repair::{FaultPage, FileFault, FutureTimes, RepairIndex, TotalsError};
pub use self::store_locks::{MAX_CLOCK_DIFFERENCE, MAX_CLOCK_LEAD, StoreLock, StoreLockIndex, StoreLockKeys};
pub use self::usage::{Allowance, Excess, Limits, Quantity, RepoUsage, Usage, UsageIndex, commit_len, record_len};
pub use self::xorbs::{
    ChunkColumns, NewXorb, Staging, Ticket, Totals, XorbContents, XorbIndex, XorbPart, XorbRow, XorbState,
};

/// The database: all groups of methods together. The documentation of this module lists the
/// invariants.
pub trait Index:
    ArchiveIndex
    + ClaimIndex
    + Collect
    + Compact
    + FileIndex
    + GrantIndex
    + HealthIndex
    + HubIndex
    + HubDeletionIndex
    + HubRenameIndex
    + HubSweepIndex
    + ListIndex
    + ObjectIndex
    + RecordIndex
    + RegisterIndex
    + RepairIndex
    + StoreLockIndex
    + UsageIndex
    + XorbIndex
    + Debug
    + Send
    + Sync
    + 'static
{
}
