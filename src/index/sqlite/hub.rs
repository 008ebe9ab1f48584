//! Hub repositories in SQLite.

use sqlx::Sqlite;

use super::SqliteIndex;

crate::index::hub::hub_verbs!(SqliteIndex, Sqlite);
