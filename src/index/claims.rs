//! Whose claims of a sha256 are unverified.

use std::ops::Range;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use super::files::Claim;
use crate::format::FileHash;

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
}
