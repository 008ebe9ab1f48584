//! Deletes the rows of abandoned registrations, and the lists of published ones, in SQLite.
//!
//! A file of an abandoned registration is removed like any other one: its claim, its name, and the
//! rest in steps. A claim to a file that existed before is removed without a change to that file.

use sqlx::{Connection, SqliteConnection};

use super::claims::hand_over_claim;
use super::files::execute;
use super::remove::{DETACH, is_large};
use super::{get, map, millis};
use crate::index::error::IndexError;
use crate::runtime::clock::Timestamp;

/// Files of one step, each some statements and rows of usage. Two in unit tests, for several steps.
const STEP_FILE_COUNT: i64 = if cfg!(test) { 2 } else { 64 };

/// Rows of an obsolete list. Two in unit tests.
const STEP_ROW_COUNT: i64 = if cfg!(test) { 2 } else { 4096 };

/// An abandoned or published registration.
pub(super) const FIND_OVER: &str = "SELECT id, state FROM registrations WHERE state > 0 ORDER BY id LIMIT 1";

/// Takes one step at clearing an abandoned or published registration. Returns whether there was
/// one.
pub(super) async fn step(
    op: &'static str,
    connection: &mut SqliteConnection,
    now: Timestamp,
) -> Result<bool, IndexError> {
    const FORGET: &str = "DELETE FROM registrations WHERE id = ?1 AND NOT EXISTS \
         (SELECT 1 FROM registration_files WHERE registration = ?1)";
    let failed = |error| map(op, error);
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let over = sqlx::query(FIND_OVER).fetch_optional(&mut *transaction).await.map_err(failed)?;
    let Some(row) = over else { return Ok(false) };
    let (id, state): (i64, i64) = (get(op, &row, 0)?, get(op, &row, 1)?);
    match state {
        1 => discard_some(op, &mut transaction, id, now).await?,
        _ => unlist_some(op, &mut transaction, id).await?,
    }
    execute(op, &mut transaction, FORGET, |query| query.bind(id)).await?;
    transaction.commit().await.map_err(failed)?;
    Ok(true)
}

async fn unlist_some(op: &'static str, connection: &mut SqliteConnection, id: i64) -> Result<(), IndexError> {
    const SQL: &str = "DELETE FROM registration_files WHERE registration = ?1 AND file_id IN \
         (SELECT file_id FROM registration_files WHERE registration = ?1 ORDER BY file_id LIMIT ?2)";
    execute(op, connection, SQL, |query| query.bind(id).bind(STEP_ROW_COUNT)).await.map(drop)
}

async fn discard_some(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    now: Timestamp,
) -> Result<(), IndexError> {
    const SELECT: &str = "SELECT file_id, coalesce(files.registration = ?1, 0) FROM registration_files \
         LEFT JOIN files ON files.id = file_id WHERE registration_files.registration = ?1 ORDER BY file_id LIMIT ?2";
    let rows = sqlx::query(SELECT).bind(id).bind(STEP_FILE_COUNT).fetch_all(&mut *connection).await;
    for row in &rows.map_err(|error| map(op, error))? {
        let file: i64 = get(op, row, 0)?;
        if get(op, row, 1)? {
            self::file(op, connection, file, now).await?;
        } else {
            claim(op, connection, file, id, now).await?;
        }
        let sql = "DELETE FROM registration_files WHERE registration = ? AND file_id = ?";
        execute(op, connection, sql, |query| query.bind(id).bind(file)).await?;
    }
    Ok(())
}

/// Removes a file that only an abandoned registration has written.
pub(super) async fn file(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    now: Timestamp,
) -> Result<(), IndexError> {
    // The claims of a large file are deleted after its references, as with any removed file.
    if !is_large(op, connection, id).await? {
        execute(op, connection, "DELETE FROM file_repos WHERE file_id = ?", |query| query.bind(id)).await?;
    }
    execute(op, connection, DETACH, |query| query.bind(millis(now)).bind(id)).await.map(drop)
}

/// Removes the claim of an abandoned registration to a file that existed before it.
pub(super) async fn claim(
    op: &'static str,
    connection: &mut SqliteConnection,
    file: i64,
    registration: i64,
    now: Timestamp,
) -> Result<(), IndexError> {
    const UNCLAIM: &str = "DELETE FROM file_repos WHERE file_id = ? AND registration = ?";
    const RECORD: &str = "UPDATE file_repos SET has_claimed = 0, claim = NULL, claim_registration = 0, \
         record_len = max(0, record_len - coalesce((SELECT record_len FROM registration_files AS listed \
         WHERE listed.registration = ?2 AND listed.file_id = ?1), 0)) WHERE file_id = ?1 AND claim_registration = ?2";
    const IS_UNCLAIMED: &str = "SELECT removed_at IS NULL AND NOT EXISTS \
         (SELECT 1 FROM file_repos WHERE file_id = files.id) FROM files WHERE id = ?";
    execute(op, connection, UNCLAIM, |query| query.bind(file).bind(registration)).await?;
    execute(op, connection, RECORD, |query| query.bind(file).bind(registration)).await?;
    hand_over_claim(op, connection, file).await?;
    // Other repositories may have removed their claims meanwhile.
    let unclaimed = sqlx::query(IS_UNCLAIMED).bind(file).fetch_optional(&mut *connection).await;
    let unclaimed = unclaimed.map_err(|error| map(op, error))?;
    if let Some(row) = unclaimed
        && get(op, &row, 0)?
    {
        execute(op, connection, DETACH, |query| query.bind(millis(now)).bind(file)).await?;
    }
    Ok(())
}
