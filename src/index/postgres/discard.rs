//! Deletes the rows of abandoned registrations in PostgreSQL, and the list that every registration
//! in steps has in `registration_files`.
//!
//! Small files of an abandoned registration are deleted in batches. A large one is removed like any
//! other file: its name, and the rest in steps. A claim to a file that existed before is removed
//! without a change to that file. A large file that one of several repositories has removed is
//! listed for an abandoned registration, too, and its claim is removed in the same way.

use std::collections::HashSet;
use std::time::Instant;

use sqlx::query;
use thiserror::Error;

use super::claims::hand_over_claim;
use super::lists::id_list;
use super::millis;
use super::remove::{MAKE_INVISIBLE, SMALL_CHARGE_COUNT, touch_unreferenced};
use super::rows::row;
use super::tx::Tx;
use crate::index::error::{IndexError, IndexErrorKind};
use crate::index::register::{Discarded, STEP_TIME};
use crate::runtime::clock::Timestamp;

/// Listed files of one batch. Two in unit tests, for several steps.
const BATCH_FILE_COUNT: i64 = if cfg!(test) { 2 } else { 64 };

/// A batch takes no further file when its files have this many references. One in unit tests.
const BATCH_REFERENCE_COUNT: i64 = if cfg!(test) { 1 } else { 1024 };

/// Files of one batch that existed before, or are large: each takes statements of its own.
const BATCH_SINGLE_COUNT: usize = 32;

/// Xorbs for which one step credits a repository that has removed a large file. Two in unit tests.
const PART_CREDIT_COUNT: i64 = if cfg!(test) { 2 } else { 256 };

/// Rows of an obsolete list, in one batch. Two in unit tests.
const BATCH_ROW_COUNT: i64 = if cfg!(test) { 2 } else { 1024 };

/// Finds the abandoned or published registration with this number, or the oldest one for NULL.
pub(super) const FIND_FINISHED: &str =
    "SELECT id, state FROM registrations WHERE state > 0 AND ($1 IS NULL OR id = $1) ORDER BY id LIMIT 1";

row! { Over { id: i64, state: i64 } }

/// Takes one step at clearing an abandoned or published registration. Returns whether there was
/// one.
pub(super) async fn step(tx: &mut Tx<'_>, only: Option<i64>, now: Timestamp) -> Result<bool, IndexError> {
    const FORGET: &str = "DELETE FROM registrations WHERE id = $1 AND NOT EXISTS \
         (SELECT 1 FROM registration_files WHERE registration = $1)";
    let began = Instant::now();
    let Some(Over { id, state }) = tx.find(query(FIND_FINISHED).bind(only)).await? else { return Ok(false) };
    loop {
        let count = match state {
            1 => discard_some(tx, id, now).await?,
            _ => unlist_some(tx, id).await?,
        };
        if count == 0 || began.elapsed() >= STEP_TIME || cfg!(test) {
            break;
        }
    }
    tx.execute(query(FORGET).bind(id)).await?;
    Ok(true)
}

async fn unlist_some(tx: &mut Tx<'_>, id: i64) -> Result<u64, IndexError> {
    const SQL: &str = "DELETE FROM registration_files WHERE registration = $1 AND file_id IN \
         (SELECT file_id FROM registration_files WHERE registration = $1 ORDER BY file_id LIMIT $2)";
    tx.execute(query(SQL).bind(id).bind(BATCH_ROW_COUNT)).await
}

row! {
    /// A file that an abandoned registration has listed.
    Listed {
        file_id: i64,
        // Whether no other registration has written it.
        is_own: bool,
        // Counted up to one more than a small file has.
        reference_count: i64,
    }
}

/// Discards a batch, or a part of a large claim; returns 0 if nothing was left.
async fn discard_some(tx: &mut Tx<'_>, id: i64, now: Timestamp) -> Result<u64, IndexError> {
    const SELECT: &str = "SELECT file_id, coalesce(files.registration = $1, FALSE) AS is_own, \
         (SELECT count(*) FROM (SELECT 1 FROM xorb_files WHERE xorb_files.file_id = listed.file_id LIMIT $3) AS counted) \
         AS reference_count \
         FROM registration_files AS listed LEFT JOIN files ON files.id = file_id \
         WHERE listed.registration = $1 ORDER BY file_id LIMIT $2";
    const UNLIST: &str = "DELETE FROM registration_files WHERE registration = $1 AND file_id = ANY($2)";
    let select = query(SELECT).bind(id).bind(BATCH_FILE_COUNT).bind(SMALL_CHARGE_COUNT + 1);
    let (mut taken, mut small, mut reference_count, mut single_count) = (Vec::new(), Vec::new(), 0, 0);
    // A part of a large claim was credited, and its file stays in the list.
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
/// sure that this process does not write it. If it were in progress, it must not be published
/// without these rows.
///
/// If another server writes it, it is abandoned only if it is younger than the registration in
/// steps `own`, and otherwise waited for: the error is of kind [`IndexErrorKind::InProgress`]. So
/// two registrations never wait for each other, and the oldest one is always completed.
pub(super) async fn abandon(tx: &mut Tx<'_>, registration: i64, own: Option<i64>) -> Result<(), IndexError> {
    const ABANDON: &str = "UPDATE registrations SET state = 1 WHERE id = $1 AND state = 0 AND (own_lock IS NULL \
         OR own_lock = $2 OR id > $3 OR pg_try_advisory_xact_lock_shared(own_lock))";
    const IS_OPEN: &str = "SELECT 1::bigint FROM registrations WHERE id = $1 AND state = 0";
    let own_lock = tx.own_lock();
    if tx.execute(query(ABANDON).bind(registration).bind(own_lock).bind(own)).await? == 0
        && tx.find::<i64>(query(IS_OPEN).bind(registration)).await?.is_some()
    {
        return Err(IndexError { op: tx.op(), kind: IndexErrorKind::InProgress, source: Box::new(InProgress) });
    }
    Ok(())
}

/// Another server registers a file of this registration.
#[derive(Debug, Error)]
#[error("another server is registering one of the files")]
struct InProgress;

/// Abandons the open registrations that claim this file or a sha256 of it, because its last visible
/// claim is removed. They have ended: the caller has the lock of the file, also against other
/// servers. If one had not, its publication would fail.
pub(super) async fn abandon_claims(tx: &mut Tx<'_>, file: i64) -> Result<(), IndexError> {
    const SQL: &str = "UPDATE registrations SET state = 1 WHERE state = 0 AND id IN \
         (SELECT registration FROM file_repos WHERE file_id = $1 \
         UNION SELECT claim_registration FROM file_repos WHERE file_id = $1)";
    tx.execute(query(SQL).bind(file)).await.map(drop)
}

/// Removes files that only an abandoned registration has written, the small ones at once.
pub(super) async fn files(tx: &mut Tx<'_>, ids: &[i64], now: Timestamp) -> Result<(), IndexError> {
    const LARGE: &str = "SELECT value FROM unnest($1) AS value WHERE EXISTS \
         (SELECT 1 FROM xorb_files WHERE file_id = value LIMIT 1 OFFSET $2)";
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

/// Makes a large file invisible. Its references and then its claims are deleted in steps, as with
/// any removed file.
async fn detach(tx: &mut Tx<'_>, id: i64, now: Timestamp) -> Result<(), IndexError> {
    tx.execute(query(MAKE_INVISIBLE).bind(millis(now)).bind(id)).await.map(drop)
}

/// Deletes all rows of small files, with as many statements for all as for one.
async fn small_files(tx: &mut Tx<'_>, ids: &[i64], now: Timestamp) -> Result<(), IndexError> {
    // Claims first: the triggers credit a repository for the references that are left.
    const UNCLAIM: &str = "DELETE FROM file_repos WHERE file_id = ANY($1)";
    const TERMS: &str = "DELETE FROM file_terms WHERE file_id = ANY($1)";
    const REFERENCES: &str = "DELETE FROM xorb_files WHERE file_id = ANY($1) RETURNING xorb_id";
    const FILES: &str = "DELETE FROM files WHERE id = ANY($1)";
    if ids.is_empty() {
        return Ok(());
    }
    let ids = id_list(ids);
    for sql in [UNCLAIM, TERMS] {
        tx.execute(query(sql).bind(ids.as_slice())).await?;
    }
    let xorbs: Vec<i64> = tx.all(query(REFERENCES).bind(ids.as_slice())).await?;
    let xorbs: HashSet<i64> = xorbs.into_iter().collect();
    touch_unreferenced(tx, &xorbs, now).await?;
    tx.execute(query(FILES).bind(ids)).await.map(drop)
}

/// Takes one step at removing the claim of an abandoned registration to a file that existed before
/// it, or a claim that its repository has removed. The claim to a large file takes several.
pub(super) async fn claim(
    tx: &mut Tx<'_>,
    file: i64,
    registration: i64,
    now: Timestamp,
) -> Result<Discarded, IndexError> {
    // The trigger credits the repository for the xorbs between the old place and the new one.
    const CREDIT: &str = "UPDATE file_repos SET charged_below = (SELECT xorb_id FROM xorb_files \
             WHERE file_id = $1 AND xorb_id < coalesce(charged_below, $4) ORDER BY xorb_id DESC LIMIT 1 OFFSET $3 - 1) \
         WHERE file_id = $1 AND registration = $2 AND EXISTS (SELECT 1 FROM xorb_files \
             WHERE file_id = $1 AND xorb_id < coalesce(charged_below, $4) LIMIT 1 OFFSET $3)";
    const UNCLAIM: &str = "DELETE FROM file_repos WHERE file_id = $1 AND registration = $2";
    const RECORD: &str = "UPDATE file_repos SET has_claimed = FALSE, claim = NULL, claim_registration = 0, \
         record_len = greatest(0, record_len - coalesce((SELECT record_len FROM registration_files AS listed \
         WHERE listed.registration = $2 AND listed.file_id = $1), 0)) WHERE file_id = $1 AND claim_registration = $2";
    const IS_UNCLAIMED: &str = "SELECT removed_at IS NULL AND NOT EXISTS \
         (SELECT 1 FROM file_repos WHERE file_id = files.id) FROM files WHERE id = $1";
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
