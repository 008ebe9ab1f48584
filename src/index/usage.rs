//! What repositories have, and the limits on it.
//!
//! What a repository has follows from the files that it claims, and from nothing else: it changes in the transaction that
//! changes a claim, or what a file refers to. A registration in steps counts from each step on, before its files are
//! visible, so that a quota holds for what is under way. A xorb counts once for each repository, in full, however many of its files
//! refer to it and whoever else has it. Xorbs that no file refers to count for nobody.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::error::IndexError;

/// What a repository has, or several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Files that it claims.
    pub file_count: u64,
    /// Raw bytes of these files.
    pub logical_len: u64,
    /// Serialized bytes of the xorbs that these files refer to, each counted once, and of the records of these files, see
    /// [`record_len`].
    pub physical_len: u64,
}

/// Bytes that the record of a registration has for a file of so many terms, in whole KiB: a header, a sha256, and each term
/// with its verification hash, of 48 bytes each (spec 4.2). Rounded down: the records of common files are shorter, and so
/// are the rows of the index, which do not count either.
#[must_use]
pub const fn record_len(term_count: usize) -> u64 {
    let record_count = (term_count as u64).saturating_add(1).saturating_mul(2);
    record_count.saturating_mul(48) / 1024 * 1024
}

/// What a repository has, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoUsage {
    /// Its name; `*` is what tokens for all repositories have registered.
    pub repo: String,
    /// What it has.
    pub usage: Usage,
}

/// How much there may be of each quantity; `None` for any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Files.
    pub file_count: Option<u64>,
    /// Raw bytes of files.
    pub logical_len: Option<u64>,
    /// Serialized bytes of xorbs.
    pub physical_len: Option<u64>,
}

/// How much a registration may lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Of its repository.
    pub repo: Limits,
    /// Of all repositories of an owner together, by the owner's name.
    pub owner: Option<(String, Limits)>,
}

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Files.
    Files,
    /// Raw bytes of files.
    LogicalBytes,
    /// Serialized bytes of xorbs.
    PhysicalBytes,
}

/// By what a registration would exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Whether the limit is that of all repositories of the owner.
    pub is_owner_wide: bool,
    /// Of what there would be too much.
    pub quantity: Quantity,
    /// How much there may be.
    pub limit: u64,
    /// How much there is.
    pub used: u64,
    /// How much the registration adds.
    pub added: u64,
}

impl Limits {
    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The first limit that is exceeded by what was added, if one is. What is exceeded already refuses only what adds to it.
    pub(crate) fn excess(&self, before: Usage, after: Usage, is_owner_wide: bool) -> Option<Excess> {
        let quantities = [
            (Quantity::Files, self.file_count, before.file_count, after.file_count),
            (Quantity::LogicalBytes, self.logical_len, before.logical_len, after.logical_len),
            (Quantity::PhysicalBytes, self.physical_len, before.physical_len, after.physical_len),
        ];
        quantities.into_iter().find_map(|(quantity, limit, used, after)| {
            let (limit, added) = (limit?, after.saturating_sub(used));
            (added > 0 && after > limit).then_some(Excess { is_owner_wide, quantity, limit, used, added })
        })
    }
}

/// A part of [`Index`](super::Index).
pub trait Measure {
    /// What this repository has; nothing where it is not known. One read of one row.
    fn repo_usage(&self, repo: String) -> BoxFuture<'_, Result<Usage, IndexError>>;

    /// What all repositories of this owner have together: what two of them share counts twice. An owner is the part of a
    /// name before its last slash, or the name where there is none.
    fn owner_usage(&self, owner: String) -> BoxFuture<'_, Result<Usage, IndexError>>;

    /// What repositories have, in the order of their names' bytes, from behind `after` on. Those without files are not
    /// among them.
    fn usages_after(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>>;

    /// How long a write has kept other writers waiting at most, since the index was opened.
    fn longest_write(&self) -> Duration;

    /// What the repositories have that have most bytes stored for them, the largest first.
    fn largest_usages(&self, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>>;
}
