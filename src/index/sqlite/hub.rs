//! Hub repositories in SQLite.

use sqlx::Sqlite;

use super::SqliteIndex;

crate::index::hub::hub_verbs!(SqliteIndex, Sqlite);
crate::index::hub::hub_deletion_verbs!(SqliteIndex, Sqlite);
crate::index::hub::hub_rename_verbs!(SqliteIndex, Sqlite);
crate::index::hub::hub_sweep_verbs!(SqliteIndex, Sqlite);
