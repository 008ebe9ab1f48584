//! Rows of PostgreSQL: see [`decode`](crate::index::decode).

use sqlx::postgres::PgRow;

use crate::index::decode::cells;
pub(super) use crate::index::decode::{AnyTerms, FromRow, column, pack_chunks, row};

cells!(PgRow);
