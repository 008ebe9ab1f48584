//! The part of the index for garbage collection, and for the removal of files.
//!
//! GC plans which xorbs to remove. The row of a xorb takes two steps, `Live` → `Condemned` →
//! `Deleting`; that of an abandoned upload goes from `Staged` to `Deleting` at once. Then GC
//! deletes the blob, and last the row. Each step checks all conditions of the plan again, in one
//! statement. So a xorb stays if it was referenced, uploaded or leased after the plan was made.
//!
//! The index stores two times of each xorb:
//!
//! * `since`: the last touch or change of state. A xorb is touched by uploads, by registrations,
//!   when it loses its last reference, and by a response that tells a client that the upload is
//!   unnecessary.
//! * `lease_until`: the end of its longest lease.
//!
//! The removal of a file has two parts. First a repository loses its claim to the file. Without
//! a claim the file is invisible, and later a *sweep* deletes its rows.

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::xorbs::XorbState;
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// The properties of a xorb by which GC decides whether to collect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XorbLife {
    /// The hash of the xorb.
    pub hash: XorbHash,
    /// Its state.
    pub state: XorbState,
    /// The last touch or change of state.
    pub since: Timestamp,
    /// The end of its lease.
    pub lease_until: Timestamp,
    /// Whether a file references it. A removed file counts until it is swept.
    pub is_referenced: bool,
    /// The number of bytes of its blob; 0 if the xorb was never live.
    pub serialized_len: u64,
}

/// A run of a file's terms (up to 512 consecutive ones), with only the xorbs that they name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRun {
    /// The file.
    pub file: FileHash,
    /// The xorbs that the terms of the run name, each once.
    pub xorbs: Vec<XorbHash>,
}

/// A page of runs of terms, of any files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermPage {
    /// The runs.
    pub runs: Vec<TermRun>,
    /// The `after` of the next page; `None` for the last one.
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

/// The methods of [`Index`](super::Index) for GC, and for the removal of files.
pub trait Collect {
    /// Xorbs after `after` in any state, ordered by the bytes of their hashes.
    fn xorb_lives(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbLife>, IndexError>>;

    /// Like [`xorb_lives`](Collect::xorb_lives), for one xorb; `None` if it has no row.
    fn find_life(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbLife>, IndexError>>;

    /// A page of the xorbs that the terms of files name. GC decides by [`XorbLife::is_referenced`],
    /// which is stored separately, and uses this for a cross-check. Begins after `after`, which is
    /// 0 or the `next` of the previous page. Excludes files that are being removed. A concurrent
    /// registration may or may not be included.
    fn term_runs(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermPage, IndexError>>;

    /// `Live` → `Condemned` for each xorb of `xorbs` that is unreferenced, unleased and was not
    /// touched after `idle_since`. Returns the condemned xorbs. Pass small batches, because other
    /// writers wait meanwhile.
    fn condemn_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        idle_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// `Condemned` → `Deleting` for each xorb of `xorbs` that was condemned at `condemned_since` or
    /// before and is still unreferenced and unleased. Returns the changed xorbs.
    ///
    /// The same transaction subtracts these xorbs from the totals and increments the
    /// [generation](Collect::generation). Then the caller deletes their blobs, and after that their
    /// rows with [`forget_xorb`](super::XorbIndex::forget_xorb).
    fn begin_deletions(
        &self,
        xorbs: Vec<XorbHash>,
        condemned_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// `Staged` → `Deleting` for each xorb of `xorbs` that was staged at `staged_since` or before.
    /// Returns the changed xorbs.
    fn abandon_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        staged_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Removes the claim of `repo` to a file; `None` removes the claims of all repositories. With
    /// the last claim the file becomes invisible, and it and its logical bytes no longer count in
    /// usage, in the same transaction.
    ///
    /// [`Collect::sweep_removed`] deletes the rows of the file later. Until then its references
    /// retain its xorbs. If the file has very many references, the physical bytes of these xorbs
    /// count for its repositories until then.
    ///
    /// An unverified sha256 is removed when the last repository that stated it loses its claim to
    /// the file. If anything was removed, the same transaction marks the record as applied.
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

    /// Deletes some rows in one short transaction. Finished registrations come first, as in
    /// [`sweep_registrations`](super::RegisterIndex::sweep_registrations). If there is none,
    /// deletes rows of removed files: first terms, then references, then claims, then the file. A
    /// xorb that loses its last reference is touched. Returns whether there was anything to delete.
    fn sweep_removed(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// A counter. It is incremented whenever the data that a server may have cached about a xorb
    /// becomes wrong. A server that sees a new value drops its caches. Reads one row.
    fn generation(&self) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// The time of the last garbage collection; 1970 if there was none.
    fn last_collection(&self) -> BoxFuture<'_, Result<Timestamp, IndexError>>;

    /// Records `now` as the time of the last garbage collection, unless the recorded time is later.
    fn record_collection(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}
