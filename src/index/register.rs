//! Registrations, written in one transaction or in steps. The rows of a step are invisible to
//! readers until the registration is published.
//!
//! A shard may register hundreds of thousands of files. One transaction for all of them would
//! block other writers for seconds. So a long registration is written in transactions of some
//! milliseconds, the *steps*, and one short transaction publishes it. Usage includes a file as soon
//! as its step is written, so quotas also hold for unpublished files.
//!
//! A crash between two steps leaves an unpublished registration. At the next start,
//! [`RegisterIndex::abandon_registrations`] marks it as abandoned. Later
//! [`Collect::sweep_removed`](super::Collect::sweep_removed) deletes its rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

#[cfg(test)]
use super::conformance::backends::register_in_steps;
use super::error::IndexError;
use super::usage::{Allowance, Excess, Usage};
use crate::format::shard::{Sha256, Term};
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// Maximum number of files in a registration that is written in one transaction. Two in unit tests,
/// so that both kinds of registrations occur there.
const SHORT_FILE_COUNT: usize = if cfg!(test) { 2 } else { 512 };

/// Maximum number of terms in all files of such a registration.
pub(super) const SHORT_TERM_COUNT: usize = if cfg!(test) { 1 } else { 1536 };

/// Maximum number of chunks that such a registration makes available to dedup queries.
const SHORT_DEDUP_COUNT: usize = if cfg!(test) { 4 } else { 2048 };

/// A file to be registered. The caller has proven its terms with the chunks of its xorbs.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Its hash.
    pub hash: FileHash,
    /// Its length in bytes.
    pub raw_len: u64,
    /// Its terms.
    pub terms: Vec<Term>,
    /// The sha256 that the client claims for the file.
    pub sha256: Option<Sha256>,
}

/// Files to be registered, all or none.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The repository that may read the files once they are registered; `*` stands for tokens of
    /// all repositories.
    pub repo: String,
    /// The files.
    pub files: Vec<NewFile>,
    /// Every xorb that the files or the shard name, each once.
    pub xorbs: Vec<XorbHash>,
    /// Chunks that clients may look up for deduplication, each with its xorb.
    pub dedup: Vec<(ChunkHash, XorbHash)>,
    /// The present time.
    pub now: Timestamp,
    /// The limits of its repository and its owner.
    pub allowance: Allowance,
}

/// The outcome of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The files are registered; at least one was new to this repository.
    New,
    /// The files were known to this repository, but a sha256 that it claims was new.
    Added,
    /// All files and claims were known. Only chunks for deduplication may be new.
    Known,
    /// This xorb does not exist or is being deleted. Nothing was changed.
    MissingXorb(XorbHash),
    /// The blob of this xorb is damaged, so the file would be unreadable. Nothing was changed.
    DamagedXorb(XorbHash),
    /// The repository has this file. Its verified sha256, or an earlier claim of the repository,
    /// differs from the claimed sha256. Nothing was changed.
    OtherSha256 {
        /// The file.
        file: FileHash,
        /// The earlier claim of the repository; `None` if the sha256 of the file is verified.
        unverified: Option<Sha256>,
    },
    /// The registration would exceed a limit. Nothing was changed.
    OverQuota(Excess),
}

/// A registration in one transaction that takes longer is rolled back, and written in steps
/// instead. Never in unit tests, so that the same steps are made on every machine.
pub(super) const WHOLE_TIME: Duration = if cfg!(test) { Duration::MAX } else { Duration::from_millis(25) };

/// After this time a transaction of steps begins no further batch: those of registrations, removals
/// and deletions. The current batch and the commit take additional time, and no write should block
/// other writers for over 50 ms.
pub(super) const STEP_TIME: Duration = Duration::from_millis(10);

/// After this number of rows with terms of a large file a transaction of steps begins no further
/// batch. They are inserted in little time, but their bytes take long to commit: 50 ms for what 10
/// ms inserted. These are 1 MiB.
pub(super) const STEP_RUN_COUNT: usize = 48;

impl Registration {
    /// Whether the registration is short: [`RegisterIndex::register_of`] writes it within some
    /// milliseconds, or finds that it cannot. Other registrations must be written in steps.
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
    /// Whether the terms of the file are written in several parts.
    pub(super) fn is_large(&self) -> bool {
        self.terms.len() > SHORT_TERM_COUNT
    }
}

/// A registration in steps that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRegistration {
    /// Its number, which this index never uses again.
    pub id: i64,
    /// The usage of its repository when it began.
    pub repo: Usage,
    /// The usage of its owner when it began; zero if the owner has no limits.
    pub owner: Usage,
}

/// The place where the next step of a registration begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The number of written files.
    pub(super) file: usize,
    /// The number of written parts of the next file, if it is large.
    pub(super) part: usize,
    /// Whether the next file existed before, has many references, and is claimed by now. Then the
    /// next steps charge the repository for its xorbs.
    pub(super) is_known: bool,
    /// The number of touched xorbs among `sets.listed`.
    pub(super) touched: usize,
    pub(super) sets: Arc<NamedXorbs>,
}

/// Sets of xorbs of a registration. They are computed before a transaction begins, because a
/// registration may have millions of terms.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedXorbs {
    /// The xorbs that the shard lists and no term of its files names.
    pub(super) listed: Vec<XorbHash>,
    /// The xorbs of each large file, each once. The key is the position of the file.
    pub(super) of_large: HashMap<usize, Vec<XorbHash>>,
}

impl Cursor {
    /// The cursor of the first step. The cost is proportional to the number of terms. So unless the
    /// registration is short, call this on a thread for CPU work.
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
        Self {
            file: 0,
            part: 0,
            is_known: false,
            touched: 0,
            sets: Arc::new(NamedXorbs { listed, of_large: of_large.collect() }),
        }
    }
}

/// What a step at removing the claim of an abandoned registration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discarded {
    /// A part of the claim; steps are left.
    Part,
    /// The claim.
    Claim,
    /// The claim, which was the last one, and so the file: it is invisible, and its hash is free.
    File,
}

/// How many counts from the first one on have a sum of at most `limit`.
pub(super) fn count_within(limit: i64, counts: impl IntoIterator<Item = i64>) -> usize {
    let mut sum = 0;
    let fits = |count: &i64| {
        sum += count;
        sum <= limit
    };
    counts.into_iter().take_while(fits).count()
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutcome {
    /// `New`, `Added` or `Known` for the rows of this step, or else the reason for the refusal. A
    /// refused step has changed nothing, and the caller must abandon the registration.
    pub outcome: Registered,
    /// Where the next step begins; `None` if everything is written.
    pub next: Option<Cursor>,
}

/// The methods of [`Index`](super::Index) for registrations. The caller holds the locks of all
/// files of a registration from its first step until it is published or abandoned. So no two
/// registrations write one file at once.
pub trait RegisterIndex {
    /// Registers files, all or none: their terms, references and claims, and the chunks for
    /// deduplication.
    ///
    /// Every named xorb must be visible and sound. Afterwards it is live, and either a reference
    /// retains it or it was touched. The limits are checked in the same transaction. So if two
    /// registrations together exceed a limit, the second one is refused.
    ///
    /// The same transaction marks the record as applied, unless everything was known or the
    /// registration is refused. A registration that is not [short](Registration::is_short) would
    /// block other writers for long: write it in steps, beginning with
    /// [`begin_registration`](Self::begin_registration).
    ///
    /// `None` means that the same holds for this one, because it names known files whose stored
    /// terms are in very many xorbs. Then nothing was changed.
    fn register_of<'a>(
        &'a self,
        registration: &'a Registration,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Option<Registered>, IndexError>>;

    /// Registers files without a record, in steps if one transaction cannot.
    #[cfg(test)]
    fn register<'a>(&'a self, registration: &'a Registration) -> BoxFuture<'a, Result<Registered, IndexError>>
    where
        Self: Sync,
    {
        async move {
            match self.register_of(registration, None).await? {
                Some(registered) => Ok(registered),
                None => register_in_steps(self, registration, None).await,
            }
        }
        .boxed()
    }

    /// Begins a registration in steps. It writes no file yet.
    fn begin_registration<'a>(
        &'a self,
        registration: &'a Registration,
    ) -> BoxFuture<'a, Result<OpenRegistration, IndexError>>;

    /// Writes the step that begins at `from`, in one transaction of some milliseconds, and checks
    /// the limits. If the registration is no longer open, the error is of kind
    /// [`Lost`](super::IndexErrorKind::Lost).
    fn write_step<'a>(
        &'a self,
        begun: OpenRegistration,
        registration: &'a Registration,
        from: Cursor,
    ) -> BoxFuture<'a, Result<StepOutcome, IndexError>>;

    /// Makes the registration visible and marks the record as applied, in one short transaction. If
    /// the registration was abandoned meanwhile, the error is of kind
    /// [`Lost`](super::IndexErrorKind::Lost).
    fn publish_registration<'a>(
        &'a self,
        begun: OpenRegistration,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<(), IndexError>>;

    /// Inserts up to `count` deduplication entries of a published registration, beginning with the
    /// one at position `from`. Skips a batch of entries if one of their xorbs is missing or damaged
    /// by now.
    fn write_dedup_step<'a>(
        &'a self,
        registration: &'a Registration,
        from: usize,
        count: usize,
    ) -> BoxFuture<'a, Result<(), IndexError>>;

    /// The number of deduplication entries. A chunk that is in two xorbs counts twice.
    fn dedup_chunk_count(&self) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// The chunks with deduplication entries, each once, ordered by the bytes of their hashes.
    /// Begins after `after`.
    fn dedup_chunks_after(
        &self,
        after: Option<ChunkHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>>;

    /// Deletes some rows of an abandoned registration, or of the file list that a published one no
    /// longer needs, in one short transaction. Only of the registration with this number; `None`
    /// takes the oldest. Returns whether there was such a registration.
    /// [`Collect::sweep_removed`](super::Collect::sweep_removed) includes this work.
    fn sweep_registrations(&self, id: Option<i64>, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// Abandons the unpublished registration with this number, which stays invisible. `None`
    /// abandons all unpublished ones, so it is only for a server start, when no registration is in
    /// progress. Returns the number of abandoned registrations.
    fn abandon_registrations(&self, id: Option<i64>) -> BoxFuture<'_, Result<u64, IndexError>>;

    /// Several servers: abandons the unpublished registrations of servers that have ended. Returns
    /// their number.
    fn abandon_registrations_of_ended(&self) -> BoxFuture<'_, Result<u64, IndexError>>;
}

#[cfg(test)]
mod tests {
    use super::count_within;

    #[test]
    fn batch_ends_before_the_count_that_exceeds_the_limit() {
        assert_eq!(count_within(3, []), 0);
        assert_eq!(count_within(3, [4, 1]), 0);
        assert_eq!(count_within(3, [2, 0, 1, 0, 1, 0]), 4);
        assert_eq!(count_within(3, [1, 1, 1]), 3);
    }
}
