//! The migrations that are built in, and how they are applied.

use std::borrow::Cow;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{SqlSafeStr, SqlitePool};

/// Number, name and text of every file in `migrations/sqlite`, in order. A test compares this with the folder.
pub(super) const SQLITE: &[(i64, &str, &str)] = &[
    (1, "xorbs", include_str!("../../migrations/sqlite/0001_xorbs.sql")),
    (2, "files", include_str!("../../migrations/sqlite/0002_files.sql")),
    (3, "grants", include_str!("../../migrations/sqlite/0003_grants.sql")),
];

/// Brings the database to the version that this program knows.
///
/// Refuses a database of a newer version, and one whose applied migrations are not those that are built in.
pub(super) async fn run(pool: &SqlitePool) -> Result<(), MigrateError> {
    let migrations = SQLITE.iter().map(|(version, name, sql)| {
        Migration::new(*version, Cow::Borrowed(name), MigrationType::Simple, (*sql).into_sql_str(), false)
    });
    let migrator = Migrator { migrations: migrations.collect(), ..Migrator::DEFAULT };
    migrator.run(pool).await
}
