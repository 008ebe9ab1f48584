//! Files go, in SQLite. A large file has hundreds of thousands of references, so that only its name goes at once.

use sqlx::{Connection, QueryBuilder, Sqlite, SqliteConnection};

use super::files::{execute, release};
use super::{SqliteIndex, get, map, millis};
use crate::format::FileHash;
use crate::index::collect::RemovedClaims;
use crate::index::error::IndexError;
use crate::runtime::clock::Timestamp;

/// Runs of terms of one step: some MiB whose pages have to be freed one by one.
const STEP_RUN_COUNT: usize = 64;

/// References of one step. Each is a place of its own in the table, as are its xorb and that in the index of lives.
const STEP_REFERENCE_COUNT: usize = 256;

const FIND_REMOVED: &str = "SELECT id, removed_at FROM files WHERE removed_at IS NOT NULL LIMIT 1";

impl SqliteIndex {
    pub(super) async fn delete_claims(
        &self,
        file: FileHash,
        repo: Option<String>,
        now: Timestamp,
    ) -> Result<RemovedClaims, IndexError> {
        let op = "remove a file";
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let removed = remove(op, &mut connection, file, repo, now).await;
        release(connection, removed.is_ok()).await;
        removed
    }

    pub(super) async fn delete_removed(&self, now: Timestamp) -> Result<bool, IndexError> {
        let op = "clear up a removed file";
        // Most of the time there is none, and that needs no writer.
        let row = sqlx::query(FIND_REMOVED).fetch_optional(&self.readers).await.map_err(|error| map(op, error))?;
        if row.is_none() {
            return Ok(false);
        }
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let swept = sweep(op, &mut connection, now).await;
        release(connection, swept.is_ok()).await;
        swept
    }
}

async fn remove(
    op: &'static str,
    connection: &mut SqliteConnection,
    file: FileHash,
    repo: Option<String>,
    now: Timestamp,
) -> Result<RemovedClaims, IndexError> {
    const UNCLAIM: &str = "DELETE FROM file_repos WHERE file_id = ?1 AND (?2 IS NULL OR repo = ?2) \
         RETURNING repo, has_claimed";
    // The file is found by nothing any more: not by its hash, not by its sha256, not by a claim.
    const DETACH: &str = "UPDATE files SET hash = randomblob(32), sha256 = NULL, sha256_state = 0, removed_at = ? \
         WHERE id = ? AND NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = id)";
    const DISOWN: &str = "UPDATE files SET sha256 = NULL, sha256_state = 0 WHERE id = ? AND sha256_state = 1 AND \
         NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND has_claimed = 1)";
    let failed = |error| map(op, error);
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let found = sqlx::query("SELECT id FROM files WHERE hash = ?")
        .bind(file.as_bytes().as_slice())
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failed)?;
    let Some(row) = found else { return Ok(RemovedClaims::default()) };
    let id: i64 = get(op, &row, 0)?;
    let rows = sqlx::query(UNCLAIM).bind(id).bind(&repo).fetch_all(&mut *transaction).await.map_err(failed)?;
    let (mut repos, mut had_claimed) = (Vec::with_capacity(rows.len()), false);
    for row in &rows {
        repos.push(get(op, row, 0)?);
        had_claimed |= get::<bool>(op, row, 1)?;
    }
    if repos.is_empty() && repo.is_some() {
        return Ok(RemovedClaims::default());
    }
    let detached = execute(op, &mut transaction, DETACH, |query| query.bind(millis(now)).bind(id)).await?;
    if had_claimed && detached == 0 {
        execute(op, &mut transaction, DISOWN, |query| query.bind(id)).await?;
    }
    transaction.commit().await.map_err(failed)?;
    Ok(RemovedClaims { repos, is_file_removed: detached > 0 })
}

/// One step at a removed file: as many steps as it takes are one where the file is small.
async fn sweep(op: &'static str, connection: &mut SqliteConnection, now: Timestamp) -> Result<bool, IndexError> {
    const TERMS: &str = "DELETE FROM file_terms WHERE rowid IN \
         (SELECT rowid FROM file_terms WHERE file_id = ? LIMIT ?)";
    const REFERENCES: &str = "DELETE FROM xorb_files WHERE file_id = ?1 AND xorb_id IN \
         (SELECT xorb_id FROM xorb_files WHERE file_id = ?1 LIMIT ?2) RETURNING xorb_id";
    let failed = |error| map(op, error);
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    // Looked for once more: ids are given to new files again, and another process may have been faster.
    let found = sqlx::query(FIND_REMOVED).fetch_optional(&mut *transaction).await.map_err(failed)?;
    let Some(row) = found else { return Ok(false) };
    let (id, removed_at): (i64, i64) = (get(op, &row, 0)?, get(op, &row, 1)?);
    // The file kept its xorbs until it was removed at least, also where the clock has gone back since.
    let now = now.max(Timestamp::from_millis(removed_at.cast_unsigned()));
    // Terms first: what has references and no terms is kept, what has terms and no references would be collected.
    let limit = i64::try_from(STEP_RUN_COUNT).unwrap_or(i64::MAX);
    let runs = execute(op, &mut transaction, TERMS, |query| query.bind(id).bind(limit)).await?;
    if runs < STEP_RUN_COUNT as u64 {
        let limit = i64::try_from(STEP_REFERENCE_COUNT).unwrap_or(i64::MAX);
        let rows = sqlx::query(REFERENCES).bind(id).bind(limit).fetch_all(&mut *transaction).await.map_err(failed)?;
        let xorbs = rows.iter().map(|row| get(op, row, 0)).collect::<Result<Vec<i64>, _>>()?;
        touch_unreferenced(op, &mut transaction, &xorbs, now).await?;
        if xorbs.len() < STEP_REFERENCE_COUNT {
            execute(op, &mut transaction, "DELETE FROM files WHERE id = ?", |query| query.bind(id)).await?;
        }
    }
    transaction.commit().await.map_err(failed)?;
    Ok(true)
}

/// Touches those of these xorbs that no file refers to any more: whoever has just read the last one that did may still
/// come for their bytes.
pub(super) async fn touch_unreferenced(
    op: &'static str,
    connection: &mut SqliteConnection,
    ids: &[i64],
    now: Timestamp,
) -> Result<(), IndexError> {
    // Whoever has registered them was promised that they stay for a while from then on, and the clock may have gone back.
    let mut query = QueryBuilder::<Sqlite>::new("UPDATE xorbs SET since = max(since, ");
    query.push_bind(millis(now));
    query.push(", (SELECT registered_at FROM visibility)) WHERE ");
    query.push("NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = xorbs.id) AND id IN (");
    let mut list = query.separated(", ");
    for id in ids {
        list.push_bind(*id);
    }
    query.push(")");
    query.build().execute(connection).await.map(drop).map_err(|error| map(op, error))
}
