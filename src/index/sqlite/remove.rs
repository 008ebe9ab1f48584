//! The removal of files in SQLite.
//!
//! A large file has hundreds of thousands of references, so one transaction removes only its name
//! and claims: from then on no reader finds it. Later steps delete its references and what its
//! repositories are charged for them. A crash leaves the remaining steps to the next sweep. Until
//! then the references retain their xorbs.

use std::time::{Duration, Instant};

use sqlx::SqliteConnection;

use super::claims::hand_over_claim;
use super::discard;
use super::files::{execute, release};
use super::named::id_list;
use super::store::take_record;
use super::write::{Write, statement};
use super::{SqliteIndex, get, map, millis};
use crate::format::FileHash;
use crate::index::collect::RemovedClaims;
use crate::index::error::IndexError;
use crate::runtime::clock::Timestamp;

/// After this time a transaction sweeps no further file.
const STEP_TIME: Duration = Duration::from_millis(10);

/// Runs of terms of one step: some MiB, whose pages are freed one by one.
const STEP_RUN_COUNT: usize = 64;

/// References of one step, if one repository is charged for them. Each is a separate place in the
/// table, as are its xorb and the entry of that in `xorbs_life`. Two in unit tests, so that a
/// partly swept file occurs there.
const STEP_REFERENCE_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// The number of repositories whose charge for a reference costs as much time as the reference.
const STEP_CLAIM_COUNT: i64 = 8;

/// Up to this product of references and claims a file is swept at once, with all charges. Three in
/// unit tests, so that their files are of both kinds.
pub(super) const SMALL_CHARGE_COUNT: i64 = if cfg!(test) { 3 } else { 1024 };

/// Claims of one step, after the references. Two in unit tests, as above.
const STEP_UNCLAIM_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// Makes a file invisible to lookups by hash, by sha256 and by claim.
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
        // Usually there is nothing to do, and that needs no writer.
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
    let mut transaction = Write::begin(op, connection).await?;
    let found = sqlx::query("SELECT id FROM files WHERE hash = ? AND registration NOT IN hidden")
        .bind(file.as_bytes().as_slice())
        .fetch_optional(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    let Some(row) = found else { return Ok(RemovedClaims::default()) };
    let id: i64 = get(op, &row, 0)?;
    let rows =
        sqlx::query(CLAIMS).bind(id).bind(&repo).fetch_all(statement(op, &mut transaction)?).await.map_err(failed)?;
    let (mut repos, mut had_claimed) = (Vec::with_capacity(rows.len()), false);
    for row in &rows {
        repos.push(get(op, row, 0)?);
        had_claimed |= get::<bool>(op, row, 1)?;
    }
    if repos.is_empty() && repo.is_some() {
        return Ok(RemovedClaims::default());
    }
    let is_file_removed = is_unclaimed_without(op, &mut transaction, id, &repo).await?;
    // The claims of a large file are deleted after its references.
    if !is_file_removed || !is_large(op, &mut transaction, id).await? {
        execute(op, &mut transaction, UNCLAIM, |query| query.bind(id).bind(&repo)).await?;
    }
    if is_file_removed {
        execute(op, &mut transaction, DETACH, |query| query.bind(millis(now)).bind(id)).await?;
    } else if had_claimed {
        hand_over_claim(op, &mut transaction, id).await?;
    }
    take_record(op, &mut transaction, record).await?;
    transaction.commit().await?;
    Ok(RemovedClaims { repos, is_file_removed })
}

/// Whether only this repository has the file, or all claims are to be removed.
async fn is_unclaimed_without(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    repo: &Option<String>,
) -> Result<bool, IndexError> {
    const SQL: &str = "SELECT ?2 IS NULL OR NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = ?1 AND repo != ?2)";
    let row = sqlx::query(SQL)
        .bind(id)
        .bind(repo)
        .fetch_one(statement(op, connection)?)
        .await
        .map_err(|error| map(op, error))?;
    get(op, &row, 0)
}

/// Whether a file has so many references and claims that its repositories are credited in steps.
async fn is_large(op: &'static str, connection: &mut SqliteConnection, id: i64) -> Result<bool, IndexError> {
    const SQL: &str = "SELECT EXISTS (SELECT 1 FROM xorb_files WHERE file_id = ?1 LIMIT 1 \
         OFFSET ?2 / max(1, (SELECT count(*) FROM file_repos WHERE file_id = ?1)))";
    let row = sqlx::query(SQL)
        .bind(id)
        .bind(SMALL_CHARGE_COUNT)
        .fetch_one(statement(op, connection)?)
        .await
        .map_err(|error| map(op, error))?;
    get(op, &row, 0)
}

/// Sweeps several small files or a part of a large one, in one transaction. Returns whether there
/// was any.
async fn sweep(op: &'static str, connection: &mut SqliteConnection, now: Timestamp) -> Result<bool, IndexError> {
    let began = Instant::now();
    let mut transaction = Write::begin(op, connection).await?;
    let mut has_swept = false;
    while sweep_one(op, &mut transaction, now).await? {
        has_swept = true;
        if began.elapsed() >= STEP_TIME || cfg!(test) {
            break;
        }
    }
    transaction.commit().await?;
    Ok(has_swept)
}

/// Sweeps a small file, or a part of a large one. Returns whether there was one.
async fn sweep_one(op: &'static str, connection: &mut SqliteConnection, now: Timestamp) -> Result<bool, IndexError> {
    const TERMS: &str = "DELETE FROM file_terms WHERE rowid IN \
         (SELECT rowid FROM file_terms WHERE file_id = ? LIMIT ?)";
    const REFERENCES: &str = "DELETE FROM xorb_files WHERE file_id = ?1 AND xorb_id IN \
         (SELECT xorb_id FROM xorb_files WHERE file_id = ?1 LIMIT ?2) RETURNING xorb_id";
    const STEP: &str = "SELECT max(1, ?2 * ?3 / (?3 - 1 + max(1, count(*)))) FROM file_repos WHERE file_id = ?1";
    let failed = |error| map(op, error);
    // Read again under the lock: another process may have swept it, and ids are reused.
    let found = sqlx::query(FIND_REMOVED).fetch_optional(statement(op, connection)?).await.map_err(failed)?;
    let Some(row) = found else { return Ok(false) };
    let (id, removed_at): (i64, i64) = (get(op, &row, 0)?, get(op, &row, 1)?);
    // The file referenced its xorbs at least until its removal, even if the clock was set back
    // since.
    let now = now.max(Timestamp::from_millis(removed_at.cast_unsigned()));
    // Terms first: references without terms retain xorbs too long; terms without references would
    // lose them.
    let limit = i64::try_from(STEP_RUN_COUNT).unwrap_or(i64::MAX);
    let runs = execute(op, connection, TERMS, |query| query.bind(id).bind(limit)).await?;
    if runs < STEP_RUN_COUNT as u64 {
        let step = sqlx::query(STEP).bind(id).bind(STEP_REFERENCE_COUNT).bind(STEP_CLAIM_COUNT);
        let limit: i64 = get(op, &step.fetch_one(statement(op, connection)?).await.map_err(failed)?, 0)?;
        let rows =
            sqlx::query(REFERENCES).bind(id).bind(limit).fetch_all(statement(op, connection)?).await.map_err(failed)?;
        let xorbs = rows.iter().map(|row| get(op, row, 0)).collect::<Result<Vec<i64>, _>>()?;
        touch_unreferenced(op, connection, &xorbs, now).await?;
        let is_last = i64::try_from(xorbs.len()).unwrap_or(i64::MAX) < limit;
        if is_last && unclaim_some(op, connection, id).await? {
            execute(op, connection, "DELETE FROM files WHERE id = ?", |query| query.bind(id)).await?;
        }
    }
    Ok(true)
}

/// Deletes a step of the claims to a removed file. Returns whether none is left. Each claim changes
/// the row of its repository, and a file may have thousands.
async fn unclaim_some(op: &'static str, connection: &mut SqliteConnection, id: i64) -> Result<bool, IndexError> {
    const SQL: &str = "DELETE FROM file_repos WHERE file_id = ?1 AND repo IN \
         (SELECT repo FROM file_repos WHERE file_id = ?1 LIMIT ?2)";
    let gone = execute(op, connection, SQL, |query| query.bind(id).bind(STEP_UNCLAIM_COUNT)).await?;
    Ok(gone < STEP_UNCLAIM_COUNT.unsigned_abs())
}

/// Touches those of these xorbs that are unreferenced now: a client that has just read the last
/// file may still fetch their bytes.
pub(super) async fn touch_unreferenced(
    op: &'static str,
    connection: &mut SqliteConnection,
    ids: impl IntoIterator<Item = &i64>,
    now: Timestamp,
) -> Result<(), IndexError> {
    // A registration guarantees its xorbs a grace period from then on, even if the clock was set
    // back since.
    const TOUCH: &str = "UPDATE xorbs SET since = max(since, ?1, (SELECT registered_at FROM visibility)) \
         WHERE id IN (SELECT value FROM json_each(?2) WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = value))";
    let ids = id_list(ids);
    execute(op, connection, TOUCH, |query| query.bind(millis(now)).bind(ids)).await.map(drop)
}
