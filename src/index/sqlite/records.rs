//! Queries for the registration log in SQLite: see [`RecordIndex`].
//!
//! A change and the number of its record are written in one transaction. So also after a crash, the
//! stored number and the tables `records_left` and `open_records` tell exactly which records are
//! applied.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{QueryBuilder, Sqlite, query};

use super::SqliteIndex;
use super::rows::row;
use super::tx::Tx;
use crate::format::shard::Sha256;
use crate::format::{FileHash, StoreId, XorbHash};
use crate::index::error::IndexError;
use crate::index::records::{Applying, RecordIndex, StoreMark};

impl RecordIndex for SqliteIndex {
    fn owned_xorbs(&self, hashes: Vec<XorbHash>, owner: String) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        const HEAD: &str = "SELECT hash FROM visible_xorbs JOIN xorb_domains ON xorb_id = id WHERE domain = ";
        async move {
            let head = |query: &mut QueryBuilder<Sqlite>| {
                query.push(HEAD).push_bind(owner.as_str()).push(" AND hash IN (");
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
        const HEAD: &str = "SELECT hash, has_claimed = 1 AND claim_registration NOT IN hidden OR sha256_state = 2 AS is_claimed \
             FROM files JOIN file_repos ON file_id = id \
             WHERE file_repos.registration NOT IN hidden AND repo = ";
        row! { Claimed { hash: FileHash, is_claimed: bool } }
        async move {
            let head = |query: &mut QueryBuilder<Sqlite>| {
                query.push(HEAD).push_bind(repo.as_str()).push(" AND hash IN (");
            };
            let claimed: Vec<Claimed> = self.read("find the files of a repository").all_of(&files, head).await?;
            Ok(claimed.into_iter().map(|file| (file.hash, file.is_claimed)).collect())
        }
        .boxed()
    }

    fn visible_files(&self, files: Vec<FileHash>) -> BoxFuture<'_, Result<Vec<FileHash>, IndexError>> {
        const HEAD: &str = "SELECT hash FROM files WHERE registration NOT IN hidden AND hash IN (";
        async move { self.read("find files").all_of(&files, |query| _ = query.push(HEAD)).await }.boxed()
    }

    fn readers_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<(String, bool)>, IndexError>> {
        const SQL: &str = "SELECT repo, has_claimed = 1 AND claim IS NULL AND claim_registration NOT IN hidden AS is_claimed \
             FROM file_repos JOIN files ON file_id = id WHERE hash = ? AND file_repos.registration NOT IN hidden ORDER BY repo";
        row! { Reading { repo: String, is_claimed: bool } }
        async move {
            let list = query(SQL).bind(file.as_bytes().as_slice());
            let readers: Vec<Reading> = self.read("find the repositories of a file").all(list).await?;
            Ok(readers.into_iter().map(|reader| (reader.repo, reader.is_claimed)).collect())
        }
        .boxed()
    }

    fn unverified_sha256(&self, file: FileHash) -> BoxFuture<'_, Result<Option<Sha256>, IndexError>> {
        const SQL: &str = "SELECT sha256 FROM files WHERE hash = ? AND sha256_state = 1 AND registration NOT IN hidden";
        async move { self.read("find a claim").find(query(SQL).bind(file.as_bytes().as_slice())).await }.boxed()
    }

    fn store_mark(&self) -> BoxFuture<'_, Result<StoreMark, IndexError>> {
        row! { Mark { store_id: Option<StoreId>, last_record: Option<u64> } }
        async move {
            // One snapshot, so that `last_record` and `left` agree.
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
            tx.execute(query("UPDATE store SET store_id = ?").bind(id.as_bytes().as_slice())).await?;
            if let Some(last) = last_record.map(u64::cast_signed) {
                tx.execute(query(MARK).bind(last)).await?;
                tx.execute(query("DELETE FROM open_records WHERE seq <= ?").bind(last)).await?;
            }
            tx.commit().await
        }
        .boxed()
    }

    fn take_records(&self, mut seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        async move {
            // Ascending, because a number that is skipped counts as open.
            seqs.sort_unstable();
            let mut held = self.writing("mark records as applied").await?;
            let mut tx = held.begin().await?;
            for seq in seqs {
                mark_record_applied(&mut tx, Some(seq)).await?;
            }
            tx.commit().await
        }
        .boxed()
    }

    fn add_unapplied_records(&self, seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        const SQL: &str = "INSERT INTO records_left (seq) SELECT value FROM json_each(?) WHERE true \
             ON CONFLICT (seq) DO NOTHING";
        async move {
            let add = query(SQL).bind(json(&seqs));
            self.write("write the left-out records").execute(add).await.map(drop)
        }
        .boxed()
    }

    fn close_record(&self, seq: u64) -> BoxFuture<'_, Result<(), IndexError>> {
        self.closed.add(seq);
        async { Ok(()) }.boxed()
    }

    fn is_record_open(&self, seq: u64) -> BoxFuture<'_, Result<Option<bool>, IndexError>> {
        const LATER: &str = "SELECT last_record IS NULL OR last_record < ? FROM store";
        const OPEN: &str = "SELECT EXISTS (SELECT 1 FROM open_records WHERE seq = ?)";
        const ADD: &str = "INSERT INTO open_records (seq) VALUES (?)";
        const DELETE: &str = "DELETE FROM open_records WHERE seq = ?";
        let seq = seq.cast_signed();
        async move {
            let mut held = self.writing("look for an open record").await?;
            let mut tx = held.begin().await?;
            let is_row: bool = tx.one(query(OPEN).bind(seq)).await?;
            if !is_row && !tx.one::<bool>(query(LATER).bind(seq)).await? {
                return Ok(Some(false));
            }
            // After a commit that has failed, the WAL may have the whole transaction, which SQLite
            // would apply after a power cut. A later commit in its place excludes that. So write a
            // page and change nothing.
            let steps = if is_row { [DELETE, ADD] } else { [ADD, DELETE] };
            for step in steps {
                tx.execute(query(step).bind(seq)).await?;
            }
            tx.commit().await?;
            Ok(Some(true))
        }
        .boxed()
    }

    fn give_up_record(&self, _: u64) -> BoxFuture<'_, Result<(), IndexError>> {
        async { Ok(()) }.boxed()
    }

    fn was_set_back(&self) -> BoxFuture<'_, Result<bool, IndexError>> {
        async { Ok(false) }.boxed()
    }

    fn note_history(&self) -> BoxFuture<'_, Result<(), IndexError>> {
        async { Ok(()) }.boxed()
    }

    fn abandoned_records(&self) -> BoxFuture<'_, Result<Vec<u64>, IndexError>> {
        const SQL: &str = "SELECT seq FROM open_records ORDER BY seq";
        async move { self.read("list open records").all(query(SQL)).await }.boxed()
    }
}

const MARK: &str = "UPDATE store SET last_record = max(coalesce(last_record, ?1), ?1)";

/// Marks the record with this number as applied, in the transaction of its change. Does nothing for
/// a change without a record.
pub(super) async fn mark_record_applied(tx: &mut Tx<'_>, record: Option<u64>) -> Result<(), IndexError> {
    const CLOSE: &str = "DELETE FROM open_records WHERE seq >= ?1 AND seq < ?2";
    const OPEN: &str = "WITH RECURSIVE skipped (seq) AS \
             (SELECT ?1 UNION ALL SELECT seq + 1 FROM skipped WHERE seq + 1 < ?2) \
         INSERT INTO open_records (seq) SELECT seq FROM skipped WHERE true ON CONFLICT (seq) DO NOTHING";
    row! { Last { last_record: Option<u64> } }
    let Some(record) = record else { return Ok(()) };
    let Last { last_record } = tx.one(query("SELECT last_record FROM store")).await?;
    let Applying { over, skipped } = tx.closed().applying(record, last_record);
    for (sql, ranges) in [(CLOSE, over), (OPEN, skipped)] {
        for range in ranges {
            tx.execute(query(sql).bind(range.start.cast_signed()).bind(range.end.cast_signed())).await?;
        }
    }
    tx.execute(query(MARK).bind(record.cast_signed())).await.map(drop)
}

/// Numbers of records as a parameter for `json_each`.
fn json(seqs: &[u64]) -> String {
    let seqs: Vec<String> = seqs.iter().map(u64::to_string).collect();
    format!("[{}]", seqs.join(","))
}

#[cfg(test)]
mod tests {
    use super::{RecordIndex, SqliteIndex};

    /// A later frame in the WAL makes the rest of a failed transaction invalid.
    #[tokio::test]
    async fn record_counts_as_open_only_after_a_durable_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index.sqlite");
        let index = SqliteIndex::open(&path).await.unwrap();
        index.take_records(vec![0, 2]).await.unwrap();
        // Its length tells less: after a checkpoint, new frames overwrite old ones.
        let wal = || std::fs::read(path.with_extension("sqlite-wal")).unwrap();
        for (seq, is_open) in [(1, true), (2, false), (3, true)] {
            let before = wal();
            assert_eq!(index.is_record_open(seq).await.unwrap(), Some(is_open), "{seq}");
            assert_eq!(wal() != before, is_open, "{seq}");
        }
        index.close().await;
    }
}
