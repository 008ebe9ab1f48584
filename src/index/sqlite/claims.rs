//! Claims of a sha256 in SQLite.

use std::ops::Range;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::files::{BATCH_COUNT, execute, file_hash, push_files, release, repo_of};
use super::named::id_list;
use super::write::{Write, statement};
use super::{SqliteIndex, get, map};
use crate::format::FileHash;
use crate::format::shard::{Sha256, Term};
use crate::index::error::{Inconsistent, IndexError};
use crate::index::files::parse_terms;
use crate::index::{Claim, ClaimIndex, ClaimState, KnownSha256, Reader};

/// The states of a claim in `files.sha256_state`.
const NONE: i64 = 0;
const CLAIMED: i64 = 1;
const VERIFIED: i64 = 2;

/// The outcome of a claim in a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// It was known: the repository has made it, or the file is verified to have it.
    Known,
    /// It is new.
    New,
    /// It contradicts another one: the given unverified one of this repository, or else the
    /// verified one of the file.
    Other(Option<Sha256>),
}

impl SqliteIndex {
    pub(super) async fn read_sha256(&self, sha256: Sha256, reader: Reader) -> Result<Option<KnownSha256>, IndexError> {
        const SQL: &str = "SELECT hash, sha256_state FROM files WHERE sha256 = ?1 AND sha256_state IN (1, 2) \
             AND files.registration NOT IN hidden AND \
             (?2 IS NULL AND sha256_state = 2 OR EXISTS (SELECT 1 FROM file_repos \
             WHERE file_id = id AND repo = coalesce(?2, '*') AND registration NOT IN hidden AND \
             (sha256_state = 2 OR has_claimed = 1 AND claim IS NULL AND claim_registration NOT IN hidden))) \
             ORDER BY sha256_state DESC, id LIMIT 1";
        // The repository's own claim, which contradicts that of another one.
        const OWN: &str = "SELECT hash, sha256_state FROM file_repos JOIN files ON id = file_id \
             WHERE claim = ?1 AND repo = coalesce(?2, '*') AND sha256_state = 1 \
             AND claim_registration NOT IN hidden ORDER BY id LIMIT 1";
        let op = "find a file by its sha256";
        let mut found = None;
        for sql in [SQL, OWN] {
            let query = sqlx::query(sql).bind(sha256.as_digest().as_slice()).bind(repo_of(&reader));
            found = query.fetch_optional(&self.readers).await.map_err(|error| map(op, error))?;
            if found.is_some() {
                break;
            }
        }
        let Some(row) = found else { return Ok(None) };
        let is_verified = get::<i64>(op, &row, 1)? == VERIFIED;
        Ok(Some(KnownSha256 { file: file_hash(op, get(op, &row, 0)?)?, is_verified }))
    }

    pub(super) async fn read_claims(
        &self,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> Result<Vec<Claim>, IndexError> {
        // Begins at the start if `after` no longer exists: no claim may be left out.
        const SQL: &str = "SELECT hash, sha256 FROM files WHERE sha256_state = 1 AND registration NOT IN hidden AND \
             id > coalesce((SELECT id FROM files WHERE hash = ?1), 0) AND raw_len >= ?3 AND raw_len < ?4 \
             ORDER BY id LIMIT ?2";
        let op = "list unverified claims";
        let rows = sqlx::query(SQL)
            .bind(after.map(|file| file.as_bytes().to_vec()))
            .bind(limit)
            .bind(sql_len(lens.start))
            .bind(sql_len(lens.end))
            .fetch_all(&self.readers)
            .await
            .map_err(|error| map(op, error))?;
        let parse = |row: &SqliteRow| {
            let file = file_hash(op, get(op, row, 0)?)?;
            Ok(Claim { file, sha256: parse_sha256(op, file, get(op, row, 1)?)? })
        };
        rows.iter().map(parse).collect()
    }

    pub(super) async fn write_claim(&self, claim: Claim, state: ClaimState) -> Result<bool, IndexError> {
        let actual = match state {
            ClaimState::Verified => claim.sha256,
            ClaimState::False { actual } => actual,
        };
        let op = "settle a claim";
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let settled = settle(op, &mut connection, claim.file, actual).await;
        release(connection, settled.is_ok()).await;
        settled
    }
}

impl ClaimIndex for SqliteIndex {
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
        let op = "find a repository with unverified claims";
        async move {
            let query = sqlx::query(SQL).bind(after.unwrap_or_default());
            let query = query.bind(sql_len(lens.start)).bind(sql_len(lens.end));
            let row = query.fetch_optional(&self.readers).await.map_err(|error| map(op, error))?;
            row.map(|row| get(op, &row, 0)).transpose()
        }
        .boxed()
    }

    fn claims_of(
        &self,
        repo: String,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>> {
        const SQL: &str = "SELECT hash, coalesce(claim, sha256) FROM file_repos CROSS JOIN files ON id = file_id \
             WHERE has_claimed = 1 AND repo = ?5 AND file_id > coalesce((SELECT id FROM files WHERE hash = ?1), 0) AND \
             sha256_state = 1 AND raw_len >= ?3 AND raw_len < ?4 AND files.registration NOT IN hidden \
             ORDER BY file_id LIMIT ?2";
        let op = "list unverified claims of a repository";
        async move {
            let query = sqlx::query(SQL).bind(after.map(|file| file.as_bytes().to_vec())).bind(limit);
            let query = query.bind(sql_len(lens.start)).bind(sql_len(lens.end)).bind(repo);
            let rows = query.fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            let parse = |row: &SqliteRow| {
                let file = file_hash(op, get(op, row, 0)?)?;
                Ok(Claim { file, sha256: parse_sha256(op, file, get(op, row, 1)?)? })
            };
            rows.iter().map(parse).collect()
        }
        .boxed()
    }

    fn single_terms(
        &self,
        files: Vec<FileHash>,
        max_len: u64,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, Term)>, IndexError>> {
        let op = "read the terms of small files";
        async move {
            let mut found = Vec::with_capacity(files.len());
            for batch in files.chunks(BATCH_COUNT) {
                let mut query = QueryBuilder::<Sqlite>::new(
                    "SELECT hash, raw_len, terms FROM files JOIN file_terms ON file_id = id AND start = 0 \
                     WHERE registration NOT IN hidden AND raw_len <= ",
                );
                query.push_bind(sql_len(max_len)).push(" AND hash IN (");
                push_files(&mut query, batch);
                let rows = query.build().fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
                for row in &rows {
                    let file = file_hash(op, get(op, row, 0)?)?;
                    let raw_len: i64 = get(op, row, 1)?;
                    // The term is as long as the file: there is no further run.
                    if let Some([term]) = parse_terms(get(op, row, 2)?).as_deref()
                        && i64::from(term.raw_len) == raw_len
                    {
                        found.push((file, *term));
                    }
                }
            }
            Ok(found)
        }
        .boxed()
    }

    fn settle_true_claims(&self, claims: Vec<Claim>) -> BoxFuture<'_, Result<u64, IndexError>> {
        let op = "settle claims";
        async move {
            let mut settled_count = 0;
            for batch in claims.chunks(BATCH_COUNT) {
                let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
                let settled = settle_true(op, &mut connection, batch).await;
                release(connection, settled.is_ok()).await;
                settled_count += settled?;
            }
            Ok(settled_count)
        }
        .boxed()
    }
}

/// Replaces all claims of these files by their true sha256.
async fn settle_true(op: &'static str, connection: &mut SqliteConnection, claims: &[Claim]) -> Result<u64, IndexError> {
    // Nearly all files have the very digest that was claimed of them. Its index is then left alone.
    const SETTLE: [(&str, &str); 2] = [
        ("UPDATE files SET sha256_state = 2 FROM (", "AND files.sha256 = settled.column2 RETURNING id"),
        ("UPDATE files SET sha256 = settled.column2, sha256_state = 2 FROM (", "RETURNING id"),
    ];
    const FORGET: &str = "UPDATE file_repos SET has_claimed = 0, claim = NULL \
         WHERE file_id IN (SELECT value FROM json_each(?)) AND has_claimed = 1";
    let failed = |error| map(op, error);
    let mut transaction = Write::begin(op, connection).await?;
    let mut ids: Vec<i64> = Vec::with_capacity(claims.len());
    for (head, tail) in SETTLE {
        if ids.len() == claims.len() {
            break;
        }
        let mut query = QueryBuilder::<Sqlite>::new(head);
        query.push_values(claims, |mut row, claim| {
            row.push_bind(claim.file.as_bytes().to_vec()).push_bind(claim.sha256.as_digest().to_vec());
        });
        query.push(") AS settled WHERE files.hash = settled.column1 AND sha256_state = 1 ").push(tail);
        for row in query.build().fetch_all(statement(op, &mut transaction)?).await.map_err(failed)? {
            ids.push(get(op, &row, 0)?);
        }
    }
    execute(op, &mut transaction, FORGET, |query| query.bind(id_list(&ids))).await?;
    transaction.commit().await?;
    Ok(ids.len() as u64)
}

/// Replaces all claims of a file by its true sha256.
async fn settle(
    op: &'static str,
    connection: &mut SqliteConnection,
    file: FileHash,
    actual: Sha256,
) -> Result<bool, IndexError> {
    const SETTLE: &str =
        "UPDATE files SET sha256 = ?, sha256_state = 2 WHERE hash = ? AND sha256_state = 1 RETURNING id";
    const FORGET: &str = "UPDATE file_repos SET has_claimed = 0, claim = NULL WHERE file_id = ? AND has_claimed = 1";
    let failed = |error| map(op, error);
    let mut transaction = Write::begin(op, connection).await?;
    let row = sqlx::query(SETTLE)
        .bind(actual.as_digest().as_slice())
        .bind(file.as_bytes().as_slice())
        .fetch_optional(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    let Some(row) = row else { return Ok(false) };
    let id: i64 = get(op, &row, 0)?;
    execute(op, &mut transaction, FORGET, |query| query.bind(id)).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Makes a repository's claim for a file that it has, unless it contradicts the file or an
/// unverified claim of the same repository.
pub(super) async fn make_claim(
    op: &'static str,
    connection: &mut SqliteConnection,
    file_id: i64,
    repo: &str,
    claim: Claim,
) -> Result<Made, IndexError> {
    const KNOWN: &str = "SELECT sha256, sha256_state, has_claimed, claim FROM files JOIN file_repos ON file_id = id \
         WHERE id = ? AND repo = ?";
    const FIRST: &str = "UPDATE files SET sha256 = ?, sha256_state = 1 WHERE id = ?";
    const SIGN: &str = "UPDATE file_repos SET has_claimed = 1, claim = ? WHERE file_id = ? AND repo = ?";
    let row = sqlx::query(KNOWN)
        .bind(file_id)
        .bind(repo.to_owned())
        .fetch_one(statement(op, connection)?)
        .await
        .map_err(|error| map(op, error))?;
    let parse = |index: usize| {
        let digest: Option<&[u8]> = get(op, &row, index)?;
        digest.map(|digest| parse_sha256(op, claim.file, digest)).transpose()
    };
    let (known, own, state): (_, _, i64) = (parse(0)?, parse(3)?, get(op, &row, 1)?);
    let has_claimed: bool = get(op, &row, 2)?;
    if state != NONE && state != CLAIMED {
        return Ok(if known == Some(claim.sha256) { Made::Known } else { Made::Other(None) });
    }
    if has_claimed {
        let before = own.or(known);
        return Ok(if before == Some(claim.sha256) { Made::Known } else { Made::Other(before) });
    }
    if state == NONE {
        let digest = claim.sha256.as_digest().to_vec();
        execute(op, connection, FIRST, |query| query.bind(digest).bind(file_id)).await?;
    }
    let own = (state == CLAIMED && known != Some(claim.sha256)).then(|| claim.sha256.as_digest().to_vec());
    execute(op, connection, SIGN, |query| query.bind(own).bind(file_id).bind(repo.to_owned())).await?;
    Ok(Made::New)
}

/// After claims to a file were removed: drops a sha256 that only they claimed, and replaces it by
/// the claim of another repository.
pub(super) async fn hand_over_claim(
    op: &'static str,
    connection: &mut SqliteConnection,
    file_id: i64,
) -> Result<(), IndexError> {
    const DISOWN: &str = "UPDATE files SET sha256 = NULL, sha256_state = 0 WHERE id = ? AND sha256_state = 1 AND \
         NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND has_claimed = 1 AND claim IS NULL)";
    const NEXT: &str = "UPDATE files SET sha256_state = 1, sha256 = \
         (SELECT claim FROM file_repos WHERE file_id = id AND claim IS NOT NULL ORDER BY repo LIMIT 1) \
         WHERE id = ? AND sha256_state = 0 AND EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND claim IS NOT NULL)";
    const AGREE: &str = "UPDATE file_repos SET claim = NULL WHERE file_id = ?1 AND claim IS NOT NULL AND \
         claim = (SELECT sha256 FROM files WHERE id = ?1)";
    for sql in [DISOWN, NEXT, AGREE] {
        execute(op, connection, sql, |query| query.bind(file_id)).await?;
    }
    Ok(())
}

/// Clamped to the largest integer of SQLite.
fn sql_len(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

pub(super) fn parse_sha256(op: &'static str, file: FileHash, digest: &[u8]) -> Result<Sha256, IndexError> {
    digest.try_into().map(Sha256::from_digest).map_err(|_| {
        let (key, reason) = (format!("file {file}"), "not 32 bytes".to_owned());
        IndexError::inconsistent(op, Inconsistent { table: "files", column: "sha256", key, reason })
    })
}
