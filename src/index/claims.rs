//! Claims of a sha256: a client states the sha256 of a file, and the server verifies it later.
//!
//! In this module a *claim* is always such a statement. Each repository may make one for a file,
//! and claims of several repositories may differ until the file was read.

use std::ops::Range;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::files::Reader;
use crate::format::FileHash;
use crate::format::shard::{Sha256, Term};

/// A file found by its sha256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSha256 {
    /// The hash of the file.
    pub file: FileHash,
    /// Its length in bytes.
    pub raw_len: u64,
    /// Whether the sha256 is verified; otherwise a client claims it.
    pub is_verified: bool,
}

/// A sha256 that a client has claimed for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The hash of the file.
    pub file: FileHash,
    /// The claimed sha256.
    pub sha256: Sha256,
}

/// The result of verifying a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// The file has the claimed sha256.
    Verified,
    /// The file has another sha256, which is thereby verified.
    False {
        /// The true sha256.
        actual: Sha256,
    },
}

/// The methods of [`Index`](super::Index) for claims of a sha256.
pub trait ClaimIndex {
    /// A file with this sha256 that the reader may see. Either the sha256 is verified, or the
    /// reader's own repository has claimed it. Claims of other repositories stay hidden.
    fn find_sha256(&self, sha256: Sha256, reader: Reader) -> BoxFuture<'_, Result<Option<KnownSha256>, IndexError>>;

    /// Unverified claims for files with a length within `lens`, in the order in which the files
    /// were first registered: one claim per file. `after` is the last file of the previous page.
    fn unverified_claims(
        &self,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>>;

    /// Settles a claim: the true sha256 of the file replaces the claims of all repositories for
    /// this file. Returns whether the file had an unverified sha256.
    fn settle_claim(&self, claim: Claim, state: ClaimState) -> BoxFuture<'_, Result<bool, IndexError>>;

    /// The first repository after `after`, ordered by name, that has made an unverified claim for a
    /// file with a length within `lens`.
    fn next_claimant(
        &self,
        lens: Range<u64>,
        after: Option<String>,
    ) -> BoxFuture<'_, Result<Option<String>, IndexError>>;

    /// The unverified claims of a repository for files with a length within `lens`, in the order in
    /// which the files were first registered. `after` is the last file of the previous page.
    fn sha256_claims_of(
        &self,
        repo: String,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>>;

    /// The term of each file among `files` that has exactly one term and at most `max_len` bytes,
    /// in no order.
    fn single_terms(
        &self,
        files: Vec<FileHash>,
        max_len: u64,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, Term)>, IndexError>>;

    /// Settles claims that were found true, like [`settle_claim`](Self::settle_claim). Returns how
    /// many of the files had an unverified sha256. Each 500 claims are one transaction, so after an
    /// error some of the claims may be settled.
    fn settle_true_claims(&self, claims: Vec<Claim>) -> BoxFuture<'_, Result<u64, IndexError>>;
}
