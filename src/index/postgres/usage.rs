//! Usage in PostgreSQL. The triggers of migrations 1 and 9 maintain it; this module reads it.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::PostgresIndex;
use super::tx::{Query, Tx};
use crate::index::Registration;
use crate::index::error::IndexError;
use crate::index::usage::{RepoUsage, Usage, UsageIndex};

impl UsageIndex for PostgresIndex {
    fn longest_write(&self) -> Duration {
        self.longest_write.get()
    }

    fn repo_usage(&self, repo: String) -> BoxFuture<'_, Result<Usage, IndexError>> {
        async move {
            let usage = self.read("read the usage of a repository").find(of_repo(&repo)).await?;
            Ok(usage.unwrap_or_default())
        }
        .boxed()
    }

    fn owner_usage(&self, owner: String) -> BoxFuture<'_, Result<Usage, IndexError>> {
        async move { self.read("read the usage of an owner").one(of_owner(&owner)).await }.boxed()
    }

    fn usages_after(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>> {
        // The empty string is before every name.
        const SQL: &str = "SELECT file_count, logical_len, physical_len, name AS repo FROM repos \
             WHERE name > $1 AND (file_count > 0 OR physical_len > 0) ORDER BY name LIMIT $2";
        let list = query(SQL).bind(after.unwrap_or_default()).bind(i64::from(limit));
        async move { self.read("list the usage of repositories").all(list).await }.boxed()
    }

    fn largest_usages(&self, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>> {
        // Reads all rows, one per repository, and sorts them in memory: an index would cost every
        // registration a write.
        const SQL: &str = "SELECT file_count, logical_len, physical_len, name AS repo FROM repos \
             WHERE file_count > 0 OR physical_len > 0 ORDER BY physical_len DESC, name LIMIT $1";
        async move { self.read("list the usage of the largest repositories").all(query(SQL).bind(i64::from(limit))).await }.boxed()
    }
}

/// The usage of the repository of a registration, and of its owner if that is limited.
pub(super) async fn usages(tx: &mut Tx<'_>, registration: &Registration) -> Result<(Usage, Usage), IndexError> {
    let repo = tx.find(of_repo(&registration.repo)).await?.unwrap_or_default();
    let owner = match &registration.allowance.owner {
        None => Usage::default(),
        Some((name, _)) => tx.one(of_owner(name)).await?,
    };
    Ok((repo, owner))
}

fn of_repo(name: &str) -> Query<'static> {
    query("SELECT file_count, logical_len, physical_len FROM repos WHERE name = $1").bind(name)
}

fn of_owner(name: &str) -> Query<'static> {
    const SQL: &str = "SELECT coalesce(sum(file_count), 0)::bigint AS file_count, coalesce(sum(logical_len), 0)::bigint AS logical_len, \
         coalesce(sum(physical_len), 0)::bigint AS physical_len FROM repos WHERE owner = $1";
    query(SQL).bind(name)
}
