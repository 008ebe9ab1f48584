//! The usage of repositories, and its limits.
//!
//! The usage of a repository follows only from the files that it claims. It changes in the
//! transaction that changes a claim or the references of a file. A registration in steps counts
//! from each step on, before its files are visible, so that a quota holds for it.
//!
//! A xorb counts once for each repository, in full, regardless of the number of its files and of
//! other repositories. An unreferenced xorb counts for no repository.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::error::IndexError;

/// The usage of a repository, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Claimed files.
    pub file_count: u64,
    /// Raw bytes of these files.
    pub logical_len: u64,
    /// Serialized bytes of the xorbs of these files, each counted once, and of the records of these
    /// files, see [`record_len`].
    pub physical_len: u64,
}

/// Bytes of the registration record of a file with this many terms, in whole KiB. It has 48 bytes
/// each for a header, a sha256, every term, and its verification hash (spec 4.2).
///
/// Rounded down: the records of common files are shorter, as are their rows of the index, which do
/// not count either.
#[must_use]
pub const fn record_len(term_count: usize) -> u64 {
    let record_count = (term_count as u64).saturating_add(1).saturating_mul(2);
    record_count.saturating_mul(48) / 1024 * 1024
}

/// The usage of a repository, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoUsage {
    /// Its name; `*` is for files registered by tokens of all repositories.
    pub repo: String,
    /// Its usage.
    pub usage: Usage,
}

/// Limits of each quantity; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Files.
    pub file_count: Option<u64>,
    /// Raw bytes of files.
    pub logical_len: Option<u64>,
    /// Serialized bytes of xorbs.
    pub physical_len: Option<u64>,
}

/// The limits of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// The limits of its repository.
    pub repo: Limits,
    /// The name of its owner, and the limits of all repositories of the owner together.
    pub owner: Option<(String, Limits)>,
}

/// A limited quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Files.
    Files,
    /// Raw bytes of files.
    LogicalBytes,
    /// Serialized bytes of xorbs.
    PhysicalBytes,
}

/// The limit that a registration would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Whether the limit is that of all repositories of the owner.
    pub is_owner_wide: bool,
    /// The quantity.
    pub quantity: Quantity,
    /// The limit.
    pub limit: u64,
    /// The present usage.
    pub used: u64,
    /// What the registration adds.
    pub added: u64,
}

impl Limits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The first limit that this change exceeds, if any. A quantity over its limit refuses only
    /// what adds to it.
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
pub trait UsageIndex {
    /// The usage of this repository; zero if it is unknown. One read of one row.
    fn repo_usage(&self, repo: String) -> BoxFuture<'_, Result<Usage, IndexError>>;

    /// The usage of all repositories of this owner; a xorb of two of them counts twice. The owner
    /// is the part of a name before its last slash, or the name if there is none.
    fn owner_usage(&self, owner: String) -> BoxFuture<'_, Result<Usage, IndexError>>;

    /// The usage of repositories after `after`, in the order of their names' bytes. Excludes those
    /// without files.
    fn usages_after(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>>;

    /// The longest write since the index was opened, which other writers waited for.
    fn longest_write(&self) -> Duration;

    /// The usage of the repositories with the most stored bytes, the largest first.
    fn largest_usages(&self, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>>;
}
