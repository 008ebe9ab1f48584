//! Hub repositories in PostgreSQL.

use sqlx::Postgres;

use super::PostgresIndex;

crate::index::hub::hub_verbs!(PostgresIndex, Postgres);
crate::index::hub::hub_deletion_verbs!(PostgresIndex, Postgres);
crate::index::hub::hub_rename_verbs!(PostgresIndex, Postgres);
crate::index::hub::hub_sweep_verbs!(PostgresIndex, Postgres);
