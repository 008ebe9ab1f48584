//! Quotas: limits for repositories and owners, and their usage.
//!
//! A registration is charged in the transaction that enters it into the index, or is refused there
//! and changes nothing. The charge depends only on the files of a repository (see [`Usage`]). The
//! charge for a file ends as soon as the repository's claim is removed, although GC deletes the
//! bytes later. Uploads are not charged, because a xorb that no file needs is garbage.
//!
//! A commit of a Hub repository is compared with the limits before it is written. So commits at one
//! moment to several repositories can exceed the limits of their owner, each by itself.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use thiserror::Error;

use super::Server;
use super::access::{Claims, RepoScope, Scope};
use super::error::{OverQuota, RegisterError, StoreError};
use super::listing::{MAX_PAGE_COUNT, Page};
use super::scope::domain;
use crate::format::FileHash;
use crate::format::shard::FileInfo;
use crate::index::{Allowance, Excess, Limits, RepoUsage, Usage, commit_len};

/// Files that are looked up with one query.
const QUOTA_BATCH_COUNT: usize = 500;

/// Up to this number of files, a refusal states the exact excess. With more files, it states the
/// excess at which the lookup stopped, because a refusal must not cost as much as a registration.
const QUOTA_EXACT_COUNT: usize = 10_000;

/// The quotas of repositories. By default, there are none.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    each: Limits,
    repos: HashMap<String, Limits>,
    owners: HashMap<String, Limits>,
}

impl Quotas {
    /// Limits for each repository that is not named, for named ones (`*` stands for tokens of all
    /// repositories), and for owners.
    #[must_use]
    pub fn new(each: Limits, repos: HashMap<String, Limits>, owners: HashMap<String, Limits>) -> Self {
        Self { each, repos, owners }
    }

    /// The limits of a repository. The limits for each repository that is not named do not apply to
    /// `*`.
    fn of_repo(&self, repo: &str) -> Limits {
        let rest = if repo == "*" { Limits::default() } else { self.each };
        self.repos.get(repo).copied().unwrap_or(rest)
    }

    /// The name and the limits of the owner of a repository, if the owner has limits.
    fn of_owner(&self, repo: &str) -> Option<(String, Limits)> {
        let owner = owner(repo)?;
        self.owners.get(&owner).map(|limits| (owner, *limits))
    }

    pub(super) fn allowance(&self, repo: &RepoScope) -> Allowance {
        self.allowance_of(&repo.to_string())
    }

    fn allowance_of(&self, repo: &str) -> Allowance {
        Allowance { repo: self.of_repo(repo), owner: self.of_owner(repo) }
    }
}

/// The usage with this file added.
fn with(usage: Usage, file: &FileInfo) -> Usage {
    Usage {
        file_count: usage.file_count.saturating_add(1),
        logical_len: usage.logical_len.saturating_add(file.raw_len()),
        ..usage
    }
}

/// The owner of a repository, which is also its dedup scope. `*` has none.
fn owner(repo: &str) -> Option<String> {
    let scope: RepoScope = repo.parse().ok()?;
    (scope != RepoScope::All).then(|| domain(&scope))
}

/// Usage and limits of a repository or an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// A repository, or an owner.
    pub name: String,
    /// Its usage.
    pub usage: Usage,
    /// Its limits.
    pub limits: Limits,
}

/// Usage and limits of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeteredRepo {
    /// The repository.
    pub repo: Holding,
    /// All repositories of its owner together, if the owner has limits.
    pub owner: Option<Holding>,
}

/// Why a usage was not returned.
#[derive(Debug, Error)]
pub enum UsageError {
    /// The token is for another repository, or only for reading a public one.
    #[error("the usage belongs to another repository")]
    Foreign,
    /// The index failed.
    #[error("the index cannot be read")]
    Store(#[from] StoreError),
}

impl Server {
    /// Refuses files that exceed a quota of files or of their bytes, as early as possible. Stored
    /// bytes are compared only when the registration is written: before the proof, the response
    /// must not tell which bytes are stored.
    pub(super) async fn check_quota(&self, repo: &RepoScope, files: &[FileInfo]) -> Result<(), RegisterError> {
        self.check_quota_with(repo, files, Usage::default()).await
    }

    /// Refuses a file of this length that exceeds a quota, before its bytes are received.
    pub(super) async fn check_quota_of_file(&self, repo: &RepoScope, len: u64) -> Result<(), RegisterError> {
        self.check_quota_with(repo, &[], Usage { file_count: 1, logical_len: len, physical_len: 0 }).await
    }

    /// Refuses a commit to this Hub repository that exceeds a quota of stored bytes: with a message
    /// and directories of these lengths, of which some may be stored already. Also one that only
    /// deletes files, because it adds to the history.
    pub(super) async fn check_quota_of_commit(
        &self,
        storage_name: &str,
        message_len: usize,
        tree_lens: impl Iterator<Item = usize> + Send,
    ) -> Result<(), RegisterError> {
        let allowance = self.quotas.allowance_of(storage_name);
        if allowance.is_unlimited() {
            return Ok(());
        }
        let index = &self.store.index;
        let of_repo = index.repo_usage(storage_name.to_owned()).await.map_err(StoreError::from)?;
        let of_owner = match &allowance.owner {
            Some((owner, _)) => index.owner_usage(owner.clone()).await.map_err(StoreError::from)?,
            None => Usage::default(),
        };
        let len = tree_lens.fold(commit_len(message_len), |len, tree| len.saturating_add(tree as u64));
        let with = |usage: Usage| Usage { physical_len: usage.physical_len.saturating_add(len), ..usage };
        if let Some(excess) = allowance.excess((of_repo, of_owner), (with(of_repo), with(of_owner))) {
            self.store.metrics.quota_refused.inc();
            return Err(RegisterError::OverQuota(OverQuota::new(storage_name, &allowance, excess)));
        }
        Ok(())
    }

    /// Refuses these files and this further usage if they exceed a quota.
    async fn check_quota_with(
        &self,
        repo: &RepoScope,
        files: &[FileInfo],
        further: Usage,
    ) -> Result<(), RegisterError> {
        let allowance = self.quotas.allowance(repo);
        let name = repo.to_string();
        let owner = allowance.owner.clone();
        let mut limited = vec![(None, allowance.repo)];
        limited.extend(owner.map(|(owner, limits)| (Some(owner), limits)));
        for (owner, limits) in limited {
            let limits = Limits { physical_len: None, ..limits };
            if limits.is_unlimited() {
                continue;
            }
            let used = match &owner {
                Some(owner) => self.store.index.owner_usage(owner.clone()).await,
                None => self.store.index.repo_usage(name.clone()).await,
            };
            let used = used.map_err(StoreError::from)?;
            if let Some(excess) = self.find_excess(&name, (files, further), (used, limits, owner.is_some())).await? {
                self.store.metrics.quota_refused.inc();
                return Err(RegisterError::OverQuota(OverQuota::new(&name, &allowance, excess)));
            }
        }
        Ok(())
    }

    /// The excess over a limit when the files that are new to the repository are added, and the
    /// further usage.
    async fn find_excess(
        &self,
        repo: &str,
        (files, further): (&[FileInfo], Usage),
        (used, limits, is_owner_wide): (Usage, Limits, bool),
    ) -> Result<Option<Excess>, StoreError> {
        let begun = Usage {
            file_count: used.file_count.saturating_add(further.file_count),
            logical_len: used.logical_len.saturating_add(further.logical_len),
            ..used
        };
        let all = files.iter().fold(begun, with);
        if limits.excess(used, all, is_owner_wide).is_none() {
            return Ok(None);
        }
        // Files that the repository has claimed already add nothing.
        let mut after = begun;
        for (some, checked_count) in files.chunks(QUOTA_BATCH_COUNT).zip((0..).step_by(QUOTA_BATCH_COUNT)) {
            let hashes = some.iter().map(|file| file.hash).collect();
            let claimed = self.store.index.claimed_files(hashes, repo.to_owned()).await?;
            let claimed: HashSet<FileHash> = claimed.into_iter().map(|(file, _)| file).collect();
            after = some.iter().filter(|file| !claimed.contains(&file.hash)).fold(after, with);
            let excess = limits.excess(used, after, is_owner_wide);
            if excess.is_some() && checked_count >= QUOTA_EXACT_COUNT {
                return Ok(excess);
            }
        }
        Ok(limits.excess(used, after, is_owner_wide))
    }

    /// The usage of `repo`, or without `repo` that of the repository of the claims, unless these
    /// are only for what is public. An operator who names no `repo` gets all repositories with any
    /// usage. They are ordered by name and begin behind `after`: up to `count` of them, and up to
    /// [`MAX_PAGE_COUNT`].
    ///
    /// # Errors
    ///
    /// See [`UsageError`].
    pub async fn usage(
        &self,
        claims: &Claims,
        repo: Option<RepoScope>,
        after: Option<String>,
        count: u32,
    ) -> Result<Page<MeteredRepo>, UsageError> {
        let is_operator = claims.repo == RepoScope::All && claims.scope == Scope::Admin;
        let one = match repo {
            None if is_operator => return Ok(self.usages(after, count.clamp(1, MAX_PAGE_COUNT)).await?),
            Some(repo) if is_operator || repo == claims.repo => repo.to_string(),
            Some(_) => return Err(UsageError::Foreign),
            None if matches!(claims.repo, RepoScope::Public(_)) => return Err(UsageError::Foreign),
            None => claims.repo.to_string(),
        };
        let usage = self.store.index.repo_usage(one.clone()).await.map_err(StoreError::from)?;
        let owner = self.owner_of(&one).await?;
        let repo = Holding { limits: self.quotas.of_repo(&one), name: one, usage };
        Ok(Page { entries: vec![MeteredRepo { repo, owner }], is_full: false })
    }

    /// The repositories with the most stored bytes, the largest first, `count` at most.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn largest_usages(&self, count: u32) -> Result<Vec<RepoUsage>, StoreError> {
        Ok(self.store.index.largest_usages(count).await?)
    }

    /// The longest time that a write of the index has blocked other writers, since it was opened.
    #[must_use]
    pub fn longest_write(&self) -> Duration {
        self.store.index.longest_write()
    }

    async fn usages(&self, after: Option<String>, count: u32) -> Result<Page<MeteredRepo>, StoreError> {
        let found = self.store.index.usages_after(after, count).await?;
        let is_full = found.len() as u64 >= count.into();
        let mut entries: Vec<MeteredRepo> = Vec::with_capacity(found.len());
        for found in found {
            // Repositories of one owner are mostly adjacent, so reuse the owner of the previous
            // one.
            let name = self.quotas.of_owner(&found.repo).map(|(owner, _)| owner);
            let previous = entries.last().and_then(|last| last.owner.clone());
            let owner = match previous.filter(|previous| Some(&previous.name) == name.as_ref()) {
                Some(owner) => Some(owner),
                None => self.owner_of(&found.repo).await?,
            };
            let limits = self.quotas.of_repo(&found.repo);
            entries.push(MeteredRepo { repo: Holding { name: found.repo, usage: found.usage, limits }, owner });
        }
        Ok(Page { entries, is_full })
    }

    async fn owner_of(&self, repo: &str) -> Result<Option<Holding>, StoreError> {
        let Some((name, limits)) = self.quotas.of_owner(repo) else { return Ok(None) };
        let usage = self.store.index.owner_usage(name.clone()).await?;
        Ok(Some(Holding { name, usage, limits }))
    }
}
