//! Deletes the rows of abandoned registrations, and the lists of published ones, in SQLite.
//!
//! Small files of an abandoned registration are deleted in batches. A large one is removed like any
//! other file: its name, and the rest in steps. A claim to a file that existed before is removed
//! without a change to that file.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sqlx::SqliteConnection;

use super::claims::hand_over_claim;
use super::files::execute;
use super::named::id_list;
use super::remove::{DETACH, SMALL_CHARGE_COUNT, touch_unreferenced};
use super::write::{Write, statement};
use super::{get, map, millis};
use crate::index::error::IndexError;
use crate::runtime::clock::Timestamp;

/// After this time a step takes no further batch.
const STEP_TIME: Duration = Duration::from_millis(10);

/// Listed files of one batch. Two in unit tests, for several steps.
const BATCH_FILE_COUNT: i64 = if cfg!(test) { 2 } else { 64 };

/// References of the files of one batch, after which it takes no further file. One in unit tests.
const BATCH_REFERENCE_COUNT: i64 = if cfg!(test) { 1 } else { 1024 };

/// Files of one batch that existed before, or are large: each takes statements of its own.
const BATCH_SINGLE_COUNT: usize = 32;

/// Rows of an obsolete list, in one batch. Two in unit tests.
const BATCH_ROW_COUNT: i64 = if cfg!(test) { 2 } else { 1024 };

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
    let began = Instant::now();
    let mut transaction = Write::begin(op, connection).await?;
    let over = sqlx::query(FIND_OVER).fetch_optional(statement(op, &mut transaction)?).await.map_err(failed)?;
    let Some(row) = over else { return Ok(false) };
    let (id, state): (i64, i64) = (get(op, &row, 0)?, get(op, &row, 1)?);
    loop {
        let count = match state {
            1 => discard_some(op, &mut transaction, id, now).await?,
            _ => unlist_some(op, &mut transaction, id).await?,
        };
        if count == 0 || began.elapsed() >= STEP_TIME || cfg!(test) {
            break;
        }
    }
    execute(op, &mut transaction, FORGET, |query| query.bind(id)).await?;
    transaction.commit().await?;
    Ok(true)
}

async fn unlist_some(op: &'static str, connection: &mut SqliteConnection, id: i64) -> Result<u64, IndexError> {
    const SQL: &str = "DELETE FROM registration_files WHERE registration = ?1 AND file_id IN \
         (SELECT file_id FROM registration_files WHERE registration = ?1 ORDER BY file_id LIMIT ?2)";
    execute(op, connection, SQL, |query| query.bind(id).bind(BATCH_ROW_COUNT)).await
}

/// A file that an abandoned registration has listed.
struct Listed {
    id: i64,
    /// Whether no other registration has written it.
    is_own: bool,
    /// Counted up to one more than a small file has.
    reference_count: i64,
}

/// Discards a batch; returns how many rows of the list.
async fn discard_some(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    now: Timestamp,
) -> Result<u64, IndexError> {
    const SELECT: &str = "SELECT file_id, coalesce(files.registration = ?1, 0), \
         (SELECT count(*) FROM (SELECT 1 FROM xorb_files WHERE xorb_files.file_id = listed.file_id LIMIT ?3)) \
         FROM registration_files AS listed LEFT JOIN files ON files.id = file_id \
         WHERE listed.registration = ?1 ORDER BY file_id LIMIT ?2";
    const UNLIST: &str =
        "DELETE FROM registration_files WHERE registration = ? AND file_id IN (SELECT value FROM json_each(?))";
    let query = sqlx::query(SELECT).bind(id).bind(BATCH_FILE_COUNT).bind(SMALL_CHARGE_COUNT + 1);
    let rows = query.fetch_all(statement(op, connection)?).await.map_err(|error| map(op, error))?;
    let (mut taken, mut small, mut reference_count, mut single_count) = (Vec::new(), Vec::new(), 0, 0);
    for row in &rows {
        let listed = Listed { id: get(op, row, 0)?, is_own: get(op, row, 1)?, reference_count: get(op, row, 2)? };
        if !listed.is_own {
            claim(op, connection, listed.id, id, now).await?;
            single_count += 1;
        } else if listed.reference_count > SMALL_CHARGE_COUNT {
            detach(op, connection, listed.id, now).await?;
            single_count += 1;
        } else {
            reference_count += listed.reference_count;
            small.push(listed.id);
        }
        taken.push(listed.id);
        if reference_count >= BATCH_REFERENCE_COUNT || single_count == BATCH_SINGLE_COUNT {
            break;
        }
    }
    small_files(op, connection, &small, now).await?;
    execute(op, connection, UNLIST, |query| query.bind(id).bind(id_list(&taken))).await
}

/// Removes files that only an abandoned registration has written, the small ones at once.
pub(super) async fn files(
    op: &'static str,
    connection: &mut SqliteConnection,
    ids: &[i64],
    now: Timestamp,
) -> Result<(), IndexError> {
    const LARGE: &str = "SELECT value FROM json_each(?1) WHERE EXISTS \
         (SELECT 1 FROM xorb_files WHERE file_id = value LIMIT 1 OFFSET ?2)";
    if ids.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(LARGE).bind(id_list(ids)).bind(SMALL_CHARGE_COUNT);
    let rows = query.fetch_all(statement(op, connection)?).await.map_err(|error| map(op, error))?;
    let large = rows.iter().map(|row| get(op, row, 0)).collect::<Result<HashSet<i64>, _>>()?;
    for id in &large {
        detach(op, connection, *id, now).await?;
    }
    let small: Vec<i64> = ids.iter().copied().filter(|id| !large.contains(id)).collect();
    small_files(op, connection, &small, now).await
}

/// Makes a large file invisible. Its references and then its claims are deleted in steps, as with
/// any removed file.
async fn detach(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    now: Timestamp,
) -> Result<(), IndexError> {
    execute(op, connection, DETACH, |query| query.bind(millis(now)).bind(id)).await.map(drop)
}

/// Deletes all rows of small files, with as many statements for all as for one.
async fn small_files(
    op: &'static str,
    connection: &mut SqliteConnection,
    ids: &[i64],
    now: Timestamp,
) -> Result<(), IndexError> {
    // Claims first: the triggers credit a repository for the references that are left.
    const UNCLAIM: &str = "DELETE FROM file_repos WHERE file_id IN (SELECT value FROM json_each(?))";
    const TERMS: &str = "DELETE FROM file_terms WHERE file_id IN (SELECT value FROM json_each(?))";
    const REFERENCES: &str =
        "DELETE FROM xorb_files WHERE file_id IN (SELECT value FROM json_each(?)) RETURNING xorb_id";
    const FILES: &str = "DELETE FROM files WHERE id IN (SELECT value FROM json_each(?))";
    if ids.is_empty() {
        return Ok(());
    }
    let ids = id_list(ids);
    for sql in [UNCLAIM, TERMS] {
        execute(op, connection, sql, |query| query.bind(ids.clone())).await?;
    }
    let rows = sqlx::query(REFERENCES).bind(ids.clone()).fetch_all(statement(op, connection)?).await;
    let rows = rows.map_err(|error| map(op, error))?;
    let xorbs = rows.iter().map(|row| get(op, row, 0)).collect::<Result<HashSet<i64>, _>>()?;
    touch_unreferenced(op, connection, &xorbs, now).await?;
    execute(op, connection, FILES, |query| query.bind(ids)).await.map(drop)
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
    let unclaimed = sqlx::query(IS_UNCLAIMED).bind(file).fetch_optional(statement(op, connection)?).await;
    let unclaimed = unclaimed.map_err(|error| map(op, error))?;
    if let Some(row) = unclaimed
        && get(op, &row, 0)?
    {
        execute(op, connection, DETACH, |query| query.bind(millis(now)).bind(file)).await?;
    }
    Ok(())
}
