//! What records need from the index, in PostgreSQL: see [`RecordIndex`].
//!
//! A change and the number of its record are written in one transaction. So after a crash the
//! number tells exactly which records are applied.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{Postgres, QueryBuilder, query};

use super::PostgresIndex;
use super::rows::row;
use super::tx::Tx;
use crate::format::shard::Sha256;
use crate::format::{FileHash, StoreId, XorbHash};
use crate::index::error::IndexError;
use crate::index::records::{RecordIndex, StoreMark};

impl RecordIndex for PostgresIndex {
    fn owned_xorbs(&self, hashes: Vec<XorbHash>, owner: String) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        const HEAD: &str = "SELECT hash FROM visible_xorbs JOIN xorb_domains ON xorb_id = id WHERE domain = ";
        async move {
            let head = |query: &mut QueryBuilder<Postgres>| {
                query.push(HEAD).push_bind(owner.as_str()).push(" AND hash = ANY(");
            };
            self.read("find the xorbs of an owner").all_of(&hashes, head).await
        }
        .boxed()
    }

    fn claimed_files(
        &self,
        files: Vec<FileHash>,
        repo: String,
    ) -> BoxFuture<'_, Result<Vec<(FileHash, bool)>, IndexError>> {
        const HEAD: &str = "SELECT hash, has_claimed AND claim_registration NOT IN (SELECT id FROM hidden) OR sha256_state = 2 AS is_claimed \
             FROM files JOIN file_repos ON file_id = id \
             WHERE file_repos.registration NOT IN (SELECT id FROM hidden) AND repo = ";
        row! { Claimed { hash: FileHash, is_claimed: bool } }
        async move {
            let head = |query: &mut QueryBuilder<Postgres>| {
                query.push(HEAD).push_bind(repo.as_str()).push(" AND hash = ANY(");
            };
            let claimed: Vec<Claimed> = self.read("find the files of a repository").all_of(&files, head).await?;
            Ok(claimed.into_iter().map(|file| (file.hash, file.is_claimed)).collect())
        }
        .boxed()
    }

    fn visible_files(&self, files: Vec<FileHash>) -> BoxFuture<'_, Result<Vec<FileHash>, IndexError>> {
        const HEAD: &str = "SELECT hash FROM files WHERE registration NOT IN (SELECT id FROM hidden) AND hash = ANY(";
        async move { self.read("find files").all_of(&files, |query| _ = query.push(HEAD)).await }.boxed()
    }

    fn readers_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<(String, bool)>, IndexError>> {
        const SQL: &str = "SELECT repo, has_claimed AND claim IS NULL AND claim_registration NOT IN (SELECT id FROM hidden) AS is_claimed \
             FROM file_repos JOIN files ON file_id = id WHERE hash = $1 AND file_repos.registration NOT IN (SELECT id FROM hidden) ORDER BY repo";
        row! { Reading { repo: String, is_claimed: bool } }
        async move {
            let list = query(SQL).bind(file.as_bytes().as_slice());
            let readers: Vec<Reading> = self.read("find the repositories of a file").all(list).await?;
            Ok(readers.into_iter().map(|reader| (reader.repo, reader.is_claimed)).collect())
        }
        .boxed()
    }

    fn unverified_sha256(&self, file: FileHash) -> BoxFuture<'_, Result<Option<Sha256>, IndexError>> {
        const SQL: &str = "SELECT sha256 FROM files WHERE hash = $1 AND sha256_state = 1 AND registration NOT IN (SELECT id FROM hidden)";
        async move { self.read("find a claim").find(query(SQL).bind(file.as_bytes().as_slice())).await }.boxed()
    }

    fn store_mark(&self) -> BoxFuture<'_, Result<StoreMark, IndexError>> {
        row! { Mark { store_id: Option<StoreId>, last_record: Option<u64> } }
        async move {
            // One connection and one snapshot: a record is either taken or still to come.
            let mut held = self.reading("read the store id of the index").await?;
            let mut tx = held.snapshot().await?;
            let mark: Mark = tx.one(query("SELECT store_id, last_record FROM store")).await?;
            let left = tx.all(query("SELECT seq FROM records_left ORDER BY seq")).await?;
            Ok(StoreMark { id: mark.store_id, last_record: mark.last_record, left })
        }
        .boxed()
    }

    fn set_store(&self, id: StoreId, last_record: Option<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        async move {
            let mut held = self.writing("write the store id of the index").await?;
            let mut tx = held.begin().await?;
            // Another process may have claimed the database meanwhile for its own data directory.
            let sql = "UPDATE store SET store_id = $1 WHERE store_id IS NULL OR store_id = $1";
            let changed = tx.execute(query(sql).bind(id.as_bytes().as_slice())).await?;
            if changed != 1 {
                return Err(IndexError::lost(tx.op(), changed));
            }
            mark_record_applied(&mut tx, last_record).await?;
            tx.commit().await
        }
        .boxed()
    }

    fn add_unapplied_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        const SQL: &str = "INSERT INTO records_left (seq) SELECT value FROM unnest($1) AS value \
             ON CONFLICT (seq) DO NOTHING";
        async move {
            let seqs: Vec<i64> = seqs.into_iter().map(u64::cast_signed).collect();
            let leave = query(SQL).bind(seqs);
            self.write("write the left-out records").execute(leave).await.map(drop)
        }
        .boxed()
    }
}

/// Records that this record was taken, in the transaction of its change.
pub(super) async fn mark_record_applied(tx: &mut Tx<'_>, record: Option<u64>) -> Result<(), IndexError> {
    const TAKE: &str = "UPDATE store SET last_record = greatest(last_record, $1)";
    let Some(record) = record else { return Ok(()) };
    tx.execute(query(TAKE).bind(record.cast_signed())).await.map(drop)
}
