//! What the index does for the collection of garbage, and for the removal of files that makes it.
//!
//! A xorb goes in two steps, `Live` → `Condemned` → `Deleting`, each one conditional statement that checks again all that
//! a plan was made from: a plan is a proposal, and a reference, an upload or a promise that came since wins. Two times
//! are kept of each xorb:
//!
//! * `since`: when it was last touched, or changed its state. Uploads, also of what is there, registrations, and the loss
//!   of the last reference touch it, and so does everything that tells a writer that it need not send the xorb.
//! * `lease_until`: the end of the longest promise that has an end of its own.

use futures_util::future::BoxFuture;

use super::XorbState;
use super::error::IndexError;
use crate::format::{FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// What keeps a xorb, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XorbLife {
    /// Which one.
    pub hash: XorbHash,
    /// Its state.
    pub state: XorbState,
    /// When it was last touched, or came into this state.
    pub since: Timestamp,
    /// Until when it was promised to stay.
    pub lease_until: Timestamp,
    /// Whether a file refers to it.
    pub is_referenced: bool,
    /// Bytes of its blob; 0 where it was never live.
    pub serialized_len: u64,
}

/// A run of a file's terms, and what it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRun {
    /// The file.
    pub file: FileHash,
    /// Its xorbs, each once.
    pub xorbs: Vec<XorbHash>,
}

/// Some runs of terms, of any files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermPage {
    /// The runs.
    pub runs: Vec<TermRun>,
    /// Behind what the next page begins; `None` for the last one.
    pub next: Option<u64>,
}

/// What became of a request to remove a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedClaims {
    /// Whose claims were removed.
    pub repos: Vec<String>,
    /// Whether the file went with them, because nobody else has it.
    pub is_file_removed: bool,
}

/// A part of [`Index`](super::Index).
pub trait Collect {
    /// Every xorb, in whatever state, with what keeps it, in the order of the hashes' bytes, from behind `after` on.
    fn xorb_lives(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbLife>, IndexError>>;

    /// What keeps this xorb; `None` where there is none, in no state.
    fn find_life(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbLife>, IndexError>>;

    /// What files refer to by their terms, which are not the references that decide: for checks. From behind `after` on,
    /// which is 0 or what the page before said. What is registered meanwhile may or may not be among it.
    fn term_runs(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermPage, IndexError>>;

    /// `Live` → `Condemned`: those of these xorbs that no file refers to, that nobody has touched after `idle_since`, and
    /// that are promised to nobody. Returns them. For small batches: the database is locked meanwhile.
    fn condemn_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        idle_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// `Condemned` → `Deleting`: those of these xorbs that were condemned at `condemned_since` or before, and that still
    /// nothing keeps. Returns them. They are not visible any more, nor counted in the totals, and the generation has
    /// grown. Now their blobs may be deleted, and then their rows be forgotten.
    fn begin_deletions(
        &self,
        xorbs: Vec<XorbHash>,
        condemned_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// `Staged` → `Deleting`: those of these xorbs that were staged at `staged_since` or before. Returns them.
    fn abandon_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        staged_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>>;

    /// Removes the claim of a repository to a file, or all claims. With the last one the file is gone for everybody, in
    /// the same transaction, and counts no more; what is left of it goes in [`Collect::sweep_removed`], and keeps its xorbs
    /// until then. Where these are thousands, its repositories are charged for them until then, too.
    /// A sha256 that nobody but the repository has claimed, and that is not verified, goes with its claim.
    /// The record with this number, which tells of it, is taken in the same transaction, unless nothing was removed.
    fn remove_claims_of(
        &self,
        file: FileHash,
        repo: Option<String>,
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'_, Result<RemovedClaims, IndexError>>;

    /// The same where no record tells of it.
    fn remove_claims(
        &self,
        file: FileHash,
        repo: Option<String>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<RemovedClaims, IndexError>> {
        self.remove_claims_of(file, repo, now, None)
    }

    /// Takes one step, which is short, at removing what is left of removed files: terms, then references, then the row.
    /// A xorb that loses its last reference by that is touched. Returns whether there was anything to do.
    fn sweep_removed(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Grows whenever something visible becomes invisible. One read of one row.
    fn generation(&self) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// When garbage was last collected; 1970 if never.
    fn last_collection(&self) -> BoxFuture<'_, Result<Timestamp, IndexError>>;

    /// Notes that garbage is being collected. Never goes back.
    fn note_collection(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>>;
}
