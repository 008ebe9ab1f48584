//! The index in one SQLite file.
//!
//! Write-ahead log with `synchronous=FULL`: a committed transaction survives a power cut. A single
//! connection writes, so that writers queue here and not in SQLite's busy handler. Several
//! connections read, and never wait for the writer.

mod archive;
mod bulk;
mod claims;
mod collect;
mod compact;
mod connect;
mod discard;
mod failure;
mod files;
mod grants;
mod health;
mod listing;
mod named;
mod objects;
mod open;
mod owners;
#[cfg(any(test, feature = "full-tests"))]
pub mod probe;
mod publish;
mod records;
mod register;
mod remove;
mod repair;
mod replace;
mod store;
mod switch;
mod terms;
#[cfg(test)]
pub(crate) mod test_hooks;
mod times;
mod usage;
mod wal;
mod write;

use std::ops::Range;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlitePool};

use self::connect::LongestWrite;
pub(super) use self::failure::map;
pub use self::replace::Replacement;
use super::error::IndexError;
use super::rows::{self, state_to_sql};
use super::{
    ChunkColumns, Claim, ClaimState, DedupHit, FileEntry, FileRecord, FileRow, Index, KnownSha256, NewXorb, Reader,
    Registered, Registration, RestoredFile, SpentGrant, Staging, Ticket, Totals, XorbContents, XorbEntry, XorbPart,
    XorbRow, XorbState,
};
use crate::format::shard::Sha256;
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// Connections for reading. Each has a thread and a page cache of about 2 MiB.
const READER_COUNT: u32 = 4;

/// A SQLite file as an [`Index`].
#[derive(Clone, Debug)]
pub struct SqliteIndex {
    writer: SqlitePool,
    readers: SqlitePool,
    longest_write: LongestWrite,
    /// Whether every registration is written in steps, even a short one.
    #[cfg(test)]
    registers_in_steps: bool,
}

impl Index for SqliteIndex {
    fn find_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>> {
        const SQL: &str = "SELECT crc64, layout, damaged_at IS NOT NULL, replaced_at, incarnation FROM xorbs \
             WHERE hash = ? AND state IN (1, 2)";
        let op = "find a xorb";
        async move {
            let row = sqlx::query(SQL)
                .bind(hash.as_bytes().as_slice())
                .fetch_optional(&self.readers)
                .await
                .map_err(|error| map(op, error))?;
            let Some(row) = row else { return Ok(None) };
            let (crc64, layout): (i64, &[u8]) = (get(op, &row, 0)?, get(op, &row, 1)?);
            let xorb = rows::xorb(hash, rows::incarnation(get(op, &row, 4)?), crc64, layout);
            let xorb = xorb.map_err(|error| IndexError::inconsistent(op, error))?;
            let replaced_at = get::<Option<i64>>(op, &row, 3)?.map(|at| Timestamp::from_millis(at.cast_unsigned()));
            Ok(Some(XorbRow { is_damaged: get(op, &row, 2)?, replaced_at, ..xorb }))
        }
        .boxed()
    }

    fn find_chunks(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<ChunkColumns>, IndexError>> {
        const SQL: &str = "SELECT hashes, schemes FROM xorb_chunks JOIN xorbs ON id = xorb_id \
             WHERE hash = ? AND state IN (1, 2)";
        let op = "find the chunks of a xorb";
        async move {
            let row = sqlx::query(SQL)
                .bind(hash.as_bytes().as_slice())
                .fetch_optional(&self.readers)
                .await
                .map_err(|error| map(op, error))?;
            let Some(row) = row else { return Ok(None) };
            let columns = rows::chunk_columns(&hash, get(op, &row, 0)?, get(op, &row, 1)?);
            columns.map(Some).map_err(|error| IndexError::inconsistent(op, error))
        }
        .boxed()
    }

    fn stage_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<Staging, IndexError>> {
        // One statement decides: a new or staged row ends as staged, a visible one as live. A row
        // that is being deleted is not touched, and nothing is returned.
        const SQL: &str = "INSERT INTO xorbs (hash, state, since, ticket, incarnation) VALUES (?1, 0, ?2, ?3, ?3) \
             ON CONFLICT (hash) DO UPDATE SET \
                 state = CASE state WHEN 0 THEN 0 ELSE 1 END, since = max(since, excluded.since), ticket = excluded.ticket, \
                 incarnation = CASE state WHEN 0 THEN excluded.incarnation ELSE incarnation END \
             WHERE state IN (0, 1, 2) RETURNING state, damaged_at IS NOT NULL, coalesce(serialized_len, 0)";
        let op = "stage a xorb";
        async move {
            // All rows, although there is at most one: a statement commits when it is finished. If
            // it is dropped after its first row, the commit fails without an error.
            let rows = sqlx::query(SQL)
                .bind(hash.as_bytes().as_slice())
                .bind(millis(now))
                .bind(ticket.0)
                .fetch_all(&self.writer)
                .await
                .map_err(|error| map(op, error))?;
            let Some(row) = rows.first() else { return Ok(Staging::Deleting) };
            let state = rows::state(&hash, get(op, row, 0)?).map_err(|error| IndexError::inconsistent(op, error))?;
            Ok(match state {
                XorbState::Staged => Staging::Staged,
                _ if get(op, row, 1)? => Staging::Damaged,
                _ => Staging::Live { serialized_len: get::<i64>(op, row, 2)?.cast_unsigned() },
            })
        }
        .boxed()
    }

    fn publish_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        async move {
            let op = "make a xorb live";
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let published = publish::publish(&mut connection, op, xorb, ticket, now).await;
            if published.is_err() {
                // SQLite ends a transaction by itself when the disk is full or fails, but sqlx
                // still counts it. The next transaction on this connection would be nested in it
                // and never be committed, although it was acknowledged. A new connection is in no
                // transaction.
                if let Err(error) = connection.close().await {
                    tracing::warn!(%error, "cannot close a connection to the index");
                }
            }
            published
        }
        .boxed()
    }

    fn share_xorb(&self, hash: XorbHash, owner: String) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.write_owner(hash, owner).boxed()
    }

    fn foreign_single_chunks(
        &self,
        hashes: Vec<XorbHash>,
        owner: String,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        self.read_foreign_single_chunks(hashes, owner).boxed()
    }

    fn renew_xorb(
        &self,
        hash: XorbHash,
        owner: Option<String>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.renew(hash, owner, now).boxed()
    }

    fn spend_grant(&self, grant: SpentGrant) -> BoxFuture<'_, Result<(), IndexError>> {
        self.record_spent(grant).boxed()
    }

    fn is_grant_spent(&self, nonce: [u8; 16]) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.read_spent(nonce).boxed()
    }

    fn forget_grants(&self, before: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>> {
        self.delete_spent(before).boxed()
    }

    fn abandon_xorb(&self, hash: XorbHash, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        async move {
            let result = sqlx::query("UPDATE xorbs SET state = ?, since = ? WHERE hash = ? AND state = ?")
                .bind(state_to_sql(XorbState::Deleting))
                .bind(millis(now))
                .bind(hash.as_bytes().as_slice())
                .bind(state_to_sql(XorbState::Staged))
                .execute(&self.writer)
                .await
                .map_err(|error| map("give up a staged xorb", error))?;
            Ok(result.rows_affected() == 1)
        }
        .boxed()
    }

    fn forget_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<bool, IndexError>> {
        async move {
            let result = sqlx::query("DELETE FROM xorbs WHERE hash = ? AND state = ?")
                .bind(hash.as_bytes().as_slice())
                .bind(state_to_sql(XorbState::Deleting))
                .execute(&self.writer)
                .await
                .map_err(|error| map("forget a deleted xorb", error))?;
            Ok(result.rows_affected() == 1)
        }
        .boxed()
    }

    fn unfinished_xorbs(&self) -> BoxFuture<'_, Result<Vec<(XorbHash, XorbState)>, IndexError>> {
        let op = "list unfinished xorbs";
        async move {
            let rows = sqlx::query("SELECT hash, state FROM xorbs WHERE state IN (0, 3)")
                .fetch_all(&self.readers)
                .await
                .map_err(|error| map(op, error))?;
            let parse = |row: &SqliteRow| {
                let hash = rows::xorb_hash(get(op, row, 0)?).map_err(|error| IndexError::inconsistent(op, error))?;
                let state = rows::state(&hash, get(op, row, 1)?);
                Ok((hash, state.map_err(|error| IndexError::inconsistent(op, error))?))
            };
            rows.iter().map(parse).collect()
        }
        .boxed()
    }

    fn totals(&self) -> BoxFuture<'_, Result<Totals, IndexError>> {
        let op = "read the totals";
        async move {
            let row = sqlx::query("SELECT xorb_count, serialized_len, raw_len FROM totals")
                .fetch_one(&self.readers)
                .await
                .map_err(|error| map(op, error))?;
            let column = |index: usize| get::<i64>(op, &row, index).map(i64::cast_unsigned);
            Ok(Totals { xorb_count: column(0)?, serialized_len: column(1)?, raw_len: column(2)? })
        }
        .boxed()
    }

    fn list_xorbs(&self) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        let op = "list xorbs";
        async move {
            let rows = sqlx::query("SELECT hash FROM xorbs WHERE state IN (1, 2)")
                .fetch_all(&self.readers)
                .await
                .map_err(|error| map(op, error))?;
            let parse = |row: &SqliteRow| {
                rows::xorb_hash(get(op, row, 0)?).map_err(|error| IndexError::inconsistent(op, error))
            };
            rows.iter().map(parse).collect()
        }
        .boxed()
    }

    fn xorb_contents(&self, hashes: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<XorbContents>, IndexError>> {
        self.read_contents(hashes).boxed()
    }

    fn xorb_parts(&self, wanted: Vec<(XorbHash, ChunkRange)>) -> BoxFuture<'_, Result<Vec<XorbPart>, IndexError>> {
        self.read_parts(wanted).boxed()
    }

    fn register_of<'a>(
        &'a self,
        registration: &'a Registration,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Registered, IndexError>> {
        #[cfg(test)]
        if self.registers_in_steps {
            return self.register_in_steps(registration, record).boxed();
        }
        self.register_files(registration, record).boxed()
    }

    fn find_file(
        &self,
        hash: FileHash,
        reader: Reader,
        part: Option<ByteRange>,
    ) -> BoxFuture<'_, Result<Option<FileRow>, IndexError>> {
        self.read_file(hash, reader, part).boxed()
    }

    fn find_sha256(&self, sha256: Sha256, reader: Reader) -> BoxFuture<'_, Result<Option<KnownSha256>, IndexError>> {
        self.read_sha256(sha256, reader).boxed()
    }

    fn find_dedup(
        &self,
        chunk: ChunkHash,
        owner: Option<String>,
        lease_until: Timestamp,
    ) -> BoxFuture<'_, Result<Option<DedupHit>, IndexError>> {
        self.lease_dedup(chunk, owner, lease_until).boxed()
    }

    fn unverified_claims(
        &self,
        lens: Range<u64>,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<Claim>, IndexError>> {
        self.read_claims(lens, after, limit).boxed()
    }

    fn files_after(
        &self,
        reader: Reader,
        after: Option<FileHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<FileEntry>, IndexError>> {
        self.read_files_after(reader, after, limit).boxed()
    }

    fn xorbs_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbEntry>, IndexError>> {
        self.read_xorbs_after(after, limit).boxed()
    }

    fn settle_claim(&self, claim: Claim, state: ClaimState) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.write_claim(claim, state).boxed()
    }

    fn file_records(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<Vec<FileRecord>, IndexError>> {
        self.read_file_records(after).boxed()
    }

    fn restore_files(&self, files: Vec<RestoredFile>) -> BoxFuture<'_, Result<(), IndexError>> {
        self.write_restored(files).boxed()
    }
}

fn millis(timestamp: Timestamp) -> i64 {
    timestamp.as_millis().cast_signed()
}

fn get<'r, T>(op: &'static str, row: &'r SqliteRow, index: usize) -> Result<T, IndexError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(index).map_err(|error| map(op, error))
}
