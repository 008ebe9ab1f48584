//! Rows of SQLite: see [`decode`](crate::index::decode).

use sqlx::sqlite::SqliteRow;

use crate::index::decode::cells;
pub(super) use crate::index::decode::{AnyTerms, FromRow, column, pack_chunks, row};

cells!(SqliteRow);
