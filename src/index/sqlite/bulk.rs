//! Inserts many rows with one statement.
//!
//! Multi-row `VALUES` with bound parameters is faster than `json_each`, which writes and parses
//! hashes as text. One statement per row is far slower, because each statement is a round trip to
//! the thread of the connection (`cargo bench --bench insert_rows`). SQLite's `carray` could bind
//! an array, but our SQLite is built without it.

use sqlx::query_builder::Separated;
use sqlx::{QueryBuilder, Sqlite};

use super::tx::Tx;
use crate::index::error::IndexError;

/// The numbers of rows that a statement can have. They are few, so that a connection prepares few
/// different statements.
const SIZES: [usize; 5] = [256, 64, 16, 4, 1];

/// The columns of one row.
pub(super) type Columns<'q, 's> = Separated<'q, Sqlite, &'s str>;

/// Inserts these rows. `head` is the SQL before `VALUES`, such as `INSERT INTO t (a, b) `; `tail`
/// is the SQL after the values, such as ` ON CONFLICT DO NOTHING`.
pub(super) async fn insert_rows<R: Sync>(
    tx: &mut Tx<'_>,
    (head, tail): (&'static str, &'static str),
    rows: &[R],
    mut bind: impl FnMut(&mut Columns<'_, '_>, &R) + Send,
) -> Result<(), IndexError> {
    let mut rest = rows;
    for size in SIZES {
        while let Some((some, after)) = rest.split_at_checked(size) {
            let mut query = QueryBuilder::<Sqlite>::new(head);
            query.push_values(some, |mut columns, row| bind(&mut columns, row));
            query.push(tail);
            tx.execute(query.build()).await?;
            rest = after;
        }
    }
    Ok(())
}
