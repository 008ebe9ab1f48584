//! The usage of repositories, and its limits.
//!
//! The usage of a repository follows only from its claims, so from the files that it may read, and
//! from the history that it has as a Hub repository. It changes in the transaction that changes a
//! claim, the references of a file, or a commit or directory. Each step of a registration is
//! counted before its files are visible, so that quotas hold.
//!
//! A xorb counts in full for each repository with a file that references it, but only once per
//! repository. An unreferenced xorb counts for no repository.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::error::IndexError;

/// The usage of a repository, or the sum over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Claimed files.
    pub file_count: u64,
    /// Raw bytes of these files.
    pub logical_len: u64,
    /// Serialized bytes of the xorbs of these files, each xorb counted once, and bytes of the
    /// records of these files: see [`record_len`]. In a Hub repository also those of directories
    /// and commits: see [`commit_len`].
    pub physical_len: u64,
}

/// Bytes of the registration record of a file with this many terms. A record has 96 bytes for the
/// header and the sha256 of the file, and 96 bytes for each term and its verification hash (spec
/// 4.2).
///
/// The result is rounded down to whole KiB. So the short record of a common file counts as 0, like
/// its rows in the index.
#[must_use]
pub const fn record_len(term_count: usize) -> u64 {
    let record_count = (term_count as u64).saturating_add(1).saturating_mul(2);
    record_count.saturating_mul(48) / 1024 * 1024
}

/// Bytes that a commit counts for its repository, for its rows and its record, with a message of
/// this length. Each new directory counts in addition, with the bytes of its git object.
#[must_use]
pub const fn commit_len(message_len: usize) -> u64 {
    (message_len as u64).saturating_add(1024)
}

/// A repository and its usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoUsage {
    /// Its name; `*` stands for files registered with tokens for all repositories.
    pub repo: String,
    /// Its usage.
    pub usage: Usage,
}

/// Limits of each quantity of [`Usage`]; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Files.
    pub file_count: Option<u64>,
    /// Raw bytes of files.
    pub logical_len: Option<u64>,
    /// Serialized bytes of xorbs, and bytes of records and of the history of a Hub repository.
    pub physical_len: Option<u64>,
}

/// The limits that a registration must observe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// The limits of its repository.
    pub repo: Limits,
    /// The name of its owner, and the limits of all repositories of the owner together.
    pub owner: Option<(String, Limits)>,
}

impl Allowance {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.repo.is_unlimited() && self.owner.is_none()
    }

    /// The first limit that a change exceeds, if any: of the repository, then of its owner.
    /// `before` and `after` are the usage of both.
    pub(crate) fn excess(&self, before: (Usage, Usage), after: (Usage, Usage)) -> Option<Excess> {
        let of_owner = self.owner.as_ref().map_or(Limits::default(), |(_, limits)| *limits);
        let excess = self.repo.excess(before.0, after.0, false);
        excess.or_else(|| of_owner.excess(before.1, after.1, true))
    }
}

/// A limited quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Files.
    Files,
    /// Raw bytes of files.
    LogicalBytes,
    /// Serialized bytes of xorbs, and bytes of records.
    PhysicalBytes,
}

/// The limit that a registration would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Whether the limit is for all repositories of the owner together; otherwise it is for the
    /// repository.
    pub is_owner_wide: bool,
    /// The quantity.
    pub quantity: Quantity,
    /// The limit.
    pub limit: u64,
    /// The usage before the registration.
    pub used: u64,
    /// The amount that the registration adds.
    pub added: u64,
}

impl Limits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// The first limit that the change from `before` to `after` exceeds, if any. If a quantity is
    /// already over its limit, a change that does not add to it is still allowed.
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

/// The methods of [`Index`](super::Index) for usage.
pub trait UsageIndex {
    /// The usage of this repository; zero if the repository is unknown. Reads one row.
    fn repo_usage(&self, repo: String) -> BoxFuture<'_, Result<Usage, IndexError>>;

    /// The sum over all repositories of this owner. A xorb of two repositories counts twice. The
    /// owner is the part of a repository's name before the last slash, or the whole name if it has
    /// no slash.
    fn owner_usage(&self, owner: String) -> BoxFuture<'_, Result<Usage, IndexError>>;

    /// The usage of repositories after `after`, in the order of their names' bytes. Excludes
    /// repositories whose usage is zero.
    fn usages_after(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>>;

    /// The longest time since the index was opened for which one writer made the others wait. Also
    /// here, because `/metrics` reads it.
    fn longest_write(&self) -> Duration;

    /// The usage of the repositories with the most physical bytes, the largest first.
    fn largest_usages(&self, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>>;
}
