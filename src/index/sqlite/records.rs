//! What records need from the index, in SQLite: owners of xorbs, readers of files, and claims.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{QueryBuilder, Sqlite};

use super::claims::parse_sha256;
use super::files::{BATCH_COUNT, file_hash, push_files, push_hashes};
use super::{SqliteIndex, get, map};
use crate::format::shard::Sha256;
use crate::format::{FileHash, StoreId, XorbHash};
use crate::index::error::IndexError;
use crate::index::records::{RecordIndex, StoreMark};
use crate::index::rows;

impl RecordIndex for SqliteIndex {
    fn owned_xorbs(&self, hashes: Vec<XorbHash>, owner: String) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        let op = "find the xorbs of an owner";
        async move {
            let mut owned = Vec::new();
            for batch in hashes.chunks(BATCH_COUNT) {
                let mut query = QueryBuilder::<Sqlite>::new(
                    "SELECT hash FROM xorbs JOIN xorb_domains ON xorb_id = id WHERE state IN (1, 2) AND domain = ",
                );
                query.push_bind(owner.clone()).push(" AND hash IN (");
                push_hashes(&mut query, batch);
                let rows = query.build().fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
                for row in &rows {
                    let hash = rows::xorb_hash(get(op, row, 0)?);
                    owned.push(hash.map_err(|error| IndexError::inconsistent(op, error))?);
                }
            }
            Ok(owned)
        }
        .boxed()
    }

    fn claimed_files(
        &self,
        files: Vec<FileHash>,
        repo: String,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, bool)>, IndexError>> {
        let op = "find the files of a repository";
        async move {
            let mut claimed = Vec::new();
            for batch in files.chunks(BATCH_COUNT) {
                let mut query = QueryBuilder::<Sqlite>::new(
                    "SELECT hash, has_claimed = 1 AND claim_registration NOT IN hidden OR sha256_state = 2 \
                     FROM files JOIN file_repos ON file_id = id \
                     WHERE file_repos.registration NOT IN hidden AND repo = ",
                );
                query.push_bind(repo.clone()).push(" AND hash IN (");
                push_files(&mut query, batch);
                let rows = query.build().fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
                for row in &rows {
                    claimed.push((file_hash(op, get(op, row, 0)?)?, get(op, row, 1)?));
                }
            }
            Ok(claimed)
        }
        .boxed()
    }

    fn visible_files(&self, files: Vec<FileHash>) -> BoxFuture<'_, Result<Vec<FileHash>, IndexError>> {
        let op = "find files";
        async move {
            let mut visible = Vec::new();
            for batch in files.chunks(BATCH_COUNT) {
                let mut query = QueryBuilder::<Sqlite>::new(
                    "SELECT hash FROM files WHERE registration NOT IN hidden AND hash IN (",
                );
                push_files(&mut query, batch);
                let rows = query.build().fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
                for row in &rows {
                    visible.push(file_hash(op, get(op, row, 0)?)?);
                }
            }
            Ok(visible)
        }
        .boxed()
    }

    fn readers_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<(String, bool)>, IndexError>> {
        const SQL: &str = "SELECT repo, has_claimed = 1 AND claim IS NULL AND claim_registration NOT IN hidden \
             FROM file_repos JOIN files ON file_id = id WHERE hash = ? AND file_repos.registration NOT IN hidden ORDER BY repo";
        let op = "find the repositories of a file";
        async move {
            let rows = sqlx::query(SQL).bind(file.as_bytes().as_slice()).fetch_all(&self.readers).await;
            let rows = rows.map_err(|error| map(op, error))?;
            rows.iter().map(|row| Ok((get(op, row, 0)?, get(op, row, 1)?))).collect()
        }
        .boxed()
    }

    fn unverified_sha256(&self, file: FileHash) -> BoxFuture<'_, Result<Option<Sha256>, IndexError>> {
        const SQL: &str = "SELECT sha256 FROM files WHERE hash = ? AND sha256_state = 1 AND registration NOT IN hidden";
        let op = "find a claim";
        async move {
            let row = sqlx::query(SQL).bind(file.as_bytes().as_slice()).fetch_optional(&self.readers).await;
            let row = row.map_err(|error| map(op, error))?;
            row.map(|row| parse_sha256(op, file, get(op, &row, 0)?)).transpose()
        }
        .boxed()
    }

    fn store_mark(&self) -> BoxFuture<'_, Result<StoreMark, IndexError>> {
        self.read_store_mark().boxed()
    }

    fn set_store(&self, id: StoreId, last_record: Option<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        self.write_store_mark(id, last_record).boxed()
    }

    fn leave_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        async move { self.write_left_records(&seqs).await }.boxed()
    }
}
