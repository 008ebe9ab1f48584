//! Operations of usage, with faults.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{FaultyIndex, index_error};
use crate::index::{IndexError, RepoUsage, Usage, UsageIndex};

impl UsageIndex for FaultyIndex {
    fn longest_write(&self) -> std::time::Duration {
        self.inner.longest_write()
    }

    fn repo_usage(&self, repo: String) -> BoxFuture<'_, Result<Usage, IndexError>> {
        self.faults.around("repo_usage", self.inner.repo_usage(repo), index_error).boxed()
    }

    fn owner_usage(&self, owner: String) -> BoxFuture<'_, Result<Usage, IndexError>> {
        self.faults.around("owner_usage", self.inner.owner_usage(owner), index_error).boxed()
    }

    fn usages_after(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>> {
        self.faults.around("usages_after", self.inner.usages_after(after, limit), index_error).boxed()
    }

    fn largest_usages(&self, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>> {
        self.faults.around("largest_usages", self.inner.largest_usages(limit), index_error).boxed()
    }
}
