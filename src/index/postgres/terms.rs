//! Inserts terms of files in PostgreSQL.

use super::bulk::insert_rows;
use super::tx::Tx;
use crate::index::error::IndexError;
pub(super) use crate::index::terms::{TermRun, runs};

/// Inserts new rows.
pub(super) async fn insert_runs(tx: &mut Tx<'_>, runs: &[TermRun<'_>]) -> Result<(), IndexError> {
    insert_rows(tx, ("INSERT INTO file_terms (file_id, start, terms) ", ""), runs, |columns, run| {
        columns.push_bind(run.file_id).push_bind(run.start()).push_bind(run.packed());
    })
    .await
}
