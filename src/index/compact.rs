//! The part of the index for compaction: which chunks files need, and the switch of files to other
//! xorbs.
//!
//! A *switch* replaces terms of files by terms that name other xorbs with the same chunks, in one
//! transaction. Only a switch changes the terms of a registered file. It is refused if the terms
//! have changed since the new ones were made, or if a new xorb is invisible or damaged. A reader of
//! the file sees all old terms or all new ones.
//!
//! The index stores the terms of a file in *runs*: a row has up to 512 consecutive terms.

use std::collections::HashSet;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::xorbs::Ticket;
use crate::format::shard::Term;
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// A run of a file's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRow {
    /// The id of the run, which only the index can interpret.
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

/// New terms for one run of a file. There are as many as before, and each has the length and the
/// number of chunks of the term that it replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSwitch {
    /// The id of the run: see [`TermRow::row`].
    pub row: u64,
    /// The expected present terms of the run. The switch is refused if they differ.
    pub before: Vec<Term>,
    /// The new terms of the run.
    pub after: Vec<Term>,
}

/// A file to be switched to other xorbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSwitch {
    /// The file.
    pub file: FileHash,
    /// The runs of the file that change.
    pub runs: Vec<RunSwitch>,
}

/// The xorbs of the changed terms of a file, before and after.
pub(super) struct Moved {
    pub(super) from: HashSet<XorbHash>,
    pub(super) to: HashSet<XorbHash>,
}

impl FileSwitch {
    /// `None` if the new terms differ from the old ones in their number, or if a term differs in
    /// its length or its number of chunks.
    pub(super) fn moved(&self) -> Option<Moved> {
        let mut moved = Moved { from: HashSet::new(), to: HashSet::new() };
        for RunSwitch { before, after, .. } in &self.runs {
            let is_same = |(before, after): (&Term, &Term)| {
                before.raw_len == after.raw_len && before.chunks.count() == after.chunks.count()
            };
            if before.len() != after.len() || !before.iter().zip(after).all(is_same) {
                return None;
            }
            for (before, after) in before.iter().zip(after).filter(|(before, after)| before != after) {
                moved.from.insert(before.xorb);
                moved.to.insert(after.xorb);
            }
        }
        Some(moved)
    }
}

/// The outcome of a request to switch files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    /// All files have their new terms.
    All,
    /// This file does not exist, has other terms than expected, or would get terms of other
    /// lengths. Nothing was changed.
    Other(FileHash),
    /// A new term names this xorb, which is invisible or damaged. Nothing was changed.
    Unusable(XorbHash),
}

/// The methods of [`Index`](super::Index) for compaction.
pub trait Compact {
    /// A page of the runs of all files, ordered by their ids. Begins after `after`, which is 0 or
    /// the `next` of the previous page. Excludes files that are being removed. A concurrent
    /// registration may or may not be included.
    fn term_rows(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermRowPage, IndexError>>;

    /// All runs of a file in one snapshot, in the order of the file; none if the file does not
    /// exist.
    fn terms_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<TermRow>, IndexError>>;

    /// Files that reference a xorb, in the order of their first registration. Begins after `after`,
    /// which is 0 or the `next` of the previous page. Excludes files that are being removed.
    fn files_of(&self, xorb: XorbHash, after: u64, limit: u32) -> BoxFuture<'_, Result<FilePage, IndexError>>;

    /// The owners of the visible xorbs among `xorbs`: one pair for each owner of each xorb, ordered
    /// by xorb and then by name.
    fn owners_of(&self, xorbs: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<(XorbHash, String)>, IndexError>>;

    /// The chunks of a xorb that have deduplication entries, in no order; none if the xorb is
    /// invisible.
    fn dedup_chunks_of(&self, xorb: XorbHash) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>>;

    /// Reserves the row of a xorb like [`XorbIndex::stage_xorb`](super::XorbIndex::stage_xorb), but
    /// only if the xorb has no row in any state, because another process may be publishing it.
    /// Returns whether there was no row.
    fn stage_new_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp)
    -> BoxFuture<'_, Result<bool, IndexError>>;

    /// If the xorb is visible and sound: adds owners and deduplication entries, makes it live if it
    /// is condemned, touches it, and returns true. Else returns false and changes nothing; a staged
    /// xorb is not made live.
    fn add_owners_and_dedup(
        &self,
        xorb: XorbHash,
        owners: Vec<String>,
        chunks: Vec<ChunkHash>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Switches the terms and references of these files, all or none. Every xorb that a new term
    /// names is live afterwards and referenced by the file of the term.
    ///
    /// A xorb that loses its last reference is touched. It also loses its deduplication entries for
    /// chunks that have an entry with a new xorb.
    ///
    /// The cost is proportional to the terms of the files, and other writers wait meanwhile. If the
    /// files are switched, the same transaction marks the record as applied.
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
