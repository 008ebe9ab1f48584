//! What records need from the index, in PostgreSQL: see [`RecordIndex`].
//!
//! A change and the number of its record are written in one transaction. So after a crash the
//! number and the tables `records_left` and `open_records` tell exactly which records are applied.
//! The process of a store with one server has no session here. With several servers each number has
//! a row in `open_records` from when it is taken.

use std::ops::Range;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{Postgres, QueryBuilder, query};
use thiserror::Error;

use super::rows::row;
use super::tx::Tx;
use super::{PostgresIndex, session};
use crate::format::shard::Sha256;
use crate::format::{FileHash, StoreId, XorbHash};
use crate::index::error::{IndexError, IndexErrorKind};
use crate::index::records::{Applying, RecordIndex, StoreMark};

/// The cluster, its timeline, and the number of the database in it. A promotion of a standby and a
/// restore to a point in time begin a timeline; other restores make another database.
macro_rules! history {
    () => {
        "(SELECT concat_ws('/', system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), oid) \
         FROM pg_control_system(), pg_database WHERE datname = current_database())"
    };
}

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
            match last_record.map(u64::cast_signed) {
                Some(last) if self.session.is_none() => {
                    tx.execute(query(MARK).bind(last)).await?;
                    tx.execute(query("DELETE FROM open_records WHERE seq <= $1").bind(last)).await?;
                }
                _ => mark_record_applied(&mut tx, last_record).await?,
            }
            tx.commit().await
        }
        .boxed()
    }

    fn take_records(&self, mut seqs: Vec<u64>) -> BoxFuture<'_, Result<(), IndexError>> {
        async move {
            // Ascending, because with one server a number that is skipped counts as open.
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
        const SQL: &str = "INSERT INTO records_left (seq) SELECT value FROM unnest($1) AS value \
             ON CONFLICT (seq) DO NOTHING";
        async move {
            let seqs: Vec<i64> = seqs.into_iter().map(u64::cast_signed).collect();
            let leave = query(SQL).bind(seqs);
            self.write("write the left-out records").execute(leave).await.map(drop)
        }
        .boxed()
    }

    fn close_record(&self, seq: u64) -> BoxFuture<'_, Result<(), IndexError>> {
        const SQL: &str = "DELETE FROM open_records WHERE seq = $1";
        async move {
            if self.session.is_none() {
                self.closed.add(seq);
                return Ok(());
            }
            let close = query(SQL).bind(seq.cast_signed());
            self.write("close a record").execute(close).await.map(drop)
        }
        .boxed()
    }

    fn is_record_open(&self, seq: u64) -> BoxFuture<'_, Result<Option<bool>, IndexError>> {
        const SQL: &str = "SELECT seq FROM open_records WHERE seq = $1 \
             UNION SELECT $1 FROM store WHERE $2 AND (last_record IS NULL OR last_record < $1)";
        async move {
            let find = query(SQL).bind(seq.cast_signed()).bind(self.session.is_none());
            // In a transaction that writes, so that the one of the change is over.
            let found: Vec<u64> = self.write("look for a record").all(find).await?;
            Ok(Some(!found.is_empty()))
        }
        .boxed()
    }

    fn give_up_record(&self, seq: u64) -> BoxFuture<'_, Result<(), IndexError>> {
        const SQL: &str = "UPDATE open_records SET own_lock = $2 WHERE seq = $1";
        async move {
            if self.session.is_none() {
                return Ok(());
            }
            let give_up = query(SQL).bind(seq.cast_signed()).bind(LOCK_OF_NO_PROCESS);
            // In a transaction that writes, so that the one of the change is over.
            self.write("give up a record").execute(give_up).await.map(drop)
        }
        .boxed()
    }

    fn was_set_back(&self) -> BoxFuture<'_, Result<bool, IndexError>> {
        // A database that cannot say its history has none. A standby has that of its primary.
        const SQL: &str = concat!(
            "SELECT CASE WHEN history IS NULL OR pg_is_in_recovery() THEN FALSE ELSE history <> ",
            history!(),
            " END FROM store"
        );
        // Also without a session, as of a command: only an index of several servers has a history.
        async move { self.read("compare the history of the database").one(query(SQL)).await }.boxed()
    }

    fn note_history(&self) -> BoxFuture<'_, Result<(), IndexError>> {
        const SQL: &str = concat!("UPDATE store SET history = ", history!());
        async move {
            if self.session.is_none() {
                return Ok(());
            }
            self.write("note the history of the database").execute(query(SQL)).await.map(drop)
        }
        .boxed()
    }

    fn abandoned_records(&self) -> BoxFuture<'_, Result<Vec<u64>, IndexError>> {
        const SQL: &str = "SELECT seq FROM open_records WHERE pg_try_advisory_xact_lock_shared(own_lock) ORDER BY seq";
        const GIVEN_UP: &str = "SELECT seq FROM open_records WHERE own_lock = $1 ORDER BY seq";
        async move {
            if self.session.is_none() {
                // Also for a command beside several servers, or at a standby, which cannot write.
                return self.read("list open records").all(query(GIVEN_UP).bind(LOCK_OF_NO_PROCESS)).await;
            }
            // In a transaction that writes: a process whose session has ended may have one under
            // way, which must be over before its record counts as abandoned.
            self.write("list abandoned records").all(query(SQL)).await
        }
        .boxed()
    }
}

impl PostgresIndex {
    /// A number for a record, at least `min`. It is greater than each that was returned before, to
    /// any process, and no later call returns it. The record counts as open until it is closed, by
    /// the transaction of its change or by [`RecordIndex::close_record`].
    ///
    /// # Errors
    ///
    /// The database does not respond, or the session of this process has ended. Then a number may
    /// be left out.
    pub async fn next_record_number(&self, min: u64) -> Result<u64, IndexError> {
        // No number for a process whose session has ended.
        const NEXT: &str = "WITH taken AS MATERIALIZED (SELECT nextval('record_numbers') AS seq \
                 WHERE pg_try_advisory_xact_lock_shared($1::bigint) IS NOT TRUE), \
             opened AS (INSERT INTO open_records (seq, own_lock) SELECT seq, $1::bigint FROM taken \
                 WHERE $1::bigint IS NOT NULL) \
             SELECT seq FROM taken";
        const JUMP: &str = "SELECT setval('record_numbers', $1) FROM record_numbers WHERE last_value < $1 - $2";
        let op = "take a number for a record";
        let own_lock = self.session.as_ref().map(|session| session.own_lock);
        loop {
            let taken: Option<u64> = self.read(op).find(query(NEXT).bind(own_lock)).await?;
            let taken = taken.ok_or_else(session::lost)?;
            if taken >= min {
                return Ok(taken);
            }
            self.close_record(taken).await?;
            // The sequence is new, or the database was set back. A process of the time before may
            // still send a record with one of its numbers, so some are left out. No process takes
            // half as many between the two halves of the statement, which then could set the
            // sequence back; and the lock of the writers keeps others from setting it.
            let next = i64::try_from(min.saturating_add(LEFT_OUT_COUNT)).map_err(|_| no_numbers(op))?;
            let jump = query(JUMP).bind(next).bind(LEFT_OUT_COUNT.cast_signed() / 2);
            let _: Vec<i64> = self.write(op).all(jump).await?;
        }
    }
}

/// There is no number above that of a stored record.
#[derive(Debug, Error)]
#[error("a record has the highest number that there is: remove the object with it, which zorb has not stored")]
struct NoNumbers;

fn no_numbers(op: &'static str) -> IndexError {
    IndexError { op, kind: IndexErrorKind::Other, source: Box::new(NoNumbers) }
}

/// The lock in the rows of records that were given up, and of all records with one server. The
/// locks of processes are random.
const LOCK_OF_NO_PROCESS: i64 = i64::MIN;

/// Numbers that are left out where those before may be in use.
const LEFT_OUT_COUNT: u64 = 1 << 20;

const MARK: &str = "UPDATE store SET last_record = greatest(last_record, $1)";

/// Records that this record was taken, in the transaction of its change.
pub(super) async fn mark_record_applied(tx: &mut Tx<'_>, record: Option<u64>) -> Result<(), IndexError> {
    const TAKE: &str = "WITH closed AS (DELETE FROM open_records WHERE seq = $1) \
         UPDATE store SET last_record = greatest(last_record, $1)";
    const CLOSE: &str = "DELETE FROM open_records WHERE seq >= $1 AND seq < $2";
    const OPEN: &str = "INSERT INTO open_records (seq, own_lock) SELECT seq, $3 \
         FROM generate_series($1::bigint, $2::bigint - 1) AS seq ON CONFLICT (seq) DO NOTHING";
    row! { Last { last_record: Option<u64> } }
    let Some(record) = record else { return Ok(()) };
    if tx.own_lock().is_some() {
        return tx.execute(query(TAKE).bind(record.cast_signed())).await.map(drop);
    }
    let Last { last_record } = tx.one(query("SELECT last_record FROM store")).await?;
    let Applying { over, skipped } = tx.closed().applying(record, last_record);
    for Range { start, end } in over {
        tx.execute(query(CLOSE).bind(start.cast_signed()).bind(end.cast_signed())).await?;
    }
    for Range { start, end } in skipped {
        let open = query(OPEN).bind(start.cast_signed()).bind(end.cast_signed()).bind(LOCK_OF_NO_PROCESS);
        tx.execute(open).await?;
    }
    tx.execute(query(MARK).bind(record.cast_signed())).await.map(drop)
}
