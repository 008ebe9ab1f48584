//! Claims of a sha256 in SQLite: who has made them, and what became of them.

use std::ops::Range;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::files::{execute, file_hash, repo_of};
use super::{SqliteIndex, get, map};
use crate::format::FileHash;
use crate::format::shard::Sha256;
use crate::index::error::{Inconsistent, IndexError};
use crate::index::{Claim, ClaimState, KnownSha256, Reader};

/// The states of a claim in `files.sha256_state`.
const NONE: i64 = 0;
const CLAIMED: i64 = 1;
const VERIFIED: i64 = 2;

/// What became of a claim in a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// It is what is known of the file now, or was before.
    Agreed,
    /// Another one is known of the file; unverified where it is given.
    Other(Option<Sha256>),
}

impl SqliteIndex {
    pub(super) async fn read_sha256(&self, sha256: Sha256, reader: Reader) -> Result<Option<KnownSha256>, IndexError> {
        const SQL: &str = "SELECT hash, sha256_state FROM files WHERE sha256 = ?1 AND sha256_state IN (1, 2) AND \
             (?2 IS NULL AND sha256_state = 2 OR EXISTS (SELECT 1 FROM file_repos \
             WHERE file_id = id AND repo = coalesce(?2, '*') AND (sha256_state = 2 OR has_claimed = 1))) \
             ORDER BY sha256_state DESC, id LIMIT 1";
        let op = "find a file by its sha256";
        let row = sqlx::query(SQL)
            .bind(sha256.as_digest().as_slice())
            .bind(repo_of(&reader))
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| map(op, error))?;
        let Some(row) = row else { return Ok(None) };
        let is_verified = get::<i64>(op, &row, 1)? == VERIFIED;
        Ok(Some(KnownSha256 { file: file_hash(op, get(op, &row, 0)?)?, is_verified }))
    }

    pub(super) async fn read_claims(
        &self,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> Result<Vec<Claim>, IndexError> {
        // From the start where there is none to be behind, or not any more: nothing must be left out.
        const SQL: &str = "SELECT hash, sha256 FROM files WHERE sha256_state = 1 AND \
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
        let sql = "UPDATE files SET sha256 = ?, sha256_state = ? WHERE hash = ? AND sha256 = ? AND sha256_state = 1";
        let result = sqlx::query(sql)
            .bind(actual.as_digest().as_slice())
            .bind(VERIFIED)
            .bind(claim.file.as_bytes().as_slice())
            .bind(claim.sha256.as_digest().as_slice())
            .execute(&self.writer)
            .await
            .map_err(|error| map("settle a claim", error))?;
        Ok(result.rows_affected() == 1)
    }
}

/// Makes a claim for a file that is there.
pub(super) async fn make_claim(
    op: &'static str,
    connection: &mut SqliteConnection,
    file_id: i64,
    claim: Claim,
) -> Result<Made, IndexError> {
    let row = sqlx::query("SELECT sha256, sha256_state FROM files WHERE id = ?")
        .bind(file_id)
        .fetch_one(&mut *connection)
        .await
        .map_err(|error| map(op, error))?;
    let (before, state): (Option<&[u8]>, i64) = (get(op, &row, 0)?, get(op, &row, 1)?);
    let before = before.map(|digest| parse_sha256(op, claim.file, digest)).transpose()?;
    match (before, state) {
        (Some(before), _) if before == claim.sha256 => Ok(Made::Agreed),
        (_, NONE) => {
            execute(op, connection, "UPDATE files SET sha256 = ?, sha256_state = 1 WHERE id = ?", |query| {
                query.bind(claim.sha256.as_digest().to_vec()).bind(file_id)
            })
            .await?;
            Ok(Made::Agreed)
        }
        (before, state) => Ok(Made::Other(before.filter(|_| state == CLAIMED))),
    }
}

/// Remembers that a repository has made the claim that is known of the file. Returns whether that was not known.
pub(super) async fn sign_claim(
    op: &'static str,
    connection: &mut SqliteConnection,
    file_id: i64,
    repo: &str,
) -> Result<bool, IndexError> {
    let sql = "UPDATE file_repos SET has_claimed = 1 WHERE file_id = ? AND repo = ? AND has_claimed = 0";
    let signed = execute(op, connection, sql, |query| query.bind(file_id).bind(repo.to_owned())).await?;
    Ok(signed > 0)
}

/// A length that is larger than any that SQLite could hold is as good as the largest.
fn sql_len(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

pub(super) fn parse_sha256(op: &'static str, file: FileHash, digest: &[u8]) -> Result<Sha256, IndexError> {
    digest.try_into().map(Sha256::from_digest).map_err(|_| {
        let (key, reason) = (format!("file {file}"), "not 32 bytes".to_owned());
        IndexError::inconsistent(op, Inconsistent { table: "files", column: "sha256", key, reason })
    })
}
