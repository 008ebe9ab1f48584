//! The part of the index for garbage collection, and for the removal of files.
//!
//! A xorb is removed in two steps, `Live` → `Condemned` → `Deleting`. Each step is one conditional
//! statement that checks all conditions of the plan again. A reference, an upload or a lease since
//! the plan was made wins. The index stores two times of each xorb:
//!
//! * `since`: the last touch or change of state. Uploads, registrations and the loss of its last
//!   reference touch a xorb. So does every response that spares a client its upload.
//! * `lease_until`: the end of its longest lease.

use futures_util::future::BoxFuture;

use super::XorbState;
use super::error::IndexError;
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// What decides whether a xorb is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XorbLife {
    /// Which one.
    pub hash: XorbHash,
    /// Its state.
    pub state: XorbState,
    /// The last touch or change of state.
    pub since: Timestamp,
    /// The end of its lease.
    pub lease_until: Timestamp,
    /// Whether a file refers to it.
    pub is_referenced: bool,
    /// Bytes of its blob; 0 if it was never live.
    pub serialized_len: u64,
}

/// A run of a file's terms, reduced to its xorbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRun {
    /// The file.
    pub file: FileHash,
    /// Its xorbs, each once.
    pub xorbs: Vec<XorbHash>,
}

/// A page of runs of terms, of any files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermPage {
    /// The runs.
    pub runs: Vec<TermRun>,
    /// Where the next page begins; `None` for the last one.
    pub next: Option<u64>,
}

/// The outcome of a request to remove a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedClaims {
    /// The repositories whose claims were removed.
    pub repos: Vec<String>,
    /// Whether the file was removed with its last claim.
    pub is_file_removed: bool,
}

/// A part of [`Index`](super::Index).
pub trait Collect {
    /// Xorbs in any state after `after`, with what decides about them, in the order of the hashes'
    /// bytes.
    fn xorb_lives(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbLife>, IndexError>>;

    /// The same for one xorb; `None` if it has no row.
    fn find_life(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbLife>, IndexError>>;

    /// The xorbs that terms of files name, for checks; collection itself goes by the references.
    /// Begins after `after`, which is 0 or the `next` of the previous page. A concurrent
    /// registration may or may not be included.
    fn term_runs(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermPage, IndexError>>;

    /// `Live` → `Condemned` for those of these xorbs that are unreferenced, unleased and untouched
    /// after `idle_since`. Returns them. For small batches: the database is locked meanwhile.
    fn condemn_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        idle_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// `Condemned` → `Deleting` for those of these xorbs that were condemned at `condemned_since`
    /// or before and are still unreferenced and unleased. Returns them.
    ///
    /// They are no longer visible nor counted in the totals, and the generation has grown. The
    /// caller deletes their blobs, then forgets their rows.
    fn begin_deletions(
        &self,
        xorbs: Vec<XorbHash>,
        condemned_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// `Staged` → `Deleting` for those of these xorbs that were staged at `staged_since` or before.
    /// Returns them.
    fn abandon_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        staged_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Removes the claim of a repository to a file, or all claims. With the last claim the file
    /// becomes invisible and no longer counts, in the same transaction. [`Collect::sweep_removed`]
    /// deletes its rows; until then they reference its xorbs. A file with very many references is
    /// charged to its repositories until then, too.
    ///
    /// An unverified sha256 is removed with the last claim of it. The record with this number is
    /// taken in the same transaction, unless nothing was removed.
    fn remove_claims_of(
        &self,
        file: FileHash,
        repo: Option<String>,
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'_, Result<RemovedClaims, IndexError>>;

    /// [`remove_claims_of`](Collect::remove_claims_of) without a record.
    fn remove_claims(
        &self,
        file: FileHash,
        repo: Option<String>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<RemovedClaims, IndexError>> {
        self.remove_claims_of(file, repo, now, None)
    }

    /// Takes one short step at deleting the rows of removed files: terms, then references, then the
    /// file. A xorb that loses its last reference is touched. Returns whether there was anything to
    /// do.
    fn sweep_removed(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Grows whenever something visible becomes invisible. Reads one row.
    fn generation(&self) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// The time of the last garbage collection; 1970 if there was none.
    fn last_collection(&self) -> BoxFuture<'_, Result<Timestamp, IndexError>>;

    /// Records that garbage is being collected. The time never decreases.
    fn record_collection(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}
