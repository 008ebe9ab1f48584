//! Lists in SQLite, page by page, in the order of the hashes' bytes.

use sqlx::sqlite::SqliteRow;

use super::files::{file_hash, repo_of};
use super::{SqliteIndex, get, map};
use crate::format::shard::Sha256;
use crate::format::{FileHash, XorbHash};
use crate::index::error::{Inconsistent, IndexError};
use crate::index::{FileEntry, Reader, XorbEntry, rows};
use crate::runtime::clock::Timestamp;

impl SqliteIndex {
    pub(super) async fn read_files_after(
        &self,
        reader: Reader,
        after: Option<FileHash>,
        limit: u32,
    ) -> Result<Vec<FileEntry>, IndexError> {
        // Both walk an index that is sorted by hash and has nothing else: of all files, or of the
        // repository's. The empty blob is before every hash.
        const ALL: &str = "SELECT hash, raw_len, CASE WHEN sha256_state = 2 THEN sha256 ELSE (SELECT coalesce(claim, sha256) \
             FROM file_repos WHERE file_id = id AND repo = '*' AND has_claimed = 1 AND claim_registration NOT IN hidden) END, \
             since FROM files WHERE hash > ?1 AND removed_at IS NULL AND registration NOT IN hidden \
             ORDER BY hash LIMIT ?3";
        const OF_REPO: &str = "SELECT files.hash, raw_len, CASE WHEN sha256_state = 2 THEN sha256 \
             ELSE (SELECT coalesce(claim, sha256) FROM file_repos WHERE file_repos.file_id = id AND repo = ?2 \
             AND has_claimed = 1 AND claim_registration NOT IN hidden) END, since \
             FROM repo_files AS listed CROSS JOIN files ON files.id = file_id \
             WHERE repo_id = (SELECT id FROM repos WHERE name = ?2) AND listed.hash > ?1 \
             AND NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = files.id AND repo = ?2 AND registration IN hidden) \
             ORDER BY listed.hash LIMIT ?3";
        let op = "list files";
        let repo = repo_of(&reader);
        let rows = sqlx::query(if repo.is_some() { OF_REPO } else { ALL })
            .bind(after.map_or(Vec::new(), |hash| hash.as_bytes().to_vec()))
            .bind(repo)
            .bind(limit)
            .fetch_all(&self.readers)
            .await
            .map_err(|error| map(op, error))?;
        rows.iter().map(|row| parse_file(op, row)).collect()
    }

    pub(super) async fn read_xorbs_after(
        &self,
        after: Option<XorbHash>,
        limit: u32,
    ) -> Result<Vec<XorbEntry>, IndexError> {
        const SQL: &str = "SELECT hash, serialized_len, raw_len, length(layout) / 8 FROM xorbs \
             WHERE hash > ?1 AND state IN (1, 2) ORDER BY hash LIMIT ?2";
        let op = "list xorbs";
        let rows = sqlx::query(SQL)
            .bind(after.map_or(Vec::new(), |hash| hash.as_bytes().to_vec()))
            .bind(limit)
            .fetch_all(&self.readers)
            .await
            .map_err(|error| map(op, error))?;
        rows.iter().map(|row| parse_xorb(op, row)).collect()
    }
}

fn parse_file(op: &'static str, row: &SqliteRow) -> Result<FileEntry, IndexError> {
    let hash = file_hash(op, get(op, row, 0)?)?;
    let sha256 = get::<Option<&[u8]>>(op, row, 2)?.map(|digest| {
        digest.try_into().map(Sha256::from_digest).map_err(|_| {
            let (key, reason) = (format!("file {hash}"), "not 32 bytes".to_owned());
            IndexError::inconsistent(op, Inconsistent { table: "files", column: "sha256", key, reason })
        })
    });
    Ok(FileEntry {
        hash,
        raw_len: get::<i64>(op, row, 1)?.cast_unsigned(),
        sha256: sha256.transpose()?,
        registered: Timestamp::from_millis(get::<i64>(op, row, 3)?.cast_unsigned()),
    })
}

fn parse_xorb(op: &'static str, row: &SqliteRow) -> Result<XorbEntry, IndexError> {
    Ok(XorbEntry {
        hash: rows::xorb_hash(get(op, row, 0)?).map_err(|error| IndexError::inconsistent(op, error))?,
        serialized_len: get::<i64>(op, row, 1)?.cast_unsigned(),
        raw_len: get::<i64>(op, row, 2)?.cast_unsigned(),
        chunk_count: get(op, row, 3)?,
    })
}
