//! For a backup: reads all files of an index, also while a server uses it. For a restore: writes
//! files into a new index. See [`ArchiveIndex`].
//!
//! Each page is one snapshot; two pages may be from different times. A restore writes into a new
//! index that no other process uses. A crash leaves this index incomplete, so it must be discarded.

use std::collections::{BTreeMap, HashMap, HashSet};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};
use sqlx::{QueryBuilder, Sqlite, query};

use super::bulk::insert_rows;
use super::lists::{BATCH_COUNT, after_bytes, push_hashes};
use super::register::next_ids;
use super::rows::{FromRow, column, row};
use super::terms::{self, TermRun};
use super::tx::Tx;
use super::{SqliteIndex, millis};
use crate::format::shard::{Sha256, Term};
use crate::format::{FileHash, XorbHash};
use crate::index::archive::{ArchiveIndex, FileRecord, RestoredFile, Sha256State};
use crate::index::decode::Cells;
use crate::index::error::{Inconsistent, IndexError};
use crate::index::files::parse_terms;
use crate::index::record_len;
use crate::runtime::clock::Timestamp;

/// The maximum number of files on one page.
const PAGE_COUNT: u32 = 500;

/// A page ends when its files have this many bytes of terms, because a page is in memory as a
/// whole. The last file of a page may have any number of terms.
const PAGE_TERMS_LEN: u64 = 4 << 20;

/// A file without its terms, repositories and owners.
struct Recorded {
    id: i64,
    terms_len: u64,
    record: FileRecord,
}

impl FromRow for Recorded {
    fn from_row(row: &impl Cells) -> sqlx::Result<Self> {
        let hash: FileHash = column(row, "hash")?;
        let state = match column(row, "sha256_state")? {
            0_i64 => None,
            1 => Some(Sha256State::Claimed),
            2 => Some(Sha256State::Verified),
            _ => {
                let (key, reason) = (format!("file {hash}"), "unknown state".to_owned());
                return Err(Inconsistent { table: "files", column: "sha256_state", key, reason }.into());
            }
        };
        let record = FileRecord {
            hash,
            raw_len: column(row, "raw_len")?,
            terms: Vec::new(),
            since: column(row, "since")?,
            sha256: column::<Option<Sha256>>(row, "sha256")?.zip(state),
            repos: Vec::new(),
            later: BTreeMap::new(),
            claimants: Vec::new(),
            owners: Vec::new(),
        };
        Ok(Self { id: column(row, "id")?, terms_len: column(row, "terms_len")?, record })
    }
}

row! { FileRepo { file_id: i64, repo: String, since: Option<Timestamp>, is_claimed: bool } }
// A domain is an owner.
row! { Owned { file_id: i64, hash: XorbHash, domain: String } }

impl ArchiveIndex for SqliteIndex {
    fn file_records(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<Vec<FileRecord>, IndexError>> {
        // A long registration is written in steps, and is visible once it is published (see
        // `index::register`). `hidden` has the numbers of the registrations that are not. In
        // `file_repos`, `registration` is the one that gave the repository its right to the file,
        // and `claim_registration` the one that claimed a sha256 for it. A repository with
        // `has_claimed` 1 claims the sha256 in `claim`, or the one in `files` if that is NULL. If
        // the sha256 in `files` is not verified, and only registrations in `hidden` claim it, this
        // query returns the state 0, as for a file without a sha256.
        const SQL: &str = "SELECT id, hash, raw_len, since, sha256, iif(sha256_state = 1 \
             AND EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND claim_registration IN hidden) \
             AND NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND has_claimed = 1 AND claim IS NULL \
                 AND claim_registration NOT IN hidden), 0, sha256_state) AS sha256_state, \
             (SELECT coalesce(sum(length(terms)), 0) FROM file_terms WHERE file_id = id) AS terms_len FROM files \
             WHERE hash > ? AND removed_at IS NULL AND registration NOT IN hidden ORDER BY hash LIMIT +?";
        const REPOS: &str = "SELECT file_id, repo, since, coalesce(has_claimed = 1 AND claim IS NULL AND claim_registration NOT IN hidden, 0) AS is_claimed \
             FROM file_repos WHERE registration NOT IN hidden AND file_id IN (";
        const OWNERS: &str = "SELECT file_id, hash, domain FROM xorb_files JOIN xorb_domains USING (xorb_id) JOIN xorbs ON xorbs.id = xorb_id \
             WHERE file_id IN (";
        async move {
            let mut held = self.reading("list files").await?;
            // One snapshot, because a file that is removed between two statements would otherwise
            // be in the backup without terms.
            let mut tx = held.snapshot().await?;
            let (mut files, mut terms_len): (Vec<Recorded>, _) = (Vec::new(), 0_u64);
            {
                let mut rows = tx.stream::<Recorded>(query(SQL).bind(after_bytes(after)).bind(PAGE_COUNT));
                while terms_len < PAGE_TERMS_LEN
                    && let Some(file) = rows.try_next().await?
                {
                    terms_len = terms_len.saturating_add(file.terms_len);
                    files.push(file);
                }
            }
            for file in &mut files {
                file.record.terms = terms_of(&mut tx, file).await?;
            }
            // `repos` is sorted by file and repository, and `owners` by file, xorb and owner.
            let repos: Vec<FileRepo> = tx.all(of_files(REPOS, &files, ", repo").build()).await?;
            let owners: Vec<Owned> = tx.all(of_files(OWNERS, &files, ", hash, domain").build()).await?;
            for file in &mut files {
                let owners = owners.iter().filter(|owned| owned.file_id == file.id);
                file.record.owners = owners.map(|owned| (owned.hash, owned.domain.clone())).collect();
                let has_claim = matches!(file.record.sha256, Some((_, Sha256State::Claimed)));
                for claimed in repos.iter().filter(|claimed| claimed.file_id == file.id) {
                    file.record.repos.push(claimed.repo.clone());
                    file.record.later.extend(claimed.since.map(|since| (claimed.repo.clone(), since)));
                    if has_claim && claimed.is_claimed {
                        file.record.claimants.push(claimed.repo.clone());
                    }
                }
            }
            Ok(files.into_iter().map(|file| file.record).collect())
        }
        .boxed()
    }

    fn restore_files(&self, files: Vec<RestoredFile>) -> BoxFuture<'_, Result<(), IndexError>> {
        async move {
            let mut held = self.writing("restore files").await?;
            let mut tx = held.begin().await?;
            write_files(&mut tx, &files).await?;
            tx.commit().await
        }
        .boxed()
    }
}

crate::index::restore_rows::restore_rows!(Sqlite, "IN (");

async fn terms_of(tx: &mut Tx<'_>, file: &Recorded) -> Result<Vec<Term>, IndexError> {
    const SQL: &str = "SELECT terms FROM file_terms WHERE file_id = ? ORDER BY start";
    let mut terms = Vec::new();
    for run in tx.all::<Vec<u8>>(query(SQL).bind(file.id)).await? {
        terms.extend(parse_terms(&run).ok_or_else(|| {
            let (key, reason) = (format!("file {}", file.record.hash), "not in the format of packed terms".to_owned());
            IndexError::inconsistent(tx.op(), Inconsistent { table: "file_terms", column: "terms", key, reason })
        })?);
    }
    Ok(terms)
}

/// A query about these files, ordered by their ids and then by `order`.
fn of_files(head: &'static str, files: &[Recorded], order: &'static str) -> QueryBuilder<Sqlite> {
    let mut list = QueryBuilder::new(head);
    let mut ids = list.separated(", ");
    for file in files {
        ids.push_bind(file.id);
    }
    list.push(") ORDER BY file_id").push(order);
    list
}

#[cfg(test)]
impl SqliteIndex {
    /// Records a migration with this number as applied. So the schema looks newer than the program.
    pub(in crate::index) async fn pretend_version(&self, version: i64) {
        let sql = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             VALUES (?, 'x', TRUE, x'00', 0)";
        self.write("pretend a version").execute(query(sql).bind(version)).await.unwrap();
    }
}
