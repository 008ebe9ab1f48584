//! Unverified claims of a sha256, by repository.

use std::ops::Range;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::files::Claim;
use crate::format::FileHash;
use crate::format::shard::Term;

/// A part of [`Index`](super::Index).
pub trait ClaimIndex {
    /// The first repository after `after`, ordered by name, that has made an unverified claim for a
    /// file with a length within `lens`.
    fn next_claimant(
        &self,
        lens: Range<u64>,
        after: Option<String>,
    ) -> BoxFuture<'_, Result<Option<String>, IndexError>>;

    /// The unverified claims of a repository for files with a length within `lens`, in the order in
    /// which the files were first registered. `after` is the last file of the previous page.
    fn claims_of(
        &self,
        repo: String,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>>;

    /// The term of each of these files that has exactly one term and at most `max_len` bytes. In no
    /// order.
    fn single_terms(
        &self,
        files: Vec<FileHash>,
        max_len: u64,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, Term)>, IndexError>>;

    /// Marks claims that were found true as verified, in one transaction: see
    /// [`settle_claim`](super::Index::settle_claim). Returns how many of them were unverified.
    fn settle_true_claims(&self, claims: Vec<Claim>) -> BoxFuture<'_, Result<u64, IndexError>>;
}
