//! The sweep of removed files in PostgreSQL.
//!
//! A large file has hundreds of thousands of references. So one transaction only replaces its hash
//! by a random one: from then on no reader finds it. Later steps, the *sweep*, delete its terms,
//! its references and then its claims. After a crash the next sweep continues. Until then the
//! references retain their xorbs, and the repositories are charged for them.

use std::time::Instant;

use sqlx::query;

use super::lists::id_list;
use super::millis;
use super::rows::row;
use super::tx::Tx;
use crate::index::error::IndexError;
use crate::index::register::STEP_TIME;
use crate::runtime::clock::Timestamp;

/// Rows of terms of one step: up to 1.4 MiB, in one statement.
const STEP_RUN_COUNT: usize = 64;

/// References of one step, if one repository is charged for them. For each one, three separate
/// places are written: in `xorb_files`, in `xorbs` and in its index `xorbs_life`. Two in unit
/// tests, so that a partly swept file occurs there.
const STEP_REFERENCE_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// To credit this many repositories for a reference takes as long as to delete the reference.
const STEP_CLAIM_COUNT: i64 = 8;

/// A file is small up to this product of references and claims: its claims are removed at once.
/// Three in unit tests, so that small and large files occur there.
pub(super) const SMALL_CHARGE_COUNT: i64 = if cfg!(test) { 3 } else { 1024 };

/// Claims that one step deletes, after the references. Two in unit tests, as above.
const STEP_UNCLAIM_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// Makes a file invisible to lookups by hash, by sha256 and by claim.
pub(super) const MAKE_INVISIBLE: &str = "UPDATE files SET hash = sha256(uuid_send(gen_random_uuid())), sha256 = NULL, sha256_state = 0, \
     removed_at = $1 WHERE id = $2 AND removed_at IS NULL";

/// A removed file.
pub(super) const FIND_REMOVED: &str = "SELECT id, removed_at FROM files WHERE removed_at IS NOT NULL LIMIT 1";

/// Makes the claim of this repository to a large file invisible, as if an abandoned registration
/// had made it. The next sweeps credit the repository and delete the claim.
pub(super) async fn hide_claim(tx: &mut Tx<'_>, file: i64, repo: Option<&str>) -> Result<(), IndexError> {
    const HIDE: &str = "UPDATE file_repos SET registration = $1, claim_registration = $1, has_claimed = FALSE, \
         claim = NULL, is_counted = FALSE WHERE file_id = $2 AND repo = $3";
    const LIST: &str = "INSERT INTO registration_files (registration, file_id, record_len) VALUES ($1, $2, 0)";
    let registration: i64 = tx.one(query("INSERT INTO registrations (state) VALUES (1) RETURNING id")).await?;
    tx.execute(query(HIDE).bind(registration).bind(file).bind(repo)).await?;
    tx.execute(query(LIST).bind(registration).bind(file)).await.map(drop)
}

/// Whether a file has so many references that the claim of this repository, or all claims, are
/// removed in steps.
pub(super) async fn is_large(tx: &mut Tx<'_>, id: i64, repo: Option<&str>) -> Result<bool, IndexError> {
    const SQL: &str = "SELECT EXISTS (SELECT 1 FROM xorb_files WHERE file_id = $1 LIMIT 1 \
         OFFSET $2 / greatest(1, (SELECT count(*) FROM file_repos WHERE file_id = $1 AND ($3 IS NULL OR repo = $3))))";
    tx.one(query(SQL).bind(id).bind(SMALL_CHARGE_COUNT).bind(repo)).await
}

/// Sweeps several small files or a part of a large one. Returns whether there was any.
pub(super) async fn sweep(tx: &mut Tx<'_>, now: Timestamp) -> Result<bool, IndexError> {
    let began = Instant::now();
    let mut has_swept = false;
    while sweep_one(tx, now).await? {
        has_swept = true;
        if began.elapsed() >= STEP_TIME || cfg!(test) {
            break;
        }
    }
    Ok(has_swept)
}

/// Sweeps a small file, or a part of a large one. Returns whether there was one.
async fn sweep_one(tx: &mut Tx<'_>, now: Timestamp) -> Result<bool, IndexError> {
    const TERMS: &str = "DELETE FROM file_terms WHERE row_id IN \
         (SELECT row_id FROM file_terms WHERE file_id = $1 LIMIT $2)";
    const REFERENCES: &str = "DELETE FROM xorb_files WHERE file_id = $1 AND xorb_id IN \
         (SELECT xorb_id FROM xorb_files WHERE file_id = $1 LIMIT $2) RETURNING xorb_id";
    const STEP: &str =
        "SELECT greatest(1, $2 * $3 / ($3 - 1 + greatest(1, count(*)))) FROM file_repos WHERE file_id = $1";
    row! { Removed { id: i64, removed_at: Timestamp } }
    // Read again under the lock: another process may have swept it, and ids are reused.
    let Some(Removed { id, removed_at }) = tx.find(query(FIND_REMOVED)).await? else { return Ok(false) };
    // The file referenced its xorbs at least until its removal, even if the clock was set back
    // since.
    let now = now.max(removed_at);
    // Terms first: references without terms retain xorbs too long; terms without references would
    // lose them.
    let limit = i64::try_from(STEP_RUN_COUNT).unwrap_or(i64::MAX);
    let runs = tx.execute(query(TERMS).bind(id).bind(limit)).await?;
    if runs < STEP_RUN_COUNT as u64 {
        let limit: i64 = tx.one(query(STEP).bind(id).bind(STEP_REFERENCE_COUNT).bind(STEP_CLAIM_COUNT)).await?;
        let xorbs: Vec<i64> = tx.all(query(REFERENCES).bind(id).bind(limit)).await?;
        touch_unreferenced(tx, &xorbs, now).await?;
        let is_last = i64::try_from(xorbs.len()).unwrap_or(i64::MAX) < limit;
        if is_last && unclaim_some(tx, id).await? {
            tx.execute(query("DELETE FROM files WHERE id = $1").bind(id)).await?;
        }
    }
    Ok(true)
}

/// Deletes a step of the claims to a removed file. Returns whether none is left. Each claim changes
/// the row of its repository, and a file may have thousands.
async fn unclaim_some(tx: &mut Tx<'_>, id: i64) -> Result<bool, IndexError> {
    const SQL: &str = "DELETE FROM file_repos WHERE file_id = $1 AND repo IN \
         (SELECT repo FROM file_repos WHERE file_id = $1 LIMIT $2)";
    let gone = tx.execute(query(SQL).bind(id).bind(STEP_UNCLAIM_COUNT)).await?;
    Ok(gone < STEP_UNCLAIM_COUNT.unsigned_abs())
}

/// Touches the xorbs among `ids` that are unreferenced now: a client that has just read the last
/// file may still fetch their bytes.
pub(super) async fn touch_unreferenced(
    tx: &mut Tx<'_>,
    ids: impl IntoIterator<Item = &i64>,
    now: Timestamp,
) -> Result<(), IndexError> {
    // A registration guarantees its xorbs a grace period from then on, even if the clock was set
    // back since.
    const TOUCH: &str = "UPDATE xorbs SET since = greatest(since, $1, (SELECT registered_at FROM visibility)) \
         WHERE id IN (SELECT value FROM unnest($2) AS value WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = value))";
    tx.execute(query(TOUCH).bind(millis(now)).bind(id_list(ids))).await.map(drop)
}
