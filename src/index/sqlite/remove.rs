//! Files go, in SQLite. A large file has hundreds of thousands of references, so that only its name goes at once, and
//! what its repositories were charged for its xorbs with the references to them.

use std::time::{Duration, Instant};

use sqlx::{Connection, SqliteConnection};

use super::claims::hand_over_claim;
use super::discard;
use super::files::{execute, release};
use super::named::id_list;
use super::store::take_record;
use super::{SqliteIndex, get, map, millis};
use crate::format::FileHash;
use crate::index::collect::RemovedClaims;
use crate::index::error::IndexError;
use crate::runtime::clock::Timestamp;

/// After so long a transaction takes no further file.
const STEP_TIME: Duration = Duration::from_millis(10);

/// Runs of terms of one step: some MiB whose pages have to be freed one by one.
const STEP_RUN_COUNT: usize = 64;

/// References of one step, where one repository is charged for them. Each is a place of its own in the table, as are its xorb
/// and that in the index of lives. Two in unit tests, so that a file is met there that has lost some of them.
const STEP_REFERENCE_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// Repositories that are charged for a reference for the time that the reference itself takes.
const STEP_CLAIM_COUNT: i64 = 8;

/// References of a file times its claims, at most, which go at once with all that they were charged: 4000 claims to one
/// reference took 56 ms, 4090 references of one claim 28. Three in unit tests, whose files are small, so that every one of
/// them that removes files meets both kinds.
const SMALL_CHARGE_COUNT: i64 = if cfg!(test) { 3 } else { 1024 };

/// Claims of one step, when there are no references left. Two in unit tests, as above.
const STEP_UNCLAIM_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// The file is found by nothing any more: not by its hash, not by its sha256, not by a claim.
pub(super) const DETACH: &str = "UPDATE files SET hash = randomblob(32), sha256 = NULL, sha256_state = 0, \
     removed_at = ? WHERE id = ? AND removed_at IS NULL";

const FIND_REMOVED: &str = "SELECT id, removed_at FROM files WHERE removed_at IS NOT NULL LIMIT 1";

impl SqliteIndex {
    pub(super) async fn delete_claims(
        &self,
        file: FileHash,
        repo: Option<String>,
        now: Timestamp,
        record: Option<u64>,
    ) -> Result<RemovedClaims, IndexError> {
        let op = "remove a file";
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let removed = remove(op, &mut connection, (file, repo), now, record).await;
        release(connection, removed.is_ok()).await;
        removed
    }

    pub(super) async fn delete_removed(&self, now: Timestamp) -> Result<bool, IndexError> {
        let op = "clean up a removed file";
        // Most of the time there is nothing, and that needs no writer.
        if self.clear_over(now).await? {
            return Ok(true);
        }
        if !self.has_row(op, FIND_REMOVED).await? {
            return Ok(false);
        }
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let swept = sweep(op, &mut connection, now).await;
        release(connection, swept.is_ok()).await;
        swept
    }

    pub(super) async fn clear_over(&self, now: Timestamp) -> Result<bool, IndexError> {
        let op = "clean up after a registration";
        if !self.has_row(op, discard::FIND_OVER).await? {
            return Ok(false);
        }
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let cleared = discard::step(op, &mut connection, now).await;
        release(connection, cleared.is_ok()).await;
        cleared
    }

    async fn has_row(&self, op: &'static str, sql: &'static str) -> Result<bool, IndexError> {
        let row = sqlx::query(sql).fetch_optional(&self.readers).await.map_err(|error| map(op, error))?;
        Ok(row.is_some())
    }
}

async fn remove(
    op: &'static str,
    connection: &mut SqliteConnection,
    (file, repo): (FileHash, Option<String>),
    now: Timestamp,
    record: Option<u64>,
) -> Result<RemovedClaims, IndexError> {
    const CLAIMS: &str = "SELECT repo, has_claimed FROM file_repos WHERE file_id = ?1 AND (?2 IS NULL OR repo = ?2) \
         AND registration NOT IN hidden";
    const UNCLAIM: &str = "DELETE FROM file_repos WHERE file_id = ?1 AND (?2 IS NULL OR repo = ?2)";
    let failed = |error| map(op, error);
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let found = sqlx::query("SELECT id FROM files WHERE hash = ? AND registration NOT IN hidden")
        .bind(file.as_bytes().as_slice())
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failed)?;
    let Some(row) = found else { return Ok(RemovedClaims::default()) };
    let id: i64 = get(op, &row, 0)?;
    let rows = sqlx::query(CLAIMS).bind(id).bind(&repo).fetch_all(&mut *transaction).await.map_err(failed)?;
    let (mut repos, mut had_claimed) = (Vec::with_capacity(rows.len()), false);
    for row in &rows {
        repos.push(get(op, row, 0)?);
        had_claimed |= get::<bool>(op, row, 1)?;
    }
    if repos.is_empty() && repo.is_some() {
        return Ok(RemovedClaims::default());
    }
    let is_file_removed = is_unclaimed_without(op, &mut transaction, id, &repo).await?;
    // Otherwise its claims go when its references have gone.
    if !is_file_removed || !is_large(op, &mut transaction, id).await? {
        execute(op, &mut transaction, UNCLAIM, |query| query.bind(id).bind(&repo)).await?;
    }
    if is_file_removed {
        execute(op, &mut transaction, DETACH, |query| query.bind(millis(now)).bind(id)).await?;
    } else if had_claimed {
        hand_over_claim(op, &mut transaction, id).await?;
    }
    take_record(op, &mut transaction, record).await?;
    transaction.commit().await.map_err(failed)?;
    Ok(RemovedClaims { repos, is_file_removed })
}

/// Whether nobody has this file but the repository, or whether all claims are to go.
async fn is_unclaimed_without(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    repo: &Option<String>,
) -> Result<bool, IndexError> {
    const SQL: &str = "SELECT ?2 IS NULL OR NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = ?1 AND repo != ?2)";
    let row = sqlx::query(SQL).bind(id).bind(repo).fetch_one(connection).await.map_err(|error| map(op, error))?;
    get(op, &row, 0)
}

/// Whether a file has so many references, for so many repositories, that these get back what it cost them in steps.
pub(super) async fn is_large(op: &'static str, connection: &mut SqliteConnection, id: i64) -> Result<bool, IndexError> {
    const SQL: &str = "SELECT EXISTS (SELECT 1 FROM xorb_files WHERE file_id = ?1 LIMIT 1 \
         OFFSET ?2 / max(1, (SELECT count(*) FROM file_repos WHERE file_id = ?1)))";
    let row = sqlx::query(SQL)
        .bind(id)
        .bind(SMALL_CHARGE_COUNT)
        .fetch_one(connection)
        .await
        .map_err(|error| map(op, error))?;
    get(op, &row, 0)
}

/// One transaction: several small files, or a part of a large one. Whether there was any.
async fn sweep(op: &'static str, connection: &mut SqliteConnection, now: Timestamp) -> Result<bool, IndexError> {
    let failed = |error| map(op, error);
    let began = Instant::now();
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let mut has_swept = false;
    while sweep_one(op, &mut transaction, now).await? {
        has_swept = true;
        if began.elapsed() >= STEP_TIME || cfg!(test) {
            break;
        }
    }
    transaction.commit().await.map_err(failed)?;
    Ok(has_swept)
}

/// Sweeps a small file, or a part of a large one; whether there was one.
async fn sweep_one(op: &'static str, connection: &mut SqliteConnection, now: Timestamp) -> Result<bool, IndexError> {
    const TERMS: &str = "DELETE FROM file_terms WHERE rowid IN \
         (SELECT rowid FROM file_terms WHERE file_id = ? LIMIT ?)";
    const REFERENCES: &str = "DELETE FROM xorb_files WHERE file_id = ?1 AND xorb_id IN \
         (SELECT xorb_id FROM xorb_files WHERE file_id = ?1 LIMIT ?2) RETURNING xorb_id";
    const STEP: &str = "SELECT max(1, ?2 * ?3 / (?3 - 1 + max(1, count(*)))) FROM file_repos WHERE file_id = ?1";
    let failed = |error| map(op, error);
    // Looked for once more: ids are given to new files again, and another process may have been faster.
    let found = sqlx::query(FIND_REMOVED).fetch_optional(&mut *connection).await.map_err(failed)?;
    let Some(row) = found else { return Ok(false) };
    let (id, removed_at): (i64, i64) = (get(op, &row, 0)?, get(op, &row, 1)?);
    // The file kept its xorbs until it was removed at least, also where the clock has gone back since.
    let now = now.max(Timestamp::from_millis(removed_at.cast_unsigned()));
    // Terms first: what has references and no terms is kept, what has terms and no references would be collected.
    let limit = i64::try_from(STEP_RUN_COUNT).unwrap_or(i64::MAX);
    let runs = execute(op, connection, TERMS, |query| query.bind(id).bind(limit)).await?;
    if runs < STEP_RUN_COUNT as u64 {
        let step = sqlx::query(STEP).bind(id).bind(STEP_REFERENCE_COUNT).bind(STEP_CLAIM_COUNT);
        let limit: i64 = get(op, &step.fetch_one(&mut *connection).await.map_err(failed)?, 0)?;
        let rows = sqlx::query(REFERENCES).bind(id).bind(limit).fetch_all(&mut *connection).await.map_err(failed)?;
        let xorbs = rows.iter().map(|row| get(op, row, 0)).collect::<Result<Vec<i64>, _>>()?;
        touch_unreferenced(op, connection, &xorbs, now).await?;
        let is_last = i64::try_from(xorbs.len()).unwrap_or(i64::MAX) < limit;
        if is_last && unclaim_some(op, connection, id).await? {
            execute(op, connection, "DELETE FROM files WHERE id = ?", |query| query.bind(id)).await?;
        }
    }
    Ok(true)
}

/// Takes a step's share of the claims away that a removed file has left; whether none is left. Each is a change of its
/// repository, and a file may have had thousands.
async fn unclaim_some(op: &'static str, connection: &mut SqliteConnection, id: i64) -> Result<bool, IndexError> {
    const SQL: &str = "DELETE FROM file_repos WHERE file_id = ?1 AND repo IN \
         (SELECT repo FROM file_repos WHERE file_id = ?1 LIMIT ?2)";
    let gone = execute(op, connection, SQL, |query| query.bind(id).bind(STEP_UNCLAIM_COUNT)).await?;
    Ok(gone < STEP_UNCLAIM_COUNT.unsigned_abs())
}

/// Touches those of these xorbs that no file refers to any more: whoever has just read the last one that did may still
/// come for their bytes.
pub(super) async fn touch_unreferenced(
    op: &'static str,
    connection: &mut SqliteConnection,
    ids: impl IntoIterator<Item = &i64>,
    now: Timestamp,
) -> Result<(), IndexError> {
    // Whoever has registered them was promised that they stay for a while from then on, and the clock may have gone back.
    const TOUCH: &str = "UPDATE xorbs SET since = max(since, ?1, (SELECT registered_at FROM visibility)) \
         WHERE id IN (SELECT value FROM json_each(?2) WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = value))";
    let ids = id_list(ids);
    execute(op, connection, TOUCH, |query| query.bind(millis(now)).bind(ids)).await.map(drop)
}
