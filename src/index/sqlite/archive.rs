//! Reads a whole index for a backup, also beside a server, and fills a new one from it.
//!
//! A page is one snapshot; different pages may be of different times. An index is only filled while
//! it is new and no other process uses it. A crash leaves it incomplete, to be discarded.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{Connection, QueryBuilder, Row, Sqlite, SqliteConnection};

use super::connect::{LongestWrite, pool_options};
use super::files::{execute, file_hash, release};
use super::terms::insert_terms;
use super::write::Write;
use super::{READER_COUNT, SqliteIndex, get, map, millis};
use crate::format::shard::Sha256;
use crate::format::{FileHash, XorbHash};
use crate::index::archive::{FileRecord, RestoredFile, Sha256State};
use crate::index::error::{Inconsistent, IndexError};
use crate::index::files::parse_terms;
use crate::index::{migrate, record_len, rows};
use crate::runtime::clock::Timestamp;

/// Files on one page, at most.
const PAGE_COUNT: u32 = 500;

/// Bytes of terms that end a page: files are of any size, and a page is in memory as a whole.
const PAGE_TERMS_LEN: usize = 4 << 20;

impl SqliteIndex {
    /// Opens the file for reading, with or without a running server. Writes nothing and migrates
    /// nothing; methods that change the index fail.
    ///
    /// # Errors
    ///
    /// The file is missing, unreadable, no index, or has another schema version than this program.
    pub async fn open_read_only(path: &Path) -> Result<Self, IndexError> {
        let op = "open the database for reading";
        let options = SqliteConnectOptions::new()
            .filename(path)
            .read_only(true)
            .create_if_missing(false)
            .busy_timeout(Duration::from_secs(5));
        let pool = pool_options(READER_COUNT);
        let readers = pool.connect_with(options).await.map_err(|error| map(op, error))?;
        migrate::check(op, &readers).await?;
        Ok(Self::of(readers.clone(), readers, LongestWrite::default()))
    }

    pub(super) async fn read_file_records(&self, after: Option<FileHash>) -> Result<Vec<FileRecord>, IndexError> {
        // A claim of an unpublished registration is none yet.
        const SQL: &str = "SELECT id, hash, raw_len, since, sha256, iif(sha256_state = 1 \
             AND EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND claim_registration IN hidden) \
             AND NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND has_claimed = 1 AND claim IS NULL \
                 AND claim_registration NOT IN hidden), 0, sha256_state), \
             (SELECT coalesce(sum(length(terms)), 0) FROM file_terms WHERE file_id = id) FROM files \
             WHERE hash > ? AND removed_at IS NULL AND registration NOT IN hidden ORDER BY hash LIMIT ?";
        let op = "list files";
        let failed = |error| map(op, error);
        let after = after.map_or(Vec::new(), |hash| hash.as_bytes().to_vec());
        let mut connection = self.readers.acquire().await.map_err(failed)?;
        // One snapshot: a file removed between two statements would be recorded without terms.
        let mut connection = connection.begin().await.map_err(failed)?;
        let (mut ids, mut files, mut terms_len): (Vec<i64>, Vec<FileRecord>, _) = (Vec::new(), Vec::new(), 0_usize);
        {
            let mut rows = sqlx::query(SQL).bind(after).bind(PAGE_COUNT).fetch(&mut *connection);
            while let Some(row) = rows.try_next().await.map_err(failed)? {
                let len = get::<i64>(op, &row, 6)?.cast_unsigned();
                terms_len = terms_len.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
                ids.push(get(op, &row, 0)?);
                files.push(parse_record(op, &row)?);
                if terms_len >= PAGE_TERMS_LEN {
                    break;
                }
            }
        }
        read_terms(op, &mut connection, &ids, &mut files).await?;
        let repos = repos_of(op, &mut connection, &ids).await?;
        let owners = owners_of(op, &mut connection, &ids).await?;
        for (id, file) in ids.iter().zip(&mut files) {
            file.owners =
                owners.iter().filter(|(of, ..)| of == id).map(|(_, xorb, name)| (*xorb, name.clone())).collect();
            file.repos = repos.iter().filter(|(owner, _)| owner == id).map(|(_, repo)| repo.clone()).collect();
        }
        Ok(files)
    }

    pub(super) async fn write_restored(&self, files: Vec<RestoredFile>) -> Result<(), IndexError> {
        let op = "restore files";
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let restored = restore(op, &mut connection, &files).await;
        release(connection, restored.is_ok()).await;
        restored
    }
}

fn parse_record(op: &'static str, row: &SqliteRow) -> Result<FileRecord, IndexError> {
    let hash = file_hash(op, get(op, row, 1)?)?;
    let invalid = |column, reason: &str| {
        let (key, reason) = (format!("file {hash}"), reason.to_owned());
        IndexError::inconsistent(op, Inconsistent { table: "files", column, key, reason })
    };
    let state = match get::<i64>(op, row, 5)? {
        0 => None,
        1 => Some(Sha256State::Claimed),
        2 => Some(Sha256State::Verified),
        _ => return Err(invalid("sha256_state", "no state")),
    };
    let digest: Option<&[u8]> = get(op, row, 4)?;
    let digest = digest.map(TryInto::try_into).transpose().map_err(|_| invalid("sha256", "not 32 bytes"))?;
    Ok(FileRecord {
        hash,
        raw_len: get::<i64>(op, row, 2)?.cast_unsigned(),
        terms: Vec::new(),
        since: Timestamp::from_millis(get::<i64>(op, row, 3)?.cast_unsigned()),
        sha256: digest.map(Sha256::from_digest).zip(state),
        repos: Vec::new(),
        owners: Vec::new(),
    })
}

/// Reads the terms of these files.
async fn read_terms(
    op: &'static str,
    connection: &mut SqliteConnection,
    ids: &[i64],
    files: &mut [FileRecord],
) -> Result<(), IndexError> {
    const SQL: &str = "SELECT terms FROM file_terms WHERE file_id = ? ORDER BY start";
    for (id, file) in ids.iter().zip(files) {
        let rows = sqlx::query(SQL).bind(id).fetch_all(&mut *connection).await.map_err(|error| map(op, error))?;
        for row in &rows {
            file.terms.extend(parse_terms(get(op, row, 0)?).ok_or_else(|| {
                let (key, reason) = (format!("file {}", file.hash), "no packed terms".to_owned());
                IndexError::inconsistent(op, Inconsistent { table: "file_terms", column: "terms", key, reason })
            })?);
        }
    }
    Ok(())
}

/// The repositories of these files, ascending for each.
async fn repos_of(
    op: &'static str,
    connection: &mut SqliteConnection,
    ids: &[i64],
) -> Result<Vec<(i64, String)>, IndexError> {
    let mut query = QueryBuilder::<Sqlite>::new(
        "SELECT file_id, repo FROM file_repos WHERE registration NOT IN hidden AND file_id IN (",
    );
    let mut list = query.separated(", ");
    for id in ids {
        list.push_bind(*id);
    }
    query.push(") ORDER BY file_id, repo");
    let rows = query.build().fetch_all(connection).await.map_err(|error| map(op, error))?;
    let parse = |row: &SqliteRow| Ok((get(op, row, 0)?, row.try_get(1).map_err(|error| map(op, error))?));
    rows.iter().map(parse).collect()
}

/// The owners of the xorbs of these files, ascending for each.
async fn owners_of(
    op: &'static str,
    connection: &mut SqliteConnection,
    ids: &[i64],
) -> Result<Vec<(i64, XorbHash, String)>, IndexError> {
    let mut query = QueryBuilder::<Sqlite>::new(
        "SELECT file_id, hash, domain FROM xorb_files JOIN xorb_domains USING (xorb_id) JOIN xorbs ON xorbs.id = xorb_id \
         WHERE file_id IN (",
    );
    let mut list = query.separated(", ");
    for id in ids {
        list.push_bind(*id);
    }
    query.push(") ORDER BY file_id, hash, domain");
    let rows = query.build().fetch_all(connection).await.map_err(|error| map(op, error))?;
    let parse = |row: &SqliteRow| {
        let xorb = rows::xorb_hash(get(op, row, 1)?).map_err(|error| IndexError::inconsistent(op, error))?;
        Ok((get(op, row, 0)?, xorb, get(op, row, 2)?))
    };
    rows.iter().map(parse).collect()
}

async fn restore(
    op: &'static str,
    connection: &mut SqliteConnection,
    files: &[RestoredFile],
) -> Result<(), IndexError> {
    let mut transaction = Write::begin(op, connection).await?;
    for file in files {
        write_record(op, &mut transaction, &file.record).await?;
        for (xorb, owner) in &file.record.owners {
            let sql = "INSERT OR IGNORE INTO xorb_domains (xorb_id, domain) SELECT id, ? FROM xorbs WHERE hash = ?";
            let (owner, xorb) = (owner.clone(), xorb.as_bytes().to_vec());
            execute(op, &mut transaction, sql, |query| query.bind(owner).bind(xorb)).await?;
        }
        for (chunk, xorb) in &file.dedup {
            let sql = "INSERT OR IGNORE INTO dedup_chunks (chunk_hash, xorb_id) SELECT ?, id FROM xorbs WHERE hash = ?";
            let (chunk, xorb) = (chunk.as_bytes().to_vec(), xorb.as_bytes().to_vec());
            execute(op, &mut transaction, sql, |query| query.bind(chunk).bind(xorb)).await?;
        }
    }
    transaction.commit().await
}

/// Inserts a file, and replaces an existing one.
async fn write_record(
    op: &'static str,
    connection: &mut SqliteConnection,
    file: &FileRecord,
) -> Result<(), IndexError> {
    const INSERT: &str = "INSERT INTO files (hash, raw_len, since, sha256, sha256_state) \
         VALUES (?, ?, ?, ?, ?) RETURNING id";
    const REFER: &str = "INSERT OR IGNORE INTO xorb_files (xorb_id, file_id) \
         SELECT id, ? FROM xorbs WHERE hash = ? AND state IN (1, 2)";
    let hash = file.hash.as_bytes().to_vec();
    execute(op, connection, "DELETE FROM files WHERE hash = ?", |query| query.bind(hash.clone())).await?;
    let state = match file.sha256 {
        None => 0,
        Some((_, Sha256State::Claimed)) => 1,
        Some((_, Sha256State::Verified)) => 2,
    };
    let row = sqlx::query(INSERT)
        .bind(hash)
        .bind(file.raw_len.cast_signed())
        .bind(millis(file.since))
        .bind(file.sha256.map(|(sha256, _)| sha256.as_digest().to_vec()))
        .bind(state)
        .fetch_one(&mut *connection)
        .await
        .map_err(|error| map(op, error))?;
    let id: i64 = get(op, &row, 0)?;
    insert_terms(op, connection, id, &file.terms).await?;
    let xorbs: HashSet<_> = file.terms.iter().map(|term| term.xorb).collect();
    for xorb in xorbs {
        let xorb = xorb.as_bytes().to_vec();
        let added = execute(op, connection, REFER, |query| query.bind(id).bind(xorb)).await?;
        if added != 1 {
            return Err(IndexError::lost(op, added));
        }
    }
    for repo in &file.repos {
        let sql = "INSERT INTO file_repos (file_id, repo, record_len) VALUES (?, ?, ?)";
        let record_len = record_len(file.terms.len()).cast_signed();
        execute(op, connection, sql, |query| query.bind(id).bind(repo.clone()).bind(record_len)).await?;
    }
    Ok(())
}

#[cfg(test)]
impl SqliteIndex {
    /// Records that a migration of this number was applied.
    pub(in crate::index) async fn pretend_version(&self, version: i64) {
        let sql = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             VALUES (?, 'x', TRUE, x'00', 0)";
        sqlx::query(sql).bind(version).execute(&self.writer).await.unwrap();
    }
}
