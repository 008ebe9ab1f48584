//! Usage in SQLite: see [`UsageIndex`]. The triggers of migrations 9 to 19 and 25 maintain it,
//! and for batches of new files `register/insert.rs`. This module reads it.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::SqliteIndex;
use super::tx::{Query, Tx};
use crate::index::Registration;
use crate::index::error::IndexError;
use crate::index::usage::{RepoUsage, Usage, UsageIndex};

impl UsageIndex for SqliteIndex {
    /// Also here, because `/metrics` reads it: the longest wait of writers for one other writer.
    fn longest_write(&self) -> Duration {
        self.writer.longest_use()
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
        // The empty string is before every name. A repository without files may still be charged:
        // for the xorbs of a large removed file that is not swept yet.
        const SQL: &str = "SELECT file_count, logical_len, physical_len, name AS repo FROM repos \
             WHERE name > ? AND (file_count > 0 OR physical_len > 0) ORDER BY name LIMIT +?";
        let list = query(SQL).bind(after.unwrap_or_default()).bind(limit);
        async move { self.read("list the usage of repositories").all(list).await }.boxed()
    }

    fn largest_usages(&self, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>> {
        // Reads all rows, one per repository, and sorts them in memory: an index would cost every
        // registration a write. `physical_len` without files: see `usages_after`.
        const SQL: &str = "SELECT file_count, logical_len, physical_len, name AS repo FROM repos \
             WHERE file_count > 0 OR physical_len > 0 ORDER BY physical_len DESC, name LIMIT +?";
        async move { self.read("list the usage of the largest repositories").all(query(SQL).bind(limit)).await }.boxed()
    }
}

/// The usage of the repository of a registration, and of its owner. The usage of an owner without
/// limits is not read and is zero.
pub(super) async fn usages(tx: &mut Tx<'_>, registration: &Registration) -> Result<(Usage, Usage), IndexError> {
    let repo = tx.find(of_repo(&registration.repo)).await?.unwrap_or_default();
    let owner = match &registration.allowance.owner {
        None => Usage::default(),
        Some((name, _)) => tx.one(of_owner(name)).await?,
    };
    Ok((repo, owner))
}

fn of_repo(name: &str) -> Query<'static> {
    query("SELECT file_count, logical_len, physical_len FROM repos WHERE name = ?").bind(name)
}

fn of_owner(name: &str) -> Query<'static> {
    const SQL: &str = "SELECT coalesce(sum(file_count), 0) AS file_count, coalesce(sum(logical_len), 0) AS logical_len, \
         coalesce(sum(physical_len), 0) AS physical_len FROM repos WHERE owner = ?";
    query(SQL).bind(name)
}

#[cfg(test)]
impl SqliteIndex {
    /// Lines that describe the stored usage and file lists, and the same lines recounted from
    /// claims and references. A test checks that both are equal.
    pub(in crate::index) async fn recounted(&self) -> [Vec<String>; 2] {
        const STORED: &str = "SELECT name || ': ' || file_count || ', ' || logical_len || ', ' || physical_len \
             FROM repos WHERE file_count > 0 OR physical_len > 0 \
             UNION ALL SELECT name || ' has ' || xorb_id || ': ' || used.file_count || ', ' || len \
             FROM repo_xorbs AS used JOIN repos ON repos.id = repo_id \
             UNION ALL SELECT name || ' lists ' || file_id || ': ' || hex(hash) \
             FROM repo_files JOIN repos ON repos.id = repo_id ORDER BY 1";
        // The repositories of a large removed file are charged for its xorbs until it is swept. The
        // file itself no longer counts.
        // A Hub repository also has its history.
        const COUNTED: &str = "WITH charged AS (SELECT repo, xorb_id FROM xorb_files JOIN file_repos USING (file_id) \
             WHERE charged_below IS NULL OR xorb_id < charged_below), \
             parts AS (SELECT repo AS name, (removed_at IS NULL AND is_counted = 1) AS one, raw_len, record_len AS len \
             FROM file_repos JOIN files ON files.id = file_id \
             UNION ALL SELECT repo, 0, 0, serialized_len FROM (SELECT DISTINCT repo, xorb_id FROM charged) \
             JOIN xorbs ON xorbs.id = xorb_id \
             UNION ALL SELECT storage_name, 0, 0, length(entries) FROM hub_trees JOIN hub_repos ON id = repo_id \
             UNION ALL SELECT storage_name, 0, 0, 1024 + octet_length(message) \
             FROM hub_commits JOIN hub_repos ON id = repo_id) \
             SELECT name || ': ' || sum(one) || ', ' || sum(one * raw_len) || ', ' || sum(len) AS line \
             FROM parts GROUP BY name HAVING line NOT LIKE '%: 0, 0, 0' \
             UNION ALL SELECT repo || ' has ' || xorb_id || ': ' || count(*) || ', ' || max(serialized_len) \
             FROM charged JOIN xorbs ON xorbs.id = xorb_id GROUP BY repo, xorb_id \
             UNION ALL SELECT repo || ' lists ' || id || ': ' || hex(hash) FROM file_repos JOIN files ON id = file_id \
             WHERE removed_at IS NULL AND is_counted = 1 ORDER BY 1";
        let mut both = [Vec::new(), Vec::new()];
        for (lines, sql) in both.iter_mut().zip([STORED, COUNTED]) {
            let rows = sqlx::query(sql).fetch_all(self.readers.acquire().await.unwrap().parts().0).await.unwrap();
            lines.extend(rows.iter().map(|row| sqlx::Row::get::<String, _>(row, 0)));
        }
        both
    }

    /// Runs a statement; returns whether the database allows it.
    pub(in crate::index) async fn is_accepted(&self, sql: &str) -> bool {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(self.writer.acquire().await.unwrap().parts().0).await.is_ok()
    }
}
