//! Terms of files, in runs: each row has up to 512 terms, and the byte of the file where they
//! begin.

use sqlx::SqliteConnection;
use tokio::task::coop::consume_budget;

use super::bulk::insert_rows;
use super::{SqliteIndex, get, map};
use crate::format::shard::Term;
use crate::format::{ByteRange, FileHash};
use crate::index::error::{Inconsistent, IndexError};
use crate::index::files::{pack_terms, parse_terms};
use crate::index::{FileRow, Reader};

/// Terms of one row: a few pages of the database, or half a GiB of a file with terms of 1 MiB.
const RUN_COUNT: usize = 512;

impl SqliteIndex {
    pub(super) async fn read_file(
        &self,
        hash: FileHash,
        reader: Reader,
        part: Option<ByteRange>,
    ) -> Result<Option<FileRow>, IndexError> {
        // Every run that begins within the part, and the last one that begins before it. One row
        // without terms if there is no such run.
        const SQL: &str = "SELECT raw_len, start, terms FROM files LEFT JOIN file_terms ON file_id = id \
             AND start >= coalesce((SELECT max(start) FROM file_terms WHERE file_id = id AND start <= ?3), 0) \
             AND start < ?4 \
             WHERE hash = ?1 AND files.registration NOT IN hidden AND (?2 IS NULL OR EXISTS \
             (SELECT 1 FROM file_repos WHERE file_id = id AND repo = ?2 AND registration NOT IN hidden)) \
             ORDER BY start";
        let op = "find a file";
        let inside = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        let rows = sqlx::query(SQL)
            .bind(hash.as_bytes().as_slice())
            .bind(super::files::repo_of(&reader))
            .bind(part.map_or(0, |part| inside(part.start())))
            .bind(part.map_or(0, |part| inside(part.end())))
            .fetch_all(&self.readers)
            .await
            .map_err(|error| map(op, error))?;
        let Some(first) = rows.first() else { return Ok(None) };
        let raw_len = get::<i64>(op, first, 0)?.cast_unsigned();
        let terms_start = get::<Option<i64>>(op, first, 1)?.map_or(raw_len, i64::cast_unsigned);
        let mut terms = Vec::new();
        for row in &rows {
            let Some(packed) = get::<Option<&[u8]>>(op, row, 2)? else { continue };
            terms.extend(parse_terms(packed).ok_or_else(|| {
                let (key, reason) = (format!("file {hash}"), "no packed terms".to_owned());
                IndexError::inconsistent(op, Inconsistent { table: "file_terms", column: "terms", key, reason })
            })?);
            // A file may have thousands of rows, and nothing else in this loop yields.
            consume_budget().await;
        }
        Ok(Some(FileRow { hash, raw_len, terms, terms_start }))
    }
}

/// A row of terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct TermRun<'t> {
    file_id: i64,
    /// Byte of the file where its terms begin.
    start: u64,
    terms: &'t [Term],
}

/// The rows of a file, in order.
pub(super) fn runs(file_id: i64, terms: &[Term]) -> impl Iterator<Item = TermRun<'_>> {
    terms.chunks(RUN_COUNT).scan(0_u64, move |next, terms| {
        let start = *next;
        *next = terms.iter().fold(start, |start, term| start.saturating_add(term.raw_len.into()));
        Some(TermRun { file_id, start, terms })
    })
}

/// Inserts new rows.
pub(super) async fn insert_runs(
    op: &'static str,
    connection: &mut SqliteConnection,
    runs: &[TermRun<'_>],
) -> Result<(), IndexError> {
    insert_rows(op, connection, ("INSERT INTO file_terms (file_id, start, terms) ", ""), runs, |columns, run| {
        columns.push_bind(run.file_id).push_bind(run.start.cast_signed()).push_bind(pack_terms(run.terms));
    })
    .await
}

/// Inserts the terms of a file without any.
pub(super) async fn insert_terms(
    op: &'static str,
    connection: &mut SqliteConnection,
    file_id: i64,
    terms: &[Term],
) -> Result<(), IndexError> {
    let runs: Vec<TermRun<'_>> = runs(file_id, terms).collect();
    insert_runs(op, connection, &runs).await
}
