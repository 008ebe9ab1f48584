//! The part of the index for compaction: which chunks files need, and the switch of a file to other
//! xorbs.
//!
//! Only a switch changes the terms of a file, in one transaction for the whole file. Its terms must
//! be unchanged since the new ones were made, and every new xorb must be visible and sound. A
//! reader of the file sees all old terms or all new ones.

use futures_util::future::BoxFuture;

use super::Ticket;
use super::error::IndexError;
use crate::format::shard::Term;
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// A run of a file's terms, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRow {
    /// The row, for the index only.
    pub row: u64,
    /// The file.
    pub file: FileHash,
    /// The terms, at least one.
    pub terms: Vec<Term>,
}

/// A page of runs of terms, of any files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRowPage {
    /// The runs.
    pub rows: Vec<TermRow>,
    /// Where the next page begins; `None` for the last one.
    pub next: Option<u64>,
}

/// A page of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePage {
    /// The files.
    pub files: Vec<FileHash>,
    /// Where the next page begins; `None` for the last one.
    pub next: Option<u64>,
}

/// New terms for one run of a file: as many as the old ones, each of the length of the old one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSwitch {
    /// Its row.
    pub row: u64,
    /// The terms that it must still have.
    pub before: Vec<Term>,
    /// Its new terms.
    pub after: Vec<Term>,
}

/// A file to be switched to other xorbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSwitch {
    /// Which file.
    pub file: FileHash,
    /// Its runs that change.
    pub runs: Vec<RunSwitch>,
}

/// The outcome of a request to switch files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    /// All of them have their new terms.
    All,
    /// This file does not exist, or has other terms. Nothing was changed.
    Other(FileHash),
    /// A new term names this xorb, which is invisible or damaged. Nothing was changed.
    Unusable(XorbHash),
}

/// A part of [`Index`](super::Index).
pub trait Compact {
    /// All terms of all files, in the order of their rows. Begins after `after`, which is 0 or the
    /// `next` of the previous page. Excludes files that are being removed. A concurrent
    /// registration may or may not be included.
    fn term_rows(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermRowPage, IndexError>>;

    /// All terms of a file in one snapshot, in the order of the file; none if it does not exist.
    fn terms_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<TermRow>, IndexError>>;

    /// Files that reference a xorb, in the order of their first registration. Begins after `after`,
    /// which is 0 or the `next` of the previous page. Excludes files that are being removed.
    fn files_of(&self, xorb: XorbHash, after: u64, limit: u32) -> BoxFuture<'_, Result<FilePage, IndexError>>;

    /// The owners of those of these xorbs that are visible: a pair for each, by xorb and then by
    /// name.
    fn owners_of(&self, xorbs: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<(XorbHash, String)>, IndexError>>;

    /// Chunks of a xorb that clients may query, in no order; none if it is invisible.
    fn asked_chunks(&self, xorb: XorbHash) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>>;

    /// Claims a row like [`Index::stage_xorb`](super::Index::stage_xorb), but only if there is none
    /// in any state, since another process may be publishing this xorb. Returns whether there was
    /// none.
    fn claim_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Adds these owners and these chunks that clients may query to a xorb, and touches it. Returns
    /// whether it is visible and sound; otherwise nothing is changed.
    fn endow_xorb(
        &self,
        xorb: XorbHash,
        owners: Vec<String>,
        chunks: Vec<ChunkHash>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Switches the terms and references of these files, all or none. Every xorb that a new term
    /// names is live afterwards and referenced by that file. A xorb that loses its last reference
    /// is touched. Its chunks that the new xorbs have are mentioned with those instead.
    ///
    /// The cost is proportional to the terms of the files, and the database is locked meanwhile.
    /// The record with this number is taken in the same transaction.
    fn switch_terms_of<'a>(
        &'a self,
        files: &'a [FileSwitch],
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Switched, IndexError>>;

    /// [`switch_terms_of`](Compact::switch_terms_of) without a record.
    fn switch_terms<'a>(
        &'a self,
        files: &'a [FileSwitch],
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Switched, IndexError>> {
        self.switch_terms_of(files, now, None)
    }
}
