//! What the index does for compaction: what files need of xorbs, and how a file is made of other xorbs from then on.
//!
//! The terms of a file change here and nowhere else. They change in one transaction for the whole file, under the
//! condition that they are what they were when the new ones were made, and that every new xorb is visible and sound:
//! whoever reads the file gets the old terms or the new ones, and never some of each.

use futures_util::future::BoxFuture;

use super::Ticket;
use super::error::IndexError;
use crate::format::shard::Term;
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// A run of a file's terms, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRow {
    /// The row. Told to nobody but the index itself.
    pub row: u64,
    /// The file.
    pub file: FileHash,
    /// The terms; one at least.
    pub terms: Vec<Term>,
}

/// Some runs of terms, of any files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRowPage {
    /// The runs.
    pub rows: Vec<TermRow>,
    /// Behind what the next page begins; `None` for the last one.
    pub next: Option<u64>,
}

/// Some files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePage {
    /// The files.
    pub files: Vec<FileHash>,
    /// Behind what the next page begins; `None` for the last one.
    pub next: Option<u64>,
}

/// New terms for one run of a file. As many as the old ones, and each as long as the one that it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSwitch {
    /// Its row.
    pub row: u64,
    /// What it must be still.
    pub before: Vec<Term>,
    /// What it becomes.
    pub after: Vec<Term>,
}

/// A file that is to be made of other xorbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSwitch {
    /// Which file.
    pub file: FileHash,
    /// Those of its runs that change.
    pub runs: Vec<RunSwitch>,
}

/// What became of a request to switch files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    /// All of them are made of their new terms.
    All,
    /// This file is not there any more, or not made of these terms. Nothing was changed.
    Other(FileHash),
    /// This xorb, which a new term names, is not visible, or its blob is known to be damaged. Nothing was changed.
    Unfit(XorbHash),
}

/// A part of [`Index`](super::Index).
pub trait Compact {
    /// All terms of all files, in the order in which their rows were made, from behind `after` on, which is 0 or what the
    /// page before said. Without files that are being removed. What is registered meanwhile may or may not be among it.
    fn term_rows(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermRowPage, IndexError>>;

    /// All terms of a file, in the order of the file; none where there is no such file. As of one moment.
    fn terms_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<TermRow>, IndexError>>;

    /// Files that refer to a xorb, in the order in which they were registered first, from behind `after` on, which is 0 or
    /// what the page before said. Without files that are being removed.
    fn files_of(&self, xorb: XorbHash, after: u64, limit: u32) -> BoxFuture<'_, Result<FilePage, IndexError>>;

    /// Who has uploaded those of these xorbs that readers may see: a pair for each owner, by xorb and then by name.
    fn owners_of(&self, xorbs: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<(XorbHash, String)>, IndexError>>;

    /// Chunks of a xorb that clients may ask for, in no order; none where it is not visible.
    fn asked_chunks(&self, xorb: XorbHash) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>>;

    /// Claims a row like [`Index::stage_xorb`](super::Index::stage_xorb), but only where there is none, in whatever state:
    /// for a process that publishes while another one may. Returns whether there was none.
    fn claim_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Gives a visible xorb these owners and these chunks that clients may ask for, beside those that it has, and touches
    /// it. Returns whether it is visible and sound; nothing is changed where it is not.
    fn endow_xorb(
        &self,
        xorb: XorbHash,
        owners: Vec<String>,
        chunks: Vec<ChunkHash>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Switches the terms of these files, all or none, and their references with them. Every xorb that a new term names is
    /// live afterwards, and kept by that file. A xorb that loses its last reference is touched, and clients that ask for chunks
    /// are told of the new xorbs, as far as these have them, and of it no more.
    ///
    /// Costs as much as the files have terms; the database is locked meanwhile. The record with this number, which tells of
    /// it, is taken in the same transaction.
    fn switch_terms_of<'a>(
        &'a self,
        files: &'a [FileSwitch],
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Switched, IndexError>>;

    /// The same where no record tells of it.
    fn switch_terms<'a>(
        &'a self,
        files: &'a [FileSwitch],
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Switched, IndexError>> {
        self.switch_terms_of(files, now, None)
    }
}
