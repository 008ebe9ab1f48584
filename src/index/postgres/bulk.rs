//! Inserts many rows with one statement: multi-row `VALUES` with bound parameters.

use sqlx::query_builder::Separated;
use sqlx::{Postgres, QueryBuilder};

use super::tx::Tx;
use crate::index::error::IndexError;

/// Rows of one statement. Few sizes, so that a connection prepares few different statements.
const SIZES: [usize; 5] = [256, 64, 16, 4, 1];

/// The columns of one row.
pub(super) type Columns<'q, 's> = Separated<'q, Postgres, &'s str>;

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
            let mut query = QueryBuilder::<Postgres>::new(head);
            query.push_values(some, |mut columns, row| bind(&mut columns, row));
            query.push(tail);
            tx.execute(query.build()).await?;
            rest = after;
        }
    }
    Ok(())
}
