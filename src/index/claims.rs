//! Whose claims of a sha256 are unverified.

use std::ops::Range;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::files::Claim;
use crate::format::FileHash;
use crate::format::shard::Term;

/// A part of [`Index`](super::Index).
pub trait ClaimIndex {
    /// The next repository, in the order of names from behind `after` on, with an unverified claim of its
    /// own, of a file that has a length within `lens`.
    fn next_claimant(
        &self,
        lens: Range<u64>,
        after: Option<String>,
    ) -> BoxFuture<'_, Result<Option<String>, IndexError>>;

    /// The unverified claims of a repository, of such files, in the order in which these were registered: the first ones, or
    /// those after this file.
    fn claims_of(
        &self,
        repo: String,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>>;

    /// The only terms of those of these files that have one term and at most so many bytes, in no order.
    fn single_terms(
        &self,
        files: Vec<FileHash>,
        max_len: u64,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, Term)>, IndexError>>;

    /// Settles claims that were found true, in one transaction: see
    /// [`settle_claim`](super::Index::settle_claim). Returns how many of them were unverified.
    fn settle_true_claims(&self, claims: Vec<Claim>) -> BoxFuture<'_, Result<u64, IndexError>>;
}
