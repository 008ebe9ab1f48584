//! A registration in steps: what is written before it is published is visible to no reader.
//!
//! A shard may register hundreds of thousands of files. In one transaction they keep every other
//! writer waiting for seconds, so they are written in transactions of some milliseconds, and one
//! short transaction publishes all of them. Usage counts a file from its step on: a quota holds for
//! what is being registered, too.
//!
//! A crash leaves an unpublished registration. [`RegisterIndex::abandon_registrations`] marks it at the
//! next start, and [`Collect::sweep_removed`](super::Collect::sweep_removed) deletes what it has written.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::files::{NewFile, Registered, Registration};
use super::usage::Usage;
use crate::format::{ChunkHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// Files of a registration that is written in one transaction. Two in unit tests, so that
/// registrations of either kind occur there.
const SHORT_FILE_COUNT: usize = if cfg!(test) { 2 } else { 512 };

/// The same for terms of all its files.
pub(super) const SHORT_TERM_COUNT: usize = if cfg!(test) { 1 } else { 1536 };

/// The same for chunks that deduplication may mention.
const SHORT_DEDUP_COUNT: usize = if cfg!(test) { 4 } else { 2048 };

impl Registration {
    /// Whether [`Index::register_of`](super::Index::register_of) writes it within some milliseconds.
    /// One that is not short is to be written in steps.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let term_count: usize = self.files.iter().map(|file| file.terms.len()).sum();
        self.files.len() <= SHORT_FILE_COUNT
            && term_count <= SHORT_TERM_COUNT
            && self.xorbs.len() <= SHORT_TERM_COUNT
            && self.dedup.len() <= SHORT_DEDUP_COUNT
    }
}

impl NewFile {
    /// Whether it has so many terms that it takes several steps.
    pub(super) fn is_large(&self) -> bool {
        self.terms.len() > SHORT_TERM_COUNT
    }
}

/// A registration that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its number, which no other registration of this index ever has.
    pub id: i64,
    /// What its repository had when it began.
    pub repo: Usage,
    /// What the owner had, where that is limited.
    pub owner: Usage,
}

/// The place where the next step of a registration begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Files that are written.
    pub(super) file: usize,
    /// Parts of the next file that are written, where that is a large one.
    pub(super) part: usize,
    /// How many of the listed xorbs are touched.
    pub(super) touched: usize,
    pub(super) sets: Arc<XorbSets>,
}

/// What is made of all terms of a registration. No transaction is open meanwhile: there may be
/// millions of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct XorbSets {
    /// The xorbs that are named beside those of the files.
    pub(super) listed: Vec<XorbHash>,
    /// Of each large file, by its place: its xorbs, each once.
    pub(super) of_large: HashMap<usize, Vec<XorbHash>>,
}

impl Cursor {
    /// The start. Takes as long as there are terms: of a registration that is not short to be made
    /// where that keeps nobody waiting.
    #[must_use]
    pub fn start(registration: &Registration) -> Self {
        let of_files: HashSet<XorbHash> =
            registration.files.iter().flat_map(|file| &file.terms).map(|term| term.xorb).collect();
        let listed = registration.xorbs.iter().copied().filter(|xorb| !of_files.contains(xorb)).collect();
        let large = registration.files.iter().enumerate().filter(|(_, file)| file.is_large());
        let of_large = large.map(|(place, file)| {
            let xorbs: HashSet<XorbHash> = file.terms.iter().map(|term| term.xorb).collect();
            (place, xorbs.into_iter().collect())
        });
        Self { file: 0, part: 0, touched: 0, sets: Arc::new(XorbSets { listed, of_large: of_large.collect() }) }
    }
}

/// What a step has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// `New`, `Added` or `Known` for what this step has written, or else why the registration is
    /// refused: then the step has changed nothing, and the registration is to be abandoned.
    pub outcome: Registered,
    /// Where the next step begins; `None` where nothing is left to be written.
    pub next: Option<Cursor>,
}

/// A part of [`Index`](super::Index). The caller has the locks of all files of a registration from its
/// first step until it is published or abandoned: no two registrations write one file at once.
pub trait RegisterIndex {
    /// Begins a registration.
    fn begin_registration<'a>(&'a self, registration: &'a Registration) -> BoxFuture<'a, Result<Begun, IndexError>>;

    /// Writes some milliseconds' worth of it, from this place on, in one transaction. What it leads to
    /// is compared with its allowance.
    fn enter_files<'a>(
        &'a self,
        begun: Begun,
        registration: &'a Registration,
        from: Cursor,
    ) -> BoxFuture<'a, Result<Entered, IndexError>>;

    /// Makes all of it visible and takes the record with this number, in one short transaction. An
    /// error of kind [`Lost`](super::IndexErrorKind::Lost) where it was abandoned meanwhile.
    fn publish_registration<'a>(&'a self, begun: Begun, record: Option<u64>) -> BoxFuture<'a, Result<(), IndexError>>;

    /// Says which chunks of a published registration deduplication may mention: `count` of them, from
    /// `from` on.
    fn enter_dedup<'a>(
        &'a self,
        registration: &'a Registration,
        from: usize,
        count: usize,
    ) -> BoxFuture<'a, Result<(), IndexError>>;

    /// How many chunks deduplication may mention, counted once for each xorb.
    fn dedup_chunk_count(&self) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// Chunks that deduplication may mention, each once, in the order of their hashes' bytes, from behind `after` on.
    fn dedup_chunks_after(
        &self,
        after: Option<ChunkHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>>;

    /// One step of clearing up after registrations that are over: discards what abandoned ones have written, and the
    /// lists of published ones. Returns whether there was any. [`Collect::sweep_removed`](super::Collect::sweep_removed)
    /// does it, too.
    fn clear_registration(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Abandons a registration, or all of them where none is under way: nothing of it will be visible.
    /// Returns how many were abandoned.
    fn abandon_registrations(&self, id: Option<i64>) -> BoxFuture<'_, Result<u64, IndexError>>;
}
