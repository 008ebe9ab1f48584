//! Discards the rows of abandoned registrations in SQLite, and the file lists of abandoned and
//! published ones. Every registration in steps has such a list in `registration_files`.
//!
//! Here a file is *large* if it has more than [`SMALL_CHARGE_COUNT`] references; in `register.rs` a
//! file is large by its number of terms.
//!
//! Small files of an abandoned registration are deleted in batches. A large file becomes invisible
//! at once, and the sweep of `remove.rs` deletes its rows in steps. If a file existed before the
//! registration, only the claim of the registration's repository to it is removed.
//!
//! If one of several repositories removes a large file, its claim is removed in steps, too. For
//! this, `hide_claim` in `remove.rs` creates an abandoned registration that lists the file.

use std::collections::HashSet;
use std::time::Instant;

use sqlx::query;

use super::claims::hand_over_claim;
use super::lists::id_list;
use super::millis;
use super::remove::{MAKE_INVISIBLE, SMALL_CHARGE_COUNT, touch_unreferenced};
use super::rows::row;
use super::tx::Tx;
use crate::index::error::IndexError;
use crate::index::register::{Discarded, STEP_TIME};
use crate::runtime::clock::Timestamp;

/// The maximum number of listed files in one batch. Two in unit tests, so that several steps occur
/// there.
const BATCH_FILE_COUNT: i64 = if cfg!(test) { 2 } else { 64 };

/// A batch takes no further file when its files have this many references. One in unit tests.
const BATCH_REFERENCE_COUNT: i64 = if cfg!(test) { 1 } else { 1024 };

/// The maximum number of files in one batch that existed before or are large, because each of them
/// takes statements of its own.
const BATCH_SINGLE_COUNT: usize = 32;

/// The number of xorbs for which one step credits a repository whose claim to a large file is
/// removed. Two in unit tests.
const PART_CREDIT_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// The number of rows of a published registration's list that one batch deletes. Two in unit tests.
const BATCH_ROW_COUNT: i64 = if cfg!(test) { 2 } else { 1024 };

/// Finds a *finished* registration: an abandoned or published one whose list is not deleted yet.
/// The parameter is its number, or NULL for the oldest one.
pub(super) const FIND_FINISHED: &str =
    "SELECT id, state FROM registrations WHERE state > 0 AND (?1 IS NULL OR id = ?1) ORDER BY id LIMIT 1";

row! { Finished { id: i64, state: i64 } }

/// Takes one step at discarding the list of a finished registration, and its rows if it was
/// abandoned. `only` is its number, or `None` for the oldest one. Returns whether there was one.
pub(super) async fn step(tx: &mut Tx<'_>, only: Option<i64>, now: Timestamp) -> Result<bool, IndexError> {
    const FORGET: &str = "DELETE FROM registrations WHERE id = ?1 AND NOT EXISTS \
         (SELECT 1 FROM registration_files WHERE registration = ?1)";
    let began = Instant::now();
    let Some(Finished { id, state }) = tx.find(query(FIND_FINISHED).bind(only)).await? else { return Ok(false) };
    loop {
        let count = match state {
            // Abandoned.
            1 => discard_some(tx, id, now).await?,
            // Published.
            _ => unlist_some(tx, id).await?,
        };
        if count == 0 || began.elapsed() >= STEP_TIME || cfg!(test) {
            break;
        }
    }
    tx.execute(query(FORGET).bind(id)).await?;
    Ok(true)
}

/// Deletes a batch of the list of a published registration. Returns the number of deleted rows.
async fn unlist_some(tx: &mut Tx<'_>, id: i64) -> Result<u64, IndexError> {
    const SQL: &str = "DELETE FROM registration_files WHERE registration = ?1 AND file_id IN \
         (SELECT file_id FROM registration_files WHERE registration = ?1 ORDER BY file_id LIMIT +?2)";
    tx.execute(query(SQL).bind(id).bind(BATCH_ROW_COUNT)).await
}

row! {
    /// A file that an abandoned registration has listed.
    Listed {
        file_id: i64,
        // Whether this registration inserted the file. Otherwise the file existed before, or has
        // been deleted since.
        is_own: bool,
        // At most `SMALL_CHARGE_COUNT + 1`, which is enough to recognize a large file.
        reference_count: i64,
    }
}

/// Discards a batch of an abandoned registration, or a part of a claim to a large file. Returns 0
/// if nothing is left.
async fn discard_some(tx: &mut Tx<'_>, id: i64, now: Timestamp) -> Result<u64, IndexError> {
    const SELECT: &str = "SELECT file_id, coalesce(files.registration = ?1, 0) AS is_own, \
         (SELECT count(*) FROM (SELECT 1 FROM xorb_files WHERE xorb_files.file_id = listed.file_id LIMIT +?3)) \
         AS reference_count \
         FROM registration_files AS listed LEFT JOIN files ON files.id = file_id \
         WHERE listed.registration = ?1 ORDER BY file_id LIMIT +?2";
    const UNLIST: &str =
        "DELETE FROM registration_files WHERE registration = ? AND file_id IN (SELECT value FROM json_each(?))";
    let select = query(SELECT).bind(id).bind(BATCH_FILE_COUNT).bind(SMALL_CHARGE_COUNT + 1);
    let (mut taken, mut small, mut reference_count, mut single_count) = (Vec::new(), Vec::new(), 0, 0);
    // Whether the batch ends with a part of a claim to a large file, which stays in the list.
    let mut is_part = false;
    for listed in tx.all::<Listed>(select).await? {
        if !listed.is_own {
            if claim(tx, listed.file_id, id, now).await? == Discarded::Part {
                is_part = true;
                break;
            }
            single_count += 1;
        } else if listed.reference_count > SMALL_CHARGE_COUNT {
            detach(tx, listed.file_id, now).await?;
            single_count += 1;
        } else {
            reference_count += listed.reference_count;
            small.push(listed.file_id);
        }
        taken.push(listed.file_id);
        if reference_count >= BATCH_REFERENCE_COUNT || single_count == BATCH_SINGLE_COUNT {
            break;
        }
    }
    small_files(tx, &small, now).await?;
    let unlisted = tx.execute(query(UNLIST).bind(id).bind(id_list(&taken))).await?;
    Ok(unlisted + u64::from(is_part))
}

/// Abandons a registration of which another one is about to discard rows. The locks of files make
/// sure that it is not in progress. If it were, it must not be published without these rows.
pub(super) async fn abandon(tx: &mut Tx<'_>, registration: i64) -> Result<(), IndexError> {
    const SQL: &str = "UPDATE registrations SET state = 1 WHERE id = ? AND state = 0";
    tx.execute(query(SQL).bind(registration)).await.map(drop)
}

/// Abandons the open registrations that claim this file or a sha256 of it, because its last visible
/// claim is removed. They have ended: the caller has the lock of the file, also against other
/// servers. If one had not, its publication would fail.
pub(super) async fn abandon_claims(tx: &mut Tx<'_>, file: i64) -> Result<(), IndexError> {
    const SQL: &str = "UPDATE registrations SET state = 1 WHERE state = 0 AND id IN \
         (SELECT registration FROM file_repos WHERE file_id = ?1 \
         UNION SELECT claim_registration FROM file_repos WHERE file_id = ?1)";
    tx.execute(query(SQL).bind(file)).await.map(drop)
}

/// Removes files that abandoned registrations have inserted: deletes small ones, and makes large
/// ones invisible.
pub(super) async fn files(tx: &mut Tx<'_>, ids: &[i64], now: Timestamp) -> Result<(), IndexError> {
    const LARGE: &str = "SELECT value FROM json_each(?1) WHERE EXISTS \
         (SELECT 1 FROM xorb_files WHERE file_id = value LIMIT 1 OFFSET ?2)";
    if ids.is_empty() {
        return Ok(());
    }
    let large: Vec<i64> = tx.all(query(LARGE).bind(id_list(ids)).bind(SMALL_CHARGE_COUNT)).await?;
    let large: HashSet<i64> = large.into_iter().collect();
    for id in &large {
        detach(tx, *id, now).await?;
    }
    let small: Vec<i64> = ids.iter().copied().filter(|id| !large.contains(id)).collect();
    small_files(tx, &small, now).await
}

/// Makes a large file invisible. The sweep deletes its terms, references and claims in steps, as
/// with any removed file.
async fn detach(tx: &mut Tx<'_>, id: i64, now: Timestamp) -> Result<(), IndexError> {
    tx.execute(query(MAKE_INVISIBLE).bind(millis(now)).bind(id)).await.map(drop)
}

/// Deletes all rows of small files. The number of statements does not depend on the number of
/// files.
async fn small_files(tx: &mut Tx<'_>, ids: &[i64], now: Timestamp) -> Result<(), IndexError> {
    // Claims first: when a claim is deleted, a trigger credits its repository for the xorbs that
    // the file still references.
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
        tx.execute(query(sql).bind(ids.as_str())).await?;
    }
    let xorbs: Vec<i64> = tx.all(query(REFERENCES).bind(ids.as_str())).await?;
    let xorbs: HashSet<i64> = xorbs.into_iter().collect();
    touch_unreferenced(tx, &xorbs, now).await?;
    tx.execute(query(FILES).bind(ids)).await.map(drop)
}

/// Takes one step at removing the claim that has the number of an abandoned registration: its
/// repository registered an existing file, or removed a large one. The claim to a large file takes
/// several.
pub(super) async fn claim(
    tx: &mut Tx<'_>,
    file: i64,
    registration: i64,
    now: Timestamp,
) -> Result<Discarded, IndexError> {
    // `charged_below` is the place in the ordered xorbs of the file up to which the repository is
    // charged. A trigger credits it for the xorbs between the new place and the old one.
    const CREDIT: &str = "UPDATE file_repos SET charged_below = (SELECT xorb_id FROM xorb_files \
             WHERE file_id = ?1 AND xorb_id < coalesce(charged_below, ?4) ORDER BY xorb_id DESC LIMIT 1 OFFSET ?3 - 1) \
         WHERE file_id = ?1 AND registration = ?2 AND EXISTS (SELECT 1 FROM xorb_files \
             WHERE file_id = ?1 AND xorb_id < coalesce(charged_below, ?4) LIMIT 1 OFFSET ?3)";
    const UNCLAIM: &str = "DELETE FROM file_repos WHERE file_id = ? AND registration = ?";
    const RECORD: &str = "UPDATE file_repos SET has_claimed = 0, claim = NULL, claim_registration = 0, \
         record_len = max(0, record_len - coalesce((SELECT record_len FROM registration_files AS listed \
         WHERE listed.registration = ?2 AND listed.file_id = ?1), 0)) WHERE file_id = ?1 AND claim_registration = ?2";
    const IS_UNCLAIMED: &str = "SELECT removed_at IS NULL AND NOT EXISTS \
         (SELECT 1 FROM file_repos WHERE file_id = files.id) FROM files WHERE id = ?";
    let credit = query(CREDIT).bind(file).bind(registration).bind(PART_CREDIT_COUNT).bind(i64::MAX);
    if tx.execute(credit).await? > 0 {
        return Ok(Discarded::Part);
    }
    tx.execute(query(UNCLAIM).bind(file).bind(registration)).await?;
    tx.execute(query(RECORD).bind(file).bind(registration)).await?;
    hand_over_claim(tx, file).await?;
    // Without any claim the file must be removed. The removal of the last visible one does that; in
    // older versions it left the file to this.
    if tx.find(query(IS_UNCLAIMED).bind(file)).await? == Some(true) {
        detach(tx, file, now).await?;
        return Ok(Discarded::File);
    }
    Ok(Discarded::Claim)
}

/// Removes such a claim in as many steps as it takes.
pub(super) async fn whole_claim(
    tx: &mut Tx<'_>,
    file: i64,
    registration: i64,
    now: Timestamp,
) -> Result<Discarded, IndexError> {
    loop {
        match claim(tx, file, registration, now).await? {
            Discarded::Part => {}
            whole => return Ok(whole),
        }
    }
}
