//! Claims of a sha256 in SQLite: see [`ClaimIndex`].

use std::ops::Range;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{QueryBuilder, Sqlite, query};

use super::SqliteIndex;
use super::lists::{BATCH_COUNT, id_list};
use super::rows::{AnyTerms, row};
use super::tx::Tx;
use crate::format::FileHash;
use crate::format::shard::{Sha256, Term};
use crate::index::error::IndexError;
use crate::index::{Claim, ClaimIndex, ClaimState, KnownSha256, Reader};

/// Values of `files.sha256_state`: the file has no sha256, an unverified one, or a verified one.
const NONE: i64 = 0;
const CLAIMED: i64 = 1;
const VERIFIED: i64 = 2;

/// The outcome when a registration claims a sha256 for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimOutcome {
    /// The repository has made the same claim before, or the file is verified to have this sha256.
    Known,
    /// The claim was new and is written.
    New,
    /// The claim contradicts the unverified claim of this repository, which is given, or else the
    /// verified sha256 of the file.
    Other(Option<Sha256>),
}

impl ClaimIndex for SqliteIndex {
    fn find_sha256(&self, sha256: Sha256, reader: Reader) -> BoxFuture<'_, Result<Option<KnownSha256>, IndexError>> {
        const SQL: &str = "SELECT hash, raw_len, sha256_state FROM files WHERE sha256 = ?1 AND sha256_state IN (1, 2) \
             AND files.registration NOT IN hidden AND \
             (?2 IS NULL AND sha256_state = 2 OR EXISTS (SELECT 1 FROM file_repos \
             WHERE file_id = id AND repo = coalesce(?2, '*') AND registration NOT IN hidden AND \
             (sha256_state = 2 OR has_claimed = 1 AND claim IS NULL AND claim_registration NOT IN hidden))) \
             ORDER BY sha256_state DESC, id LIMIT 1";
        // A claim of this repository that differs from the unverified sha256 in `files`, which
        // another repository has claimed.
        const OWN: &str = "SELECT hash, raw_len, sha256_state FROM file_repos JOIN files ON id = file_id \
             WHERE claim = ?1 AND repo = coalesce(?2, '*') AND sha256_state = 1 \
             AND files.registration NOT IN hidden AND file_repos.registration NOT IN hidden \
             AND claim_registration NOT IN hidden ORDER BY id LIMIT 1";
        row! { Found { hash: FileHash, raw_len: u64, sha256_state: i64 } }
        async move {
            for sql in [SQL, OWN] {
                let find = query(sql).bind(sha256.as_digest().as_slice()).bind(reader.repo());
                if let Some(found) = self.read("find a file by its sha256").find::<Found>(find).await? {
                    let is_verified = found.sha256_state == VERIFIED;
                    return Ok(Some(KnownSha256 { file: found.hash, raw_len: found.raw_len, is_verified }));
                }
            }
            Ok(None)
        }
        .boxed()
    }

    fn unverified_claims(
        &self,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>> {
        // Begins at the start if the file `after` no longer exists, so that no claim is left out.
        const SQL: &str = "SELECT hash AS file, sha256 FROM files WHERE sha256_state = 1 AND registration NOT IN hidden AND \
             id > coalesce((SELECT id FROM files WHERE hash = ?1), 0) AND raw_len >= ?3 AND raw_len < ?4 \
             ORDER BY id LIMIT +?2";
        async move {
            let list = query(SQL).bind(after.as_ref().map(|file| file.as_bytes().as_slice())).bind(limit);
            let list = list.bind(sql_len(lens.start)).bind(sql_len(lens.end));
            self.read("list unverified claims").all(list).await
        }
        .boxed()
    }

    fn settle_claim(&self, claim: Claim, state: ClaimState) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SETTLE: &str =
            "UPDATE files SET sha256 = ?, sha256_state = 2 WHERE hash = ? AND sha256_state = 1 RETURNING id";
        const FORGET: &str =
            "UPDATE file_repos SET has_claimed = 0, claim = NULL WHERE file_id = ? AND has_claimed = 1";
        let actual = match state {
            ClaimState::Verified => claim.sha256,
            ClaimState::False { actual } => actual,
        };
        async move {
            let mut held = self.writing("settle a claim").await?;
            let mut tx = held.begin().await?;
            let settle = query(SETTLE).bind(actual.as_digest().as_slice()).bind(claim.file.as_bytes().as_slice());
            let Some(id) = tx.find::<i64>(settle).await? else { return Ok(false) };
            tx.execute(query(FORGET).bind(id)).await?;
            tx.commit().await?;
            Ok(true)
        }
        .boxed()
    }

    fn next_claimant(
        &self,
        lens: Range<u64>,
        after: Option<String>,
    ) -> BoxFuture<'_, Result<Option<String>, IndexError>> {
        // The empty string is before every name.
        const SQL: &str = "SELECT repo FROM file_repos CROSS JOIN files ON id = file_id \
             WHERE has_claimed = 1 AND repo > ?1 AND sha256_state = 1 AND raw_len >= ?2 AND raw_len < ?3 \
             AND files.registration NOT IN hidden \
             ORDER BY repo LIMIT 1";
        async move {
            let find = query(SQL).bind(after.unwrap_or_default()).bind(sql_len(lens.start)).bind(sql_len(lens.end));
            self.read("find a repository with unverified claims").find(find).await
        }
        .boxed()
    }

    fn sha256_claims_of(
        &self,
        repo: String,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>> {
        const SQL: &str = "SELECT hash AS file, coalesce(claim, sha256) AS sha256 FROM file_repos CROSS JOIN files ON id = file_id \
             WHERE has_claimed = 1 AND repo = ?5 AND file_id > coalesce((SELECT id FROM files WHERE hash = ?1), 0) AND \
             sha256_state = 1 AND raw_len >= ?3 AND raw_len < ?4 AND files.registration NOT IN hidden \
             ORDER BY file_id LIMIT +?2";
        async move {
            let list = query(SQL).bind(after.as_ref().map(|file| file.as_bytes().as_slice())).bind(limit);
            let list = list.bind(sql_len(lens.start)).bind(sql_len(lens.end)).bind(repo);
            self.read("list unverified claims of a repository").all(list).await
        }
        .boxed()
    }

    fn single_terms(
        &self,
        files: Vec<FileHash>,
        max_len: u64,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, Term)>, IndexError>> {
        const HEAD: &str = "SELECT hash, raw_len, terms FROM files JOIN file_terms ON file_id = id AND start = 0 \
             WHERE registration NOT IN hidden AND raw_len <= ";
        row! { Run { hash: FileHash, raw_len: u64, terms: AnyTerms } }
        async move {
            let head = |query: &mut QueryBuilder<Sqlite>| {
                query.push(HEAD).push_bind(sql_len(max_len)).push(" AND hash IN (");
            };
            let runs: Vec<Run> = self.read("read the terms of small files").all_of(&files, head).await?;
            // If the first term is as long as the file, it is the only one.
            let single = |run: Run| match run.terms.0.as_deref() {
                Some([term]) if u64::from(term.raw_len) == run.raw_len => Some((run.hash, *term)),
                _ => None,
            };
            Ok(runs.into_iter().filter_map(single).collect())
        }
        .boxed()
    }

    fn settle_true_claims(&self, claims: Vec<Claim>) -> BoxFuture<'_, Result<u64, IndexError>> {
        async move {
            let mut settled_count = 0;
            for batch in claims.chunks(BATCH_COUNT) {
                let mut held = self.writing("settle claims").await?;
                let mut tx = held.begin().await?;
                settled_count += settle_true(&mut tx, batch).await?;
                tx.commit().await?;
            }
            Ok(settled_count)
        }
        .boxed()
    }
}

/// Replaces all claims for these files by their true sha256. Returns how many files had an
/// unverified one.
async fn settle_true(tx: &mut Tx<'_>, claims: &[Claim]) -> Result<u64, IndexError> {
    // For nearly all files the stored sha256 is the true one. The first statement changes only
    // their state, so SQLite does not write the index on `sha256`. The second statement is for the
    // other files.
    const SETTLE: [(&str, &str); 2] = [
        ("UPDATE files SET sha256_state = 2 FROM (", "AND files.sha256 = settled.column2 RETURNING id"),
        ("UPDATE files SET sha256 = settled.column2, sha256_state = 2 FROM (", "RETURNING id"),
    ];
    const FORGET: &str = "UPDATE file_repos SET has_claimed = 0, claim = NULL \
         WHERE file_id IN (SELECT value FROM json_each(?)) AND has_claimed = 1";
    let mut ids: Vec<i64> = Vec::with_capacity(claims.len());
    for (head, tail) in SETTLE {
        if ids.len() == claims.len() {
            break;
        }
        let mut settle = QueryBuilder::new(head);
        settle.push_values(claims, |mut row, claim| {
            row.push_bind(claim.file.as_bytes().as_slice()).push_bind(claim.sha256.as_digest().as_slice());
        });
        settle.push(") AS settled WHERE files.hash = settled.column1 AND sha256_state = 1 ").push(tail);
        ids.extend(tx.all::<i64>(settle.build()).await?);
    }
    tx.execute(query(FORGET).bind(id_list(&ids))).await?;
    Ok(ids.len() as u64)
}

/// Writes that a repository claims the sha256 `claimed` for a file, unless this contradicts the
/// verified sha256 of the file or an earlier claim of the repository. The repository must have the
/// file, so a row in `file_repos`.
///
/// The first claim of a file is in `files.sha256`. If a claim of another repository differs from
/// it, that claim is in `file_repos.claim`.
pub(super) async fn make_claim(
    tx: &mut Tx<'_>,
    file_id: i64,
    repo: &str,
    claimed: Sha256,
) -> Result<ClaimOutcome, IndexError> {
    const KNOWN: &str = "SELECT hash, sha256, sha256_state, has_claimed, claim FROM files JOIN file_repos ON file_id = id \
         WHERE id = ? AND repo = ?";
    const FIRST: &str = "UPDATE files SET sha256 = ?, sha256_state = 1 WHERE id = ?";
    const CLAIM: &str = "UPDATE file_repos SET has_claimed = 1, claim = ? WHERE file_id = ? AND repo = ?";
    row! { Known { sha256: Option<Sha256>, sha256_state: i64, has_claimed: bool, claim: Option<Sha256> } }
    let known: Known = tx.one(query(KNOWN).bind(file_id).bind(repo)).await?;
    let state = known.sha256_state;
    if state != NONE && state != CLAIMED {
        return Ok(if known.sha256 == Some(claimed) { ClaimOutcome::Known } else { ClaimOutcome::Other(None) });
    }
    if known.has_claimed {
        let before = known.claim.or(known.sha256);
        return Ok(if before == Some(claimed) { ClaimOutcome::Known } else { ClaimOutcome::Other(before) });
    }
    let digest = claimed.as_digest().as_slice();
    if state == NONE {
        tx.execute(query(FIRST).bind(digest).bind(file_id)).await?;
    }
    let own = (state == CLAIMED && known.sha256 != Some(claimed)).then_some(digest);
    tx.execute(query(CLAIM).bind(own).bind(file_id).bind(repo)).await?;
    Ok(ClaimOutcome::New)
}

/// To be called after repositories have lost their claims to a file. Removes an unverified sha256
/// that only those repositories have claimed, and replaces it by a differing claim of another
/// repository if there is one.
pub(super) async fn hand_over_claim(tx: &mut Tx<'_>, file_id: i64) -> Result<(), IndexError> {
    const DISOWN: &str = "UPDATE files SET sha256 = NULL, sha256_state = 0 WHERE id = ? AND sha256_state = 1 AND \
         NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND has_claimed = 1 AND claim IS NULL)";
    const NEXT: &str = "UPDATE files SET sha256_state = 1, sha256 = \
         (SELECT claim FROM file_repos WHERE file_id = id AND claim IS NOT NULL ORDER BY repo LIMIT 1) \
         WHERE id = ? AND sha256_state = 0 AND removed_at IS NULL \
         AND EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND claim IS NOT NULL)";
    const AGREE: &str = "UPDATE file_repos SET claim = NULL WHERE file_id = ?1 AND claim IS NOT NULL AND \
         claim = (SELECT sha256 FROM files WHERE id = ?1)";
    for sql in [DISOWN, NEXT, AGREE] {
        tx.execute(query(sql).bind(file_id)).await?;
    }
    Ok(())
}

/// A length for SQLite, clamped to its largest integer.
fn sql_len(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
