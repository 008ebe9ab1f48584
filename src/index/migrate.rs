//! The built-in migrations, which bring a database to the schema version of this program.
//!
//! Each migration is one transaction. A crash leaves the database at the version of the last
//! committed migration, and the next start continues from there. In an empty database all of them
//! are one transaction, which a crash leaves empty: the first start of a store syncs 27 times
//! instead of 77. No migration can be reverted. An older program refuses a database that a newer
//! one has migrated.

use std::borrow::Cow;
use std::cmp::Ordering;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Connection, Row, SqlSafeStr, SqliteConnection};
use thiserror::Error;

use super::error::{IndexError, IndexErrorKind};
use super::sqlite::map;

/// Number, name and text of migrations, in order.
pub(super) type Migrations = &'static [(i64, &'static str, &'static str)];

/// Every file in `migrations/sqlite`. A test compares this with the directory.
pub(super) const SQLITE: Migrations = &[
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
    (18, "visible_xorbs", include_str!("../../migrations/sqlite/0018_visible_xorbs.sql")),
    (19, "claims_in_parts", include_str!("../../migrations/sqlite/0019_claims_in_parts.sql")),
    (20, "hub", include_str!("../../migrations/sqlite/0020_hub.sql")),
    (21, "hub_records", include_str!("../../migrations/sqlite/0021_hub_records.sql")),
    (22, "hub_deletion", include_str!("../../migrations/sqlite/0022_hub_deletion.sql")),
    (23, "hub_sweep", include_str!("../../migrations/sqlite/0023_hub_sweep.sql")),
    (24, "hub_former_names", include_str!("../../migrations/sqlite/0024_hub_former_names.sql")),
    (25, "hub_usage", include_str!("../../migrations/sqlite/0025_hub_usage.sql")),
    (26, "hub_catalog", include_str!("../../migrations/sqlite/0026_hub_catalog.sql")),
    (27, "open_records", include_str!("../../migrations/sqlite/0027_open_records.sql")),
    (28, "claim_times", include_str!("../../migrations/sqlite/0028_claim_times.sql")),
];

/// Every file in `migrations/postgres`, likewise compared by a test.
#[cfg(any(feature = "postgres", test))]
pub(super) const POSTGRES: Migrations = &[
    (1, "init", include_str!("../../migrations/postgres/0001_init.sql")),
    (2, "hub", include_str!("../../migrations/postgres/0002_hub.sql")),
    (3, "hub_records", include_str!("../../migrations/postgres/0003_hub_records.sql")),
    (4, "hub_deletion", include_str!("../../migrations/postgres/0004_hub_deletion.sql")),
    (5, "hub_sweep", include_str!("../../migrations/postgres/0005_hub_sweep.sql")),
    (6, "hub_former_names", include_str!("../../migrations/postgres/0006_hub_former_names.sql")),
    (7, "servers", include_str!("../../migrations/postgres/0007_servers.sql")),
    (8, "history", include_str!("../../migrations/postgres/0008_history.sql")),
    (9, "hub_usage", include_str!("../../migrations/postgres/0009_hub_usage.sql")),
    (10, "restoring", include_str!("../../migrations/postgres/0010_restoring.sql")),
    (11, "hub_catalog", include_str!("../../migrations/postgres/0011_hub_catalog.sql")),
    (12, "claim_times", include_str!("../../migrations/postgres/0012_claim_times.sql")),
];

/// Brings the database to the schema version of this program.
///
/// Refuses a database of a newer version, and one whose applied migrations differ from the built-in
/// ones.
pub(super) async fn run(connection: &mut SqliteConnection) -> Result<(), IndexError> {
    let op = "bring the schema up to date";
    let migrated = async {
        let is_empty = "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)";
        // As `run`, which the compiler refuses for a reference in a future that is `Send`.
        if !sqlx::query(is_empty).fetch_one(&mut *connection).await?.try_get(0)? {
            return migrator(SQLITE).run_direct(None, &mut *connection, false).await;
        }
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        migrator(SQLITE).run_direct(None, &mut *tx, false).await?;
        Ok(tx.commit().await?)
    };
    match migrated.await {
        Ok(()) => Ok(()),
        Err(error) => Err(failure(op, SQLITE, error, version(connection).await.ok(), map)),
    }
}

/// The error of migrations that were not applied to a database, whose version is `found`.
pub(super) fn failure(
    op: &'static str,
    migrations: Migrations,
    error: MigrateError,
    found: Option<i64>,
    map: fn(&'static str, sqlx::Error) -> IndexError,
) -> IndexError {
    match error {
        MigrateError::VersionMissing(missing) | MigrateError::VersionTooNew(missing, _) => {
            let (found, known) = (found.unwrap_or(missing), last(migrations));
            let source = Box::new(OtherVersion { found, known, advice: "use the zorb that serves it" });
            IndexError { op, kind: IndexErrorKind::Newer, source }
        }
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => map(op, error),
        error => IndexError { op, kind: IndexErrorKind::Other, source: Box::new(error) },
    }
}

/// The schema version after all migrations.
fn last(migrations: Migrations) -> i64 {
    migrations.last().map_or(0, |(version, ..)| *version)
}

/// Applies these migrations.
pub(super) fn migrator(migrations: &[(i64, &'static str, &'static str)]) -> Migrator {
    let migrations = migrations.iter().map(|(version, name, sql)| {
        Migration::new(*version, Cow::Borrowed(*name), MigrationType::Simple, (*sql).into_sql_str(), false)
    });
    Migrator { migrations: migrations.collect(), ..Migrator::DEFAULT }
}

/// A schema version that this program cannot use, or may not migrate here.
#[derive(Debug, Error)]
#[error("its schema has version {found}, this program supports {known}: {advice}")]
struct OtherVersion {
    found: i64,
    known: i64,
    advice: &'static str,
}

/// Checks that the database has the schema version of this program, and changes nothing.
pub(super) async fn check(op: &'static str, connection: &mut SqliteConnection) -> Result<(), IndexError> {
    let found = version(connection).await.map_err(|error| map(op, error))?;
    compare(op, SQLITE, found, "use the zorb that serves it")
}

/// Compares the version of a database with that of this program. `advice` is for an older database.
pub(super) fn compare(
    op: &'static str,
    migrations: Migrations,
    found: i64,
    advice: &'static str,
) -> Result<(), IndexError> {
    let known = last(migrations);
    let kind = match found.cmp(&known) {
        Ordering::Equal => return Ok(()),
        Ordering::Greater => IndexErrorKind::Newer,
        Ordering::Less => IndexErrorKind::Older,
    };
    let advice = if kind == IndexErrorKind::Older { advice } else { "use the zorb that serves it" };
    Err(IndexError { op, kind, source: Box::new(OtherVersion { found, known, advice }) })
}

/// The schema version of the database.
async fn version(connection: &mut SqliteConnection) -> sqlx::Result<i64> {
    let sql = "SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success";
    sqlx::query(sql).fetch_one(connection).await?.try_get(0)
}
