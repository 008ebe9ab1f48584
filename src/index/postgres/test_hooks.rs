//! Changes to the index that no production code makes, for tests: see
//! [`TestIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{AssertSqlSafe, query_scalar, raw_sql};

use super::PostgresIndex;
use crate::index::conformance::backends::{TestIndex, register_in_steps};
use crate::index::{IndexError, Registered, Registration};

/// What tests write in the words of SQLite, and the same in those of PostgreSQL.
const DIALECT: [(&str, &str); 5] = [
    ("x'", "'\\x"),
    ("zeroblob(32)", "sha256('')"),
    ("zeroblob(44)", "decode(repeat('00', 44), 'hex')"),
    ("randomblob(32)", "sha256(uuid_send(gen_random_uuid()))"),
    ("AS BLOB", "AS bytea"),
];

fn translated(sql: &str) -> String {
    DIALECT.iter().fold(sql.to_owned(), |sql, (lite, postgres)| sql.replace(lite, postgres))
}

impl PostgresIndex {
    /// The same index, but every registration is written in steps.
    pub(in crate::index) fn in_steps(mut self) -> Self {
        self.registers_in_steps = true;
        self
    }

    pub(super) async fn register_in_steps(
        &self,
        registration: &Registration,
        record: Option<u64>,
    ) -> Result<Registered, IndexError> {
        register_in_steps(self, registration, record).await
    }
}

impl TestIndex for PostgresIndex {
    fn tamper<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, ()> {
        async move {
            let sql = translated(sql);
            // Without the triggers that stand for foreign keys; those of usage count as in SQLite.
            let sql = format!(
                "ALTER TABLE xorbs DISABLE TRIGGER xorb_deleted; {sql}; ALTER TABLE xorbs ENABLE TRIGGER xorb_deleted"
            );
            raw_sql(AssertSqlSafe(sql)).execute(&self.writers).await.unwrap();
        }
        .boxed()
    }

    fn is_accepted<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, bool> {
        async move { raw_sql(AssertSqlSafe(translated(sql))).execute(&self.writers).await.is_ok() }.boxed()
    }

    fn recounted(&self) -> BoxFuture<'_, [Vec<String>; 2]> {
        // As in SQLite.
        const STORED: &str = "SELECT name || ': ' || file_count || ', ' || logical_len || ', ' || physical_len AS line \
             FROM repos WHERE file_count > 0 OR physical_len > 0 \
             UNION ALL SELECT name || ' has ' || xorb_id || ': ' || used.file_count || ', ' || len \
             FROM repo_xorbs AS used JOIN repos ON repos.id = repo_id \
             UNION ALL SELECT name || ' lists ' || file_id || ': ' || encode(hash, 'hex') \
             FROM repo_files JOIN repos ON repos.id = repo_id ORDER BY 1";
        const COUNTED: &str = "WITH charged AS (SELECT repo, xorb_id FROM xorb_files JOIN file_repos USING (file_id) \
             WHERE charged_below IS NULL OR xorb_id < charged_below), \
             parts AS (SELECT repo AS name, (removed_at IS NULL AND is_counted)::int AS one, raw_len, record_len AS len \
             FROM file_repos JOIN files ON files.id = file_id \
             UNION ALL SELECT repo, 0, 0, serialized_len FROM (SELECT DISTINCT repo, xorb_id FROM charged) AS each \
             JOIN xorbs ON xorbs.id = xorb_id \
             UNION ALL SELECT storage_name, 0, 0, length(entries) FROM hub_trees JOIN hub_repos ON id = repo_id \
             UNION ALL SELECT storage_name, 0, 0, 1024 + octet_length(message) \
             FROM hub_commits JOIN hub_repos ON id = repo_id) \
             SELECT name || ': ' || sum(one) || ', ' || sum(one * raw_len) || ', ' || sum(len) AS line \
             FROM parts GROUP BY name HAVING sum(one) > 0 OR sum(one * raw_len) > 0 OR sum(len) > 0 \
             UNION ALL SELECT repo || ' has ' || xorb_id || ': ' || count(*) || ', ' || max(serialized_len) \
             FROM charged JOIN xorbs ON xorbs.id = xorb_id GROUP BY repo, xorb_id \
             UNION ALL SELECT repo || ' lists ' || id || ': ' || encode(hash, 'hex') \
             FROM file_repos JOIN files ON id = file_id WHERE removed_at IS NULL AND is_counted ORDER BY 1";
        async move {
            let mut both = [Vec::new(), Vec::new()];
            for (lines, sql) in both.iter_mut().zip([STORED, COUNTED]) {
                *lines = query_scalar(sql).fetch_all(&self.readers).await.unwrap();
            }
            both
        }
        .boxed()
    }

    fn left_row_count(&self) -> BoxFuture<'_, i64> {
        const SQL: &str = "SELECT (SELECT count(*) FROM registrations) + (SELECT count(*) FROM registration_files) \
             + (SELECT count(*) FROM files WHERE removed_at IS NOT NULL OR registration IN (SELECT id FROM hidden)) \
             + (SELECT count(*) FROM file_terms WHERE file_id NOT IN (SELECT id FROM files)) \
             + (SELECT count(*) FROM xorb_files WHERE file_id NOT IN (SELECT id FROM files)) \
             + (SELECT count(*) FROM file_repos WHERE file_id NOT IN (SELECT id FROM files)) \
             + (SELECT count(*) FROM repo_files WHERE file_id NOT IN (SELECT id FROM files))";
        async move { query_scalar(SQL).fetch_one(&self.readers).await.unwrap() }.boxed()
    }
}

/// An index in a new database.
pub(crate) async fn fresh() -> PostgresIndex {
    PostgresIndex::open(&super::test_server::migrated().await).await.unwrap()
}
