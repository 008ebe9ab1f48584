//! Inserts terms of files in SQLite.

use super::bulk::insert_rows;
use super::tx::Tx;
use crate::format::shard::Term;
use crate::index::error::IndexError;
pub(super) use crate::index::terms::{TermRun, runs};

/// Inserts new rows.
pub(super) async fn insert_runs(tx: &mut Tx<'_>, runs: &[TermRun<'_>]) -> Result<(), IndexError> {
    insert_rows(tx, ("INSERT INTO file_terms (file_id, start, terms) ", ""), runs, |columns, run| {
        columns.push_bind(run.file_id).push_bind(run.start()).push_bind(run.packed());
    })
    .await
}

/// Inserts all terms of a file that has no rows of terms yet.
pub(super) async fn insert_terms(tx: &mut Tx<'_>, file_id: i64, terms: &[Term]) -> Result<(), IndexError> {
    let runs: Vec<TermRun<'_>> = runs(file_id, terms).collect();
    insert_runs(tx, &runs).await
}
