//! The built-in migrations, which bring a database to the schema version of this program.
//!
//! Each migration is one transaction. A crash leaves the database at an earlier version, and the
//! next start continues. No migration is reverted: an older program refuses the database.

use std::borrow::Cow;
use std::cmp::Ordering;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Row, SqlSafeStr, SqlitePool};
use thiserror::Error;

use super::error::{IndexError, IndexErrorKind};
use super::sqlite::map;

/// Number, name and text of every file in `migrations/sqlite`, in order. A test compares this with
/// the directory.
pub(super) const SQLITE: &[(i64, &str, &str)] = &[
    (1, "xorbs", include_str!("../../migrations/sqlite/0001_xorbs.sql")),
    (2, "files", include_str!("../../migrations/sqlite/0002_files.sql")),
    (3, "grants", include_str!("../../migrations/sqlite/0003_grants.sql")),
    (4, "file_terms", include_str!("../../migrations/sqlite/0004_file_terms.sql")),
    (5, "file_xorbs", include_str!("../../migrations/sqlite/0005_file_xorbs.sql")),
    (6, "leases", include_str!("../../migrations/sqlite/0006_leases.sql")),
    (7, "health", include_str!("../../migrations/sqlite/0007_health.sql")),
    (8, "true_sha256", include_str!("../../migrations/sqlite/0008_true_sha256.sql")),
    (9, "usage", include_str!("../../migrations/sqlite/0009_usage.sql")),
    (10, "repo_files", include_str!("../../migrations/sqlite/0010_repo_files.sql")),
    (11, "registered_at", include_str!("../../migrations/sqlite/0011_registered_at.sql")),
    (12, "leaving_files", include_str!("../../migrations/sqlite/0012_leaving_files.sql")),
    (13, "store", include_str!("../../migrations/sqlite/0013_store.sql")),
    (14, "record_len", include_str!("../../migrations/sqlite/0014_record_len.sql")),
    (15, "claims_of_repos", include_str!("../../migrations/sqlite/0015_claims_of_repos.sql")),
    (16, "registrations", include_str!("../../migrations/sqlite/0016_registrations.sql")),
    (17, "objects", include_str!("../../migrations/sqlite/0017_objects.sql")),
];

/// Brings the database to the schema version of this program.
///
/// Refuses a database of a newer version, and one whose applied migrations differ from the built-in
/// ones.
pub(super) async fn run(pool: &SqlitePool) -> Result<(), IndexError> {
    let op = "bring the schema up to date";
    let known = SQLITE.last().map_or(0, |(version, ..)| *version);
    match migrator(SQLITE).run(pool).await {
        Ok(()) => Ok(()),
        Err(MigrateError::VersionMissing(found) | MigrateError::VersionTooNew(found, _)) => {
            let found = version(pool).await.unwrap_or(found);
            Err(IndexError { op, kind: IndexErrorKind::Newer, source: Box::new(OtherVersion { found, known }) })
        }
        Err(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) => Err(map(op, error)),
        Err(error) => Err(IndexError { op, kind: IndexErrorKind::Other, source: Box::new(error) }),
    }
}

/// Applies these migrations.
pub(super) fn migrator(migrations: &[(i64, &'static str, &'static str)]) -> Migrator {
    let migrations = migrations.iter().map(|(version, name, sql)| {
        Migration::new(*version, Cow::Borrowed(*name), MigrationType::Simple, (*sql).into_sql_str(), false)
    });
    Migrator { migrations: migrations.collect(), ..Migrator::DEFAULT }
}

/// A schema version that this program may not change here.
#[derive(Debug, Error)]
#[error("its schema has version {found}, this program supports {known}: use the zorb that serves it")]
struct OtherVersion {
    found: i64,
    known: i64,
}

/// Checks that the database has the schema version of this program, and changes nothing.
pub(super) async fn check(op: &'static str, pool: &SqlitePool) -> Result<(), IndexError> {
    let known = SQLITE.last().map_or(0, |(version, ..)| *version);
    let found = version(pool).await.map_err(|error| map(op, error))?;
    let kind = match found.cmp(&known) {
        Ordering::Equal => return Ok(()),
        Ordering::Greater => IndexErrorKind::Newer,
        Ordering::Less => IndexErrorKind::Older,
    };
    Err(IndexError { op, kind, source: Box::new(OtherVersion { found, known }) })
}

/// The schema version of the database.
async fn version(pool: &SqlitePool) -> sqlx::Result<i64> {
    let sql = "SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success";
    sqlx::query(sql).fetch_one(pool).await?.try_get(0)
}
