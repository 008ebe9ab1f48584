//! Registrations in steps: rows are invisible to readers until they are published.
//!
//! A shard may register hundreds of thousands of files. One transaction for all would block other
//! writers for seconds. So they are written in transactions of some milliseconds, and one short
//! transaction publishes them. Usage counts a file from its step on, so quotas hold for unpublished
//! files, too.
//!
//! A crash leaves an unpublished registration. [`RegisterIndex::abandon_registrations`] marks it at
//! the next start, and [`Collect::sweep_removed`](super::Collect::sweep_removed) deletes its rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::files::{NewFile, Registered, Registration};
use super::usage::Usage;
use crate::format::{ChunkHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// Files of a registration that is written in one transaction, at most. Two in unit tests, so that
/// registrations of either kind occur there.
const SHORT_FILE_COUNT: usize = if cfg!(test) { 2 } else { 512 };

/// Terms of all its files, at most.
pub(super) const SHORT_TERM_COUNT: usize = if cfg!(test) { 1 } else { 1536 };

/// Chunks that deduplication may mention, at most.
const SHORT_DEDUP_COUNT: usize = if cfg!(test) { 4 } else { 2048 };

impl Registration {
    /// Whether [`Index::register_of`](super::Index::register_of) writes it within some
    /// milliseconds. Other registrations must be written in steps.
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
    /// Whether its terms take several steps.
    pub(super) fn is_large(&self) -> bool {
        self.terms.len() > SHORT_TERM_COUNT
    }
}

/// A registration that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its number, unique in this index for ever.
    pub id: i64,
    /// The usage of its repository when it began.
    pub repo: Usage,
    /// The usage of its owner when it began, if that is limited.
    pub owner: Usage,
}

/// The place where the next step of a registration begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The number of written files.
    pub(super) file: usize,
    /// The number of written parts of the next file, if it is large.
    pub(super) part: usize,
    /// The number of touched xorbs among the listed ones.
    pub(super) touched: usize,
    pub(super) sets: Arc<XorbSets>,
}

/// Sets of xorbs, made from all terms of a registration, possibly millions. No transaction is open
/// meanwhile.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct XorbSets {
    /// The named xorbs that no file has.
    pub(super) listed: Vec<XorbHash>,
    /// The xorbs of each large file, by its place, each once.
    pub(super) of_large: HashMap<usize, Vec<XorbHash>>,
}

impl Cursor {
    /// The start. The cost is proportional to the number of terms: unless the registration is
    /// short, call it on a thread for computations.
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

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// `New`, `Added` or `Known` for the rows of this step, or else the reason of the refusal. A
    /// refused step has changed nothing, and the registration is to be abandoned.
    pub outcome: Registered,
    /// Where the next step begins; `None` if everything is written.
    pub next: Option<Cursor>,
}

/// A part of [`Index`](super::Index). The caller holds the locks of all files of a registration
/// from its first step until it is published or abandoned. So no two registrations write one file
/// at once.
pub trait RegisterIndex {
    /// Begins a registration.
    fn begin_registration<'a>(&'a self, registration: &'a Registration) -> BoxFuture<'a, Result<Begun, IndexError>>;

    /// Writes a step of some milliseconds from this place on, in one transaction, and checks the
    /// limits.
    fn enter_files<'a>(
        &'a self,
        begun: Begun,
        registration: &'a Registration,
        from: Cursor,
    ) -> BoxFuture<'a, Result<Entered, IndexError>>;

    /// Makes the registration visible and takes the record with this number, in one short
    /// transaction. An error of kind [`Lost`](super::IndexErrorKind::Lost) if it was abandoned
    /// meanwhile.
    fn publish_registration<'a>(&'a self, begun: Begun, record: Option<u64>) -> BoxFuture<'a, Result<(), IndexError>>;

    /// Inserts chunks of a published registration that deduplication may mention: `count` of them,
    /// beginning at `from`.
    fn enter_dedup<'a>(
        &'a self,
        registration: &'a Registration,
        from: usize,
        count: usize,
    ) -> BoxFuture<'a, Result<(), IndexError>>;

    /// The number of chunks that deduplication may mention, counted once for each xorb.
    fn dedup_chunk_count(&self) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// Chunks after `after` that deduplication may mention, each once, in the order of their
    /// hashes' bytes.
    fn dedup_chunks_after(
        &self,
        after: Option<ChunkHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>>;

    /// Takes one step at deleting the rows of abandoned registrations, and the lists of published
    /// ones. Returns whether there was any.
    /// [`Collect::sweep_removed`](super::Collect::sweep_removed) does it, too.
    fn clear_registration(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Abandons a registration, or all of them if none is in progress: it stays invisible. Returns
    /// the number of abandoned ones.
    fn abandon_registrations(&self, id: Option<i64>) -> BoxFuture<'_, Result<u64, IndexError>>;
}
