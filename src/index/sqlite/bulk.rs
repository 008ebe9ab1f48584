//! Inserts many rows with one statement.
//!
//! Multi-row `VALUES` with bound parameters is faster than `json_each`, which writes and parses
//! hashes as text. Single statements are far slower: most of their time is the way to the thread of
//! the connection and back (`cargo bench --bench insert_rows`). `carray` is not built into our
//! SQLite.

use sqlx::query_builder::Separated;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::map;
use super::write::statement;
use crate::index::error::IndexError;

/// Rows of one statement. Few sizes, so that each statement is prepared once for a connection.
const SIZES: [usize; 5] = [256, 64, 16, 4, 1];

/// The columns of one row.
pub(super) type Columns<'q, 's> = Separated<'q, Sqlite, &'s str>;

/// Inserts these rows. The head comes before them, for instance `INSERT INTO t (a, b) `, and the
/// tail after them, for instance ` ON CONFLICT DO NOTHING`.
pub(super) async fn insert_rows<R: Sync>(
    op: &'static str,
    connection: &mut SqliteConnection,
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
            query.build().execute(statement(op, connection)?).await.map_err(|error| map(op, error))?;
            rest = after;
        }
    }
    Ok(())
}
