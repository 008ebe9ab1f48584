//! Health of blobs in SQLite: marks, heals, and the order of verification.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::collect::hide;
use super::files::{execute, file_hash, release};
use super::write::{Write, statement};
use super::{SqliteIndex, get, grants, map, millis};
use crate::format::XorbHash;
use crate::index::error::IndexError;
use crate::index::health::{FilesHit, HealthIndex, HealthSums, XorbHealth};
use crate::index::{NewXorb, Ticket, rows};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// Columns of [`parse_health`].
macro_rules! select_health {
    ($rest:literal) => {
        concat!(
            "SELECT hash, ticket, crc64, serialized_len, verified_at, damaged_at, incarnation FROM xorbs WHERE ",
            $rest
        )
    };
}
pub(super) use select_health;

impl HealthIndex for SqliteIndex {
    fn find_health(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbHealth>, IndexError>> {
        let op = "find the health of a xorb";
        async move {
            let query = sqlx::query(select_health!("hash = ? AND state IN (1, 2)")).bind(hash.as_bytes().as_slice());
            let row = query.fetch_optional(&self.readers).await.map_err(|error| map(op, error))?;
            row.map(|row| parse_health(op, &row)).transpose()
        }
        .boxed()
    }

    fn due_xorbs(&self, before: Timestamp, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>> {
        // NULL sorts before all numbers in SQLite, in the index as well.
        const SQL: &str = select_health!(
            "state IN (1, 2) AND damaged_at IS NULL AND (verified_at IS NULL OR verified_at < ?) \
             ORDER BY verified_at LIMIT ?"
        );
        let op = "list xorbs to be verified";
        async move {
            let query = sqlx::query(SQL).bind(millis(before)).bind(limit);
            let rows = query.fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            rows.iter().map(|row| parse_health(op, row)).collect()
        }
        .boxed()
    }

    fn damaged_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>> {
        const SQL: &str =
            select_health!("damaged_at IS NOT NULL AND hash > ? AND state IN (1, 2) ORDER BY hash LIMIT ?");
        let op = "list damaged xorbs";
        async move {
            let query = sqlx::query(SQL).bind(after_bytes(after)).bind(limit);
            let rows = query.fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            rows.iter().map(|row| parse_health(op, row)).collect()
        }
        .boxed()
    }

    fn health_sums(&self) -> BoxFuture<'_, Result<HealthSums, IndexError>> {
        const SQL: &str = "SELECT (SELECT count(*) FROM xorbs WHERE damaged_at IS NOT NULL AND state IN (1, 2)), \
             (SELECT verified_at FROM xorbs WHERE state IN (1, 2) AND damaged_at IS NULL ORDER BY verified_at LIMIT 1)";
        let op = "sum up the health of xorbs";
        async move {
            let row = sqlx::query(SQL).fetch_one(&self.readers).await.map_err(|error| map(op, error))?;
            let damaged_count = get::<i64>(op, &row, 0)?.cast_unsigned();
            Ok(HealthSums { damaged_count, oldest: get::<Option<i64>>(op, &row, 1)?.map(timestamp) })
        }
        .boxed()
    }

    fn files_hit(&self, hash: XorbHash, limit: u32) -> BoxFuture<'_, Result<FilesHit, IndexError>> {
        const COUNT: &str = "SELECT count(*) FROM xorb_files JOIN files ON files.id = file_id \
             WHERE xorb_id = (SELECT id FROM xorbs WHERE hash = ?) AND removed_at IS NULL";
        const SQL: &str = "SELECT files.hash FROM xorb_files JOIN files ON files.id = file_id \
             WHERE xorb_id = (SELECT id FROM xorbs WHERE hash = ?) AND removed_at IS NULL ORDER BY file_id LIMIT ?";
        let op = "list the files of a xorb";
        async move {
            let bytes = hash.as_bytes().as_slice();
            let count = sqlx::query(COUNT).bind(bytes).fetch_one(&self.readers).await;
            let count = get::<i64>(op, &count.map_err(|error| map(op, error))?, 0)?.cast_unsigned();
            let rows = sqlx::query(SQL).bind(bytes).bind(limit).fetch_all(&self.readers).await;
            let rows = rows.map_err(|error| map(op, error))?;
            let files = rows.iter().map(|row| file_hash(op, get(op, row, 0)?)).collect::<Result<_, _>>()?;
            Ok(FilesHit { files, count })
        }
        .boxed()
    }

    fn mark_damaged(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "UPDATE xorbs SET damaged_at = ? \
             WHERE hash = ? AND state IN (1, 2) AND ticket = ? AND crc64 = ? AND damaged_at IS NULL";
        self.set_health("mark a xorb as damaged", SQL, seen, now, true).boxed()
    }

    fn mark_sound(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "UPDATE xorbs SET verified_at = ?, damaged_at = NULL \
             WHERE hash = ? AND state IN (1, 2) AND ticket = ? AND crc64 = ?";
        // For readers nothing changes if it was sound before.
        self.set_health("mark a xorb as valid", SQL, seen, now, seen.damaged_at.is_some()).boxed()
    }

    fn heal_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        self.describe("describe a repaired xorb", xorb, ticket, None, now).boxed()
    }
}

impl SqliteIndex {
    /// Changes the health of a xorb. If readers are affected, the generation tells every process
    /// that serves this index.
    async fn set_health(
        &self,
        op: &'static str,
        sql: &'static str,
        seen: XorbHealth,
        now: Timestamp,
        is_noticed: bool,
    ) -> Result<bool, IndexError> {
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let set = set(&mut connection, op, sql, seen, now, is_noticed).await;
        release(connection, set.is_ok()).await;
        set
    }
}

async fn set(
    connection: &mut SqliteConnection,
    op: &'static str,
    sql: &'static str,
    seen: XorbHealth,
    now: Timestamp,
    is_noticed: bool,
) -> Result<bool, IndexError> {
    let mut transaction = Write::begin(op, connection).await?;
    let hash = seen.hash.as_bytes().to_vec();
    let changed = execute(op, &mut transaction, sql, |query| {
        query.bind(millis(now)).bind(hash).bind(seen.ticket.0).bind(seen.crc64.cast_signed())
    })
    .await?;
    if changed == 1 && is_noticed {
        hide(op, &mut transaction).await?;
    }
    transaction.commit().await?;
    Ok(changed == 1)
}

/// Describes the blob of a xorb, which is another one from now on if it has a new name.
pub(super) async fn replace(
    connection: &mut SqliteConnection,
    op: &'static str,
    xorb: NewXorb,
    ticket: Ticket,
    new: Option<Incarnation>,
    now: Timestamp,
) -> Result<(), IndexError> {
    const BEFORE: &str = "SELECT id, serialized_len, raw_len, damaged_at IS NOT NULL FROM xorbs \
         WHERE hash = ? AND state IN (1, 2) AND ticket = ?";
    const NAME: &str = "DELETE FROM objects WHERE hash = ? AND incarnation = ? AND state = 0";
    // A new ticket: a finding about the previous blob must not apply to this one.
    const HEAL: &str = "UPDATE xorbs SET state = 1, since = max(since, ?1), serialized_len = ?2, raw_len = ?3, \
         crc64 = ?4, layout = ?5, incarnation = coalesce(?8, incarnation), \
         replaced_at = CASE WHEN ?8 IS NOT NULL THEN NULL \
             WHEN crc64 = ?4 AND layout = ?5 THEN replaced_at ELSE ?1 END, \
         damaged_at = NULL, verified_at = ?1, ticket = ?6 WHERE id = ?7";
    const DESCRIBE: &str = "INSERT OR REPLACE INTO xorb_chunks (xorb_id, hashes, schemes) VALUES (?, ?, ?)";
    const SUM: &str = "UPDATE totals SET serialized_len = serialized_len + ?, raw_len = raw_len + ?";
    let failed = |error| map(op, error);
    let (serialized_len, raw_len) = (xorb.layout.serialized_len().cast_signed(), xorb.layout.raw_len().cast_signed());
    let mut transaction = Write::begin(op, connection).await?;
    let row = sqlx::query(BEFORE)
        .bind(xorb.hash.as_bytes().as_slice())
        .bind(ticket.0)
        .fetch_optional(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    let Some(row) = row else { return Err(IndexError::lost(op, 0)) };
    let (id, old_serialized_len, old_raw_len): (i64, i64, i64) =
        (get(op, &row, 0)?, get(op, &row, 1)?, get(op, &row, 2)?);
    let was_damaged: bool = get(op, &row, 3)?;
    let new = new.map(rows::incarnation_to_sql);
    if let Some(new) = new {
        let hash = xorb.hash.as_bytes().to_vec();
        if execute(op, &mut transaction, NAME, |query| query.bind(hash).bind(new)).await? != 1 {
            return Err(IndexError::lost(op, 0));
        }
    }
    sqlx::query(HEAL)
        .bind(millis(now))
        .bind(serialized_len)
        .bind(raw_len)
        .bind(xorb.crc64.cast_signed())
        .bind(xorb.layout.pack())
        .bind(Ticket::random().0)
        .bind(id)
        .bind(new)
        .execute(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    let hashes: Vec<u8> = xorb.chunk_hashes.iter().flat_map(|hash| *hash.as_bytes()).collect();
    let schemes: Vec<u8> = xorb.schemes.iter().map(|scheme| scheme.as_byte()).collect();
    execute(op, &mut transaction, DESCRIBE, |query| query.bind(id).bind(hashes).bind(schemes)).await?;
    execute(op, &mut transaction, SUM, |query| {
        query.bind(serialized_len - old_serialized_len).bind(raw_len - old_raw_len)
    })
    .await?;
    if let Some(owner) = xorb.owner {
        let share = "INSERT OR IGNORE INTO xorb_domains (xorb_id, domain) VALUES (?, ?)";
        execute(op, &mut transaction, share, |query| query.bind(id).bind(owner)).await?;
    }
    if let Some(grant) = xorb.grant {
        grants::insert_spent(&mut *transaction, grant).await.map_err(failed)?;
    }
    // A sound blob that was replaced can be read for a while, as it was described.
    if was_damaged || new.is_none() {
        hide(op, &mut transaction).await?;
    }
    transaction.commit().await
}

pub(super) fn after_bytes(after: Option<XorbHash>) -> Vec<u8> {
    // The empty blob is before every hash.
    after.map_or(Vec::new(), |hash| hash.as_bytes().to_vec())
}

pub(super) fn parse_health(op: &'static str, row: &SqliteRow) -> Result<XorbHealth, IndexError> {
    Ok(XorbHealth {
        hash: rows::xorb_hash(get(op, row, 0)?).map_err(|error| IndexError::inconsistent(op, error))?,
        ticket: Ticket(get(op, row, 1)?),
        crc64: get::<i64>(op, row, 2)?.cast_unsigned(),
        serialized_len: get::<i64>(op, row, 3)?.cast_unsigned(),
        verified_at: get::<Option<i64>>(op, row, 4)?.map(timestamp),
        damaged_at: get::<Option<i64>>(op, row, 5)?.map(timestamp),
        incarnation: rows::incarnation(get(op, row, 6)?),
    })
}

const fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis.cast_unsigned())
}
