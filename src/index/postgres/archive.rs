//! Reads a whole index for a backup, also beside a server, and fills a new one from it: see
//! [`ArchiveIndex`].
//!
//! Each page is one snapshot; two pages may be from different times. An index is only filled while
//! it is new and no other process uses it. After a crash it is incomplete and is discarded.

use std::collections::{BTreeMap, HashMap, HashSet};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};
use sqlx::{Postgres, QueryBuilder, query};

use super::bulk::insert_rows;
use super::lists::{BATCH_COUNT, after_bytes, id_list, push_hashes};
use super::register::next_ids;
use super::rows::{FromRow, column, row};
use super::terms::{self, TermRun};
use super::tx::{Query, Tx};
use super::{PostgresIndex, millis};
use crate::format::shard::{Sha256, Term};
use crate::format::{FileHash, XorbHash};
use crate::index::archive::{ArchiveIndex, FileRecord, RestoredFile, Sha256State};
use crate::index::decode::Cells;
use crate::index::error::{Inconsistent, IndexError};
use crate::index::files::parse_terms;
use crate::index::record_len;
use crate::runtime::clock::Timestamp;

/// Files on one page, at most.
const PAGE_COUNT: u32 = 500;

/// Bytes of terms that end a page: files are of any size, and a page is in memory as a whole.
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
                let (key, reason) = (format!("file {hash}"), "no state".to_owned());
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

row! { Claimed { file_id: i64, repo: String, since: Option<Timestamp>, is_claimed: bool } }
row! { Owned { file_id: i64, hash: XorbHash, domain: String } }

impl ArchiveIndex for PostgresIndex {
    fn file_records(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<Vec<FileRecord>, IndexError>> {
        // A claim of an unpublished registration is none yet.
        const SQL: &str = "SELECT id, hash, raw_len, since, sha256, CASE WHEN sha256_state = 1 \
             AND EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND claim_registration IN (SELECT id FROM hidden)) \
             AND NOT EXISTS (SELECT 1 FROM file_repos WHERE file_id = id AND has_claimed AND claim IS NULL \
                 AND claim_registration NOT IN (SELECT id FROM hidden)) THEN 0 ELSE sha256_state END AS sha256_state, \
             (SELECT coalesce(sum(length(terms)), 0)::bigint FROM file_terms WHERE file_id = id) AS terms_len FROM files \
             WHERE hash > $1 AND removed_at IS NULL AND registration NOT IN (SELECT id FROM hidden) ORDER BY hash LIMIT $2";
        const REPOS: &str = "SELECT file_id, repo, since, coalesce(has_claimed AND claim IS NULL AND claim_registration NOT IN (SELECT id FROM hidden), FALSE) AS is_claimed \
             FROM file_repos WHERE registration NOT IN (SELECT id FROM hidden) AND file_id = ANY($1) \
             ORDER BY file_id, repo";
        const OWNERS: &str = "SELECT file_id, hash, domain FROM xorb_files JOIN xorb_domains USING (xorb_id) JOIN xorbs ON xorbs.id = xorb_id \
             WHERE file_id = ANY($1) ORDER BY file_id, hash, domain";
        async move {
            let mut held = self.reading("list files").await?;
            // One snapshot: a file removed between two statements would be recorded without terms.
            let mut tx = held.snapshot().await?;
            let (mut files, mut terms_len): (Vec<Recorded>, _) = (Vec::new(), 0_u64);
            {
                let mut rows = tx.stream::<Recorded>(query(SQL).bind(after_bytes(after)).bind(i64::from(PAGE_COUNT)));
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
            // Ascending by file, then by repository, or by xorb and owner.
            let repos: Vec<Claimed> = tx.all(of_files(REPOS, &files)).await?;
            let owners: Vec<Owned> = tx.all(of_files(OWNERS, &files)).await?;
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

crate::index::restore_rows::restore_rows!(Postgres, "= ANY(");

async fn terms_of(tx: &mut Tx<'_>, file: &Recorded) -> Result<Vec<Term>, IndexError> {
    const SQL: &str = "SELECT terms FROM file_terms WHERE file_id = $1 ORDER BY start";
    let mut terms = Vec::new();
    for run in tx.all::<Vec<u8>>(query(SQL).bind(file.id)).await? {
        terms.extend(parse_terms(&run).ok_or_else(|| {
            let (key, reason) = (format!("file {}", file.record.hash), "no packed terms".to_owned());
            IndexError::inconsistent(tx.op(), Inconsistent { table: "file_terms", column: "terms", key, reason })
        })?);
    }
    Ok(terms)
}

/// A query about these files, in their order.
fn of_files(sql: &'static str, files: &[Recorded]) -> Query<'static> {
    query(sql).bind(id_list(files.iter().map(|file| &file.id)))
}
