//! Objects in SQLite: see [`ObjectIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::health::replace;
use super::{SqliteIndex, get, map, millis};
use crate::format::XorbHash;
use crate::index::error::IndexError;
use crate::index::objects::{DeadObject, ObjectIndex, ObjectSums};
use crate::index::{NewXorb, Ticket, XorbRow, rows};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

impl ObjectIndex for SqliteIndex {
    fn incarnation_of(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<Incarnation>, IndexError>> {
        let op = "find the blob of a xorb";
        async move {
            let query = sqlx::query("SELECT incarnation FROM xorbs WHERE hash = ?").bind(hash.as_bytes().as_slice());
            let row = query.fetch_optional(&self.readers).await.map_err(|error| map(op, error))?;
            row.map(|row| get(op, &row, 0).map(rows::incarnation)).transpose()
        }
        .boxed()
    }

    fn begin_object(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
        len: u64,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>> {
        const SQL: &str = "INSERT INTO objects (hash, incarnation, state, since, len) VALUES (?, ?, 0, ?, ?)";
        async move {
            let query = sqlx::query(SQL).bind(hash.as_bytes().as_slice()).bind(rows::incarnation_to_sql(incarnation));
            let query = query.bind(millis(now)).bind(len.cast_signed());
            query.execute(&self.writer).await.map_err(|error| map("name a new blob", error))?;
            Ok(())
        }
        .boxed()
    }

    fn replace_xorb(
        &self,
        xorb: NewXorb,
        ticket: Ticket,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>> {
        self.describe("replace the blob of a xorb", xorb, ticket, Some(incarnation), now).boxed()
    }

    fn bury_object(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
        len: u64,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "INSERT INTO objects (hash, incarnation, state, since, len) SELECT ?1, ?2, 1, ?3, ?4 \
             WHERE NOT EXISTS (SELECT 1 FROM xorbs WHERE hash = ?1 AND incarnation = ?2) \
             ON CONFLICT (hash, incarnation) DO UPDATE SET state = 1, since = max(since, excluded.since)";
        async move {
            let query = sqlx::query(SQL).bind(hash.as_bytes().as_slice()).bind(rows::incarnation_to_sql(incarnation));
            let query = query.bind(millis(now)).bind(len.cast_signed());
            let result = query.execute(&self.writer).await.map_err(|error| map("give up a blob", error))?;
            Ok(result.rows_affected() == 1)
        }
        .boxed()
    }

    fn abandon_objects(&self, before: Timestamp, now: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>> {
        const SQL: &str = "UPDATE objects SET state = 1, since = ? WHERE state = 0 AND since <= ?";
        async move {
            let query = sqlx::query(SQL).bind(millis(now)).bind(millis(before));
            let result = query.execute(&self.writer).await.map_err(|error| map("give up pending blobs", error))?;
            Ok(result.rows_affected())
        }
        .boxed()
    }

    fn dead_objects(&self, before: Timestamp, limit: u32) -> BoxFuture<'_, Result<Vec<DeadObject>, IndexError>> {
        // No row has a dead name. Where the index contradicts itself, the blob stays.
        const SQL: &str = "SELECT hash, incarnation, len FROM objects WHERE state = 1 AND since <= ? AND NOT EXISTS \
             (SELECT 1 FROM xorbs WHERE xorbs.hash = objects.hash AND xorbs.incarnation = objects.incarnation) \
             ORDER BY since LIMIT ?";
        let op = "list blobs to be deleted";
        async move {
            let query = sqlx::query(SQL).bind(millis(before)).bind(limit);
            let rows = query.fetch_all(&self.readers).await.map_err(|error| map(op, error))?;
            let parse = |row| {
                Ok(DeadObject {
                    hash: rows::xorb_hash(get(op, row, 0)?).map_err(|error| IndexError::inconsistent(op, error))?,
                    incarnation: rows::incarnation(get(op, row, 1)?),
                    len: get::<i64>(op, row, 2)?.cast_unsigned(),
                })
            };
            rows.iter().map(parse).collect()
        }
        .boxed()
    }

    fn forget_object(&self, hash: XorbHash, incarnation: Incarnation) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "DELETE FROM objects WHERE hash = ? AND incarnation = ? AND state = 1";
        async move {
            let query = sqlx::query(SQL).bind(hash.as_bytes().as_slice()).bind(rows::incarnation_to_sql(incarnation));
            let result = query.execute(&self.writer).await.map_err(|error| map("forget a deleted blob", error))?;
            Ok(result.rows_affected() == 1)
        }
        .boxed()
    }

    fn find_replaced(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
    ) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>> {
        const SQL: &str = "SELECT crc64, layout, replaced_at FROM objects \
             WHERE hash = ? AND incarnation = ? AND state = 1 AND crc64 IS NOT NULL AND layout IS NOT NULL";
        let op = "find a replaced blob";
        async move {
            let query = sqlx::query(SQL).bind(hash.as_bytes().as_slice()).bind(rows::incarnation_to_sql(incarnation));
            let row = query.fetch_optional(&self.readers).await.map_err(|error| map(op, error))?;
            let Some(row) = row else { return Ok(None) };
            let xorb = rows::xorb(hash, incarnation, get(op, &row, 0)?, get(op, &row, 1)?);
            let xorb = xorb.map_err(|error| IndexError::inconsistent(op, error))?;
            let replaced_at = get::<Option<i64>>(op, &row, 2)?.map(|at| Timestamp::from_millis(at.cast_unsigned()));
            Ok(Some(XorbRow { replaced_at, ..xorb }))
        }
        .boxed()
    }

    fn unaccounted(
        &self,
        names: Vec<(XorbHash, Incarnation)>,
    ) -> BoxFuture<'_, Result<Vec<(XorbHash, Incarnation)>, IndexError>> {
        const SQL: &str = "SELECT EXISTS (SELECT 1 FROM xorbs WHERE hash = ?1 AND incarnation = ?2) \
             OR EXISTS (SELECT 1 FROM objects WHERE hash = ?1 AND incarnation = ?2)";
        let op = "look for blobs without a row";
        async move {
            let mut unaccounted = Vec::new();
            for (hash, incarnation) in names {
                // One statement: while a blob is replaced, its name moves from one table to the
                // other.
                let query =
                    sqlx::query(SQL).bind(hash.as_bytes().as_slice()).bind(rows::incarnation_to_sql(incarnation));
                let row = query.fetch_one(&self.readers).await.map_err(|error| map(op, error))?;
                if !get::<bool>(op, &row, 0)? {
                    unaccounted.push((hash, incarnation));
                }
            }
            Ok(unaccounted)
        }
        .boxed()
    }

    fn object_sums(&self) -> BoxFuture<'_, Result<ObjectSums, IndexError>> {
        let op = "sum up replaced blobs";
        async move {
            let query = sqlx::query("SELECT count(*), coalesce(sum(len), 0) FROM objects");
            let row = query.fetch_one(&self.readers).await.map_err(|error| map(op, error))?;
            let column = |index: usize| get::<i64>(op, &row, index).map(i64::cast_unsigned);
            Ok(ObjectSums { count: column(0)?, len: column(1)? })
        }
        .boxed()
    }

    fn set_objects_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        async move {
            let query = sqlx::query("UPDATE objects SET since = ?1 WHERE since > ?1").bind(millis(now));
            query.execute(&self.writer).await.map_err(|error| map("set times of blobs back", error))?;
            Ok(())
        }
        .boxed()
    }
}

impl SqliteIndex {
    /// Describes the present blob of a xorb, or the one that takes its place.
    pub(super) async fn describe(
        &self,
        op: &'static str,
        xorb: NewXorb,
        ticket: Ticket,
        new: Option<Incarnation>,
        now: Timestamp,
    ) -> Result<(), IndexError> {
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let described = replace(&mut connection, op, xorb, ticket, new, now).await;
        super::files::release(connection, described.is_ok()).await;
        described
    }
}
