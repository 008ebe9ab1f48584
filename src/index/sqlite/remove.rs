//! The sweep of removed files in SQLite.
//!
//! A large file may have hundreds of thousands of references. So the removal of a file only
//! replaces its hash by a random one: from then on no reader finds the file. Later steps, the
//! *sweep*, delete its terms, then its references, and then its claims. After a crash the next
//! sweep continues. Until a reference is deleted it retains its xorb, and the repositories of a
//! large file are charged for this xorb.

use std::time::Instant;

use sqlx::query;

use super::lists::id_list;
use super::millis;
use super::rows::row;
use super::tx::Tx;
use crate::index::error::IndexError;
use crate::index::register::STEP_TIME;
use crate::runtime::clock::Timestamp;

/// The number of rows with terms that one step deletes: up to 1.4 MiB, whose pages SQLite frees one
/// by one.
const STEP_RUN_COUNT: usize = 64;

/// The number of references that one step deletes if one repository is charged for them. For each
/// reference, three separate places are written: in `xorb_files`, in `xorbs`, and in the index
/// `xorbs_life`. Two in unit tests, so that a partly swept file occurs there.
const STEP_REFERENCE_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// If more repositories are charged, a step deletes fewer references. It takes as long to credit
/// this many repositories for a reference as to delete the reference.
const STEP_CLAIM_COUNT: i64 = 8;

/// In this module and in `discard.rs`, a file is *small* if the product of its references and of
/// the claims to be removed is at most this. Then these claims are removed at once. Three in unit
/// tests, so that small and large files occur there.
pub(super) const SMALL_CHARGE_COUNT: i64 = if cfg!(test) { 3 } else { 1024 };

/// The number of claims that one step deletes, after the references. Two in unit tests, so that
/// several such steps occur there.
const STEP_UNCLAIM_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// Makes a file invisible to lookups by hash, by sha256 and by claim.
pub(super) const MAKE_INVISIBLE: &str = "UPDATE files SET hash = randomblob(32), sha256 = NULL, sha256_state = 0, \
     removed_at = ? WHERE id = ? AND removed_at IS NULL";

/// Finds a removed file.
pub(super) const FIND_REMOVED: &str = "SELECT id, removed_at FROM files WHERE removed_at IS NOT NULL LIMIT 1";

/// Makes the claim of this repository to a large file invisible, as if an abandoned registration
/// had made the claim. Later steps of `discard.rs` credit the repository and delete the claim.
/// `repo` must be `Some`, because the claims of all repositories are removed with the file.
pub(super) async fn hide_claim(tx: &mut Tx<'_>, file: i64, repo: Option<&str>) -> Result<(), IndexError> {
    const HIDE: &str = "UPDATE file_repos SET registration = ?1, claim_registration = ?1, has_claimed = 0, \
         claim = NULL, is_counted = 0 WHERE file_id = ?2 AND repo = ?3";
    const LIST: &str = "INSERT INTO registration_files (registration, file_id, record_len) VALUES (?, ?, 0)";
    let registration: i64 = tx.one(query("INSERT INTO registrations (state) VALUES (1) RETURNING id")).await?;
    tx.execute(query(HIDE).bind(registration).bind(file).bind(repo)).await?;
    tx.execute(query(LIST).bind(registration).bind(file)).await.map(drop)
}

/// Whether a file has so many references that the claim of this repository must be removed in
/// steps. `None` stands for the claims of all repositories.
pub(super) async fn is_large(tx: &mut Tx<'_>, id: i64, repo: Option<&str>) -> Result<bool, IndexError> {
    const SQL: &str = "SELECT EXISTS (SELECT 1 FROM xorb_files WHERE file_id = ?1 LIMIT 1 \
         OFFSET ?2 / max(1, (SELECT count(*) FROM file_repos WHERE file_id = ?1 AND (?3 IS NULL OR repo = ?3))))";
    tx.one(query(SQL).bind(id).bind(SMALL_CHARGE_COUNT).bind(repo)).await
}

/// Sweeps several small files or a part of a large one. Returns whether there was a removed file.
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

/// Sweeps a small file, or a part of a large one. Returns whether there was a removed file.
async fn sweep_one(tx: &mut Tx<'_>, now: Timestamp) -> Result<bool, IndexError> {
    const TERMS: &str = "DELETE FROM file_terms WHERE rowid IN \
         (SELECT rowid FROM file_terms WHERE file_id = ? LIMIT +?)";
    const REFERENCES: &str = "DELETE FROM xorb_files WHERE file_id = ?1 AND xorb_id IN \
         (SELECT xorb_id FROM xorb_files WHERE file_id = ?1 LIMIT +?2) RETURNING xorb_id";
    const STEP: &str = "SELECT max(1, ?2 * ?3 / (?3 - 1 + max(1, count(*)))) FROM file_repos WHERE file_id = ?1";
    row! { Removed { id: i64, removed_at: Timestamp } }
    // The caller has checked for a removed file before it got the write lock. Another process may
    // have swept that file since, and SQLite reuses ids, so find one again.
    let Some(Removed { id, removed_at }) = tx.find(query(FIND_REMOVED)).await? else { return Ok(false) };
    // Xorbs are touched as of the removal at least, even if the clock was set back since.
    let now = now.max(removed_at);
    // Terms first: a reference without terms only retains a xorb too long, but a term without a
    // reference would lose its xorb.
    let limit = i64::try_from(STEP_RUN_COUNT).unwrap_or(i64::MAX);
    let runs = tx.execute(query(TERMS).bind(id).bind(limit)).await?;
    if runs < STEP_RUN_COUNT as u64 {
        let limit: i64 = tx.one(query(STEP).bind(id).bind(STEP_REFERENCE_COUNT).bind(STEP_CLAIM_COUNT)).await?;
        let xorbs: Vec<i64> = tx.all(query(REFERENCES).bind(id).bind(limit)).await?;
        touch_unreferenced(tx, &xorbs, now).await?;
        let is_last = i64::try_from(xorbs.len()).unwrap_or(i64::MAX) < limit;
        if is_last && unclaim_some(tx, id).await? {
            tx.execute(query("DELETE FROM files WHERE id = ?").bind(id)).await?;
        }
    }
    Ok(true)
}

/// Deletes some claims to a removed file. Returns whether none is left. This takes several steps
/// for a file with thousands of claims, because each deletion changes the row of a repository.
async fn unclaim_some(tx: &mut Tx<'_>, id: i64) -> Result<bool, IndexError> {
    const SQL: &str = "DELETE FROM file_repos WHERE file_id = ?1 AND repo IN \
         (SELECT repo FROM file_repos WHERE file_id = ?1 LIMIT +?2)";
    let deleted = tx.execute(query(SQL).bind(id).bind(STEP_UNCLAIM_COUNT)).await?;
    Ok(deleted < STEP_UNCLAIM_COUNT.unsigned_abs())
}

/// Touches the xorbs among `ids` that no file references now. So GC waits for `gc_grace`, because a
/// client that has just read the terms of the removed file may still read the bytes of its xorbs.
pub(super) async fn touch_unreferenced(
    tx: &mut Tx<'_>,
    ids: impl IntoIterator<Item = &i64>,
    now: Timestamp,
) -> Result<(), IndexError> {
    // Each registration guarantees its xorbs a grace period from its time on, even if the clock was
    // set back since. So `since` becomes the time of the latest registration at least.
    const TOUCH: &str = "UPDATE xorbs SET since = max(since, ?1, (SELECT registered_at FROM visibility)) \
         WHERE id IN (SELECT value FROM json_each(?2) WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = value))";
    tx.execute(query(TOUCH).bind(millis(now)).bind(id_list(ids))).await.map(drop)
}
