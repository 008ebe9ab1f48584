//! Usage in SQLite. The triggers of migrations 9, 12 and 14 maintain it; this module reads it and
//! checks limits.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteRow;
use sqlx::{Executor, Row, Sqlite, SqliteConnection};

use super::write::statement;
use super::{SqliteIndex, get, map};
use crate::index::error::IndexError;
use crate::index::usage::{Excess, Limits, RepoUsage, Usage, UsageIndex};
use crate::index::{Begun, Registration};

impl UsageIndex for SqliteIndex {
    fn longest_write(&self) -> Duration {
        self.longest_write.get()
    }

    fn repo_usage(&self, repo: String) -> BoxFuture<'_, Result<Usage, IndexError>> {
        async move { of_repo("read the usage of a repository", &self.readers, &repo).await }.boxed()
    }

    fn owner_usage(&self, owner: String) -> BoxFuture<'_, Result<Usage, IndexError>> {
        async move { of_owner("read the usage of an owner", &self.readers, &owner).await }.boxed()
    }

    fn usages_after(&self, after: Option<String>, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>> {
        // The empty string is before every name.
        const SQL: &str = "SELECT file_count, logical_len, physical_len, name FROM repos \
             WHERE name > ? AND (file_count > 0 OR physical_len > 0) ORDER BY name LIMIT ?";
        let op = "list the usage of repositories";
        async move {
            let rows = sqlx::query(SQL)
                .bind(after.unwrap_or_default())
                .bind(limit)
                .fetch_all(&self.readers)
                .await
                .map_err(|error| map(op, error))?;
            rows.iter().map(|row| parse_named(op, row)).collect()
        }
        .boxed()
    }

    fn largest_usages(&self, limit: u32) -> BoxFuture<'_, Result<Vec<RepoUsage>, IndexError>> {
        // Reads all rows, one per repository, and sorts them in memory: an index would cost every
        // registration a write.
        const SQL: &str = "SELECT file_count, logical_len, physical_len, name FROM repos \
             WHERE file_count > 0 OR physical_len > 0 ORDER BY physical_len DESC, name LIMIT ?";
        let op = "list the usage of the largest repositories";
        async move {
            let rows = sqlx::query(SQL).bind(limit).fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            rows.iter().map(|row| parse_named(op, row)).collect()
        }
        .boxed()
    }
}

/// The limited usage before a registration.
#[derive(Debug)]
pub(super) struct Meter<'r> {
    registration: &'r Registration,
    repo: Usage,
    owner: Usage,
}

impl<'r> Meter<'r> {
    /// Reads the usage in the transaction of the registration; `None` without limits.
    pub(super) async fn read(
        op: &'static str,
        connection: &mut SqliteConnection,
        registration: &'r Registration,
    ) -> Result<Option<Self>, IndexError> {
        let allowance = &registration.allowance;
        if allowance.repo.is_none() && allowance.owner.is_none() {
            return Ok(None);
        }
        let (repo, owner) = usages(op, connection, registration).await?;
        Ok(Some(Self { registration, repo, owner }))
    }

    /// The usage when a registration in steps began; `None` without limits.
    pub(super) fn since(registration: &'r Registration, begun: Begun) -> Option<Self> {
        let allowance = &registration.allowance;
        let is_limited = !allowance.repo.is_none() || allowance.owner.is_some();
        is_limited.then_some(Self { registration, repo: begun.repo, owner: begun.owner })
    }

    /// Checks the present usage against the limits.
    pub(super) async fn excess(
        &self,
        op: &'static str,
        connection: &mut SqliteConnection,
    ) -> Result<Option<Excess>, IndexError> {
        let (repo, owner) = usages(op, connection, self.registration).await?;
        let allowance = &self.registration.allowance;
        let owner_limits = allowance.owner.as_ref().map_or(Limits::default(), |(_, limits)| *limits);
        let own = allowance.repo.excess(self.repo, repo, false);
        Ok(own.or_else(|| owner_limits.excess(self.owner, owner, true)))
    }
}

/// The usage of the repository of a registration, and of its owner if that is limited.
pub(super) async fn usages(
    op: &'static str,
    connection: &mut SqliteConnection,
    registration: &Registration,
) -> Result<(Usage, Usage), IndexError> {
    let repo = of_repo(op, statement(op, connection)?, &registration.repo).await?;
    let owner = match &registration.allowance.owner {
        None => Usage::default(),
        Some((name, _)) => of_owner(op, statement(op, connection)?, name).await?,
    };
    Ok((repo, owner))
}

async fn of_repo<'e>(
    op: &'static str,
    executor: impl Executor<'e, Database = Sqlite>,
    name: &str,
) -> Result<Usage, IndexError> {
    let sql = "SELECT file_count, logical_len, physical_len FROM repos WHERE name = ?";
    let row = sqlx::query(sql).bind(name.to_owned()).fetch_optional(executor).await.map_err(|error| map(op, error))?;
    row.map_or(Ok(Usage::default()), |row| parse_usage(op, &row))
}

async fn of_owner<'e>(
    op: &'static str,
    executor: impl Executor<'e, Database = Sqlite>,
    name: &str,
) -> Result<Usage, IndexError> {
    let sql = "SELECT coalesce(sum(file_count), 0), coalesce(sum(logical_len), 0), coalesce(sum(physical_len), 0) \
         FROM repos WHERE owner = ?";
    let row = sqlx::query(sql).bind(name.to_owned()).fetch_one(executor).await.map_err(|error| map(op, error))?;
    parse_usage(op, &row)
}

fn parse_named(op: &'static str, row: &SqliteRow) -> Result<RepoUsage, IndexError> {
    Ok(RepoUsage { repo: row.try_get(3).map_err(|error| map(op, error))?, usage: parse_usage(op, row)? })
}

fn parse_usage(op: &'static str, row: &SqliteRow) -> Result<Usage, IndexError> {
    let column = |index: usize| get::<i64>(op, row, index).map(i64::cast_unsigned);
    Ok(Usage { file_count: column(0)?, logical_len: column(1)?, physical_len: column(2)? })
}

#[cfg(test)]
impl SqliteIndex {
    /// The stored usage and lists, and the same recounted from claims and references, as lines to
    /// be compared.
    pub(in crate::index) async fn recounted(&self) -> [Vec<String>; 2] {
        const STORED: &str = "SELECT name || ': ' || file_count || ', ' || logical_len || ', ' || physical_len \
             FROM repos WHERE file_count > 0 OR physical_len > 0 \
             UNION ALL SELECT name || ' has ' || xorb_id || ': ' || used.file_count || ', ' || len \
             FROM repo_xorbs AS used JOIN repos ON repos.id = repo_id \
             UNION ALL SELECT name || ' lists ' || file_id || ': ' || hex(hash) \
             FROM repo_files JOIN repos ON repos.id = repo_id ORDER BY 1";
        // A large removed file is charged until it is swept, but not counted.
        const COUNTED: &str = "SELECT repo || ': ' || count(*) FILTER (WHERE removed_at IS NULL) || ', ' || \
             coalesce(sum(raw_len) FILTER (WHERE removed_at IS NULL), 0) || ', ' || \
             (sum(record_len) + (SELECT coalesce(sum(serialized_len), 0) FROM xorbs WHERE id IN \
             (SELECT xorb_id FROM xorb_files JOIN file_repos AS r USING (file_id) WHERE r.repo = file_repos.repo))) AS line \
             FROM file_repos JOIN files ON files.id = file_id GROUP BY repo HAVING line NOT LIKE '%: 0, 0, 0' \
             UNION ALL SELECT repo || ' has ' || xorb_id || ': ' || count(*) || ', ' || max(serialized_len) \
             FROM file_repos JOIN xorb_files USING (file_id) JOIN xorbs ON xorbs.id = xorb_id GROUP BY repo, xorb_id \
             UNION ALL SELECT repo || ' lists ' || id || ': ' || hex(hash) FROM file_repos JOIN files ON id = file_id \
             WHERE removed_at IS NULL ORDER BY 1";
        let mut both = [Vec::new(), Vec::new()];
        for (lines, sql) in both.iter_mut().zip([STORED, COUNTED]) {
            let rows = sqlx::query(sql).fetch_all(&self.readers).await.unwrap();
            lines.extend(rows.iter().map(|row| row.get::<String, _>(0)));
        }
        both
    }

    /// Runs any statement; returns whether the database allows it.
    pub(in crate::index) async fn is_let(&self, sql: &'static str) -> bool {
        sqlx::raw_sql(sql).execute(&self.writer).await.is_ok()
    }
}
