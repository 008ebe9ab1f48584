//! Objects in PostgreSQL: see [`ObjectIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::health::{NamedBlob, describe};
use super::lists::{BATCH_COUNT, hash_list};
use super::rows::row;
use super::{PostgresIndex, millis};
use crate::format::XorbHash;
use crate::index::error::IndexError;
use crate::index::objects::{DeadObject, ObjectIndex, ObjectSums};
use crate::index::rows::incarnation_to_sql;
use crate::index::{NewXorb, Ticket, XorbRow};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

impl ObjectIndex for PostgresIndex {
    fn incarnation_of(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<Incarnation>, IndexError>> {
        const SQL: &str = "SELECT incarnation FROM xorbs WHERE hash = $1";
        async move { self.read("find the blob of a xorb").find(query(SQL).bind(hash.as_bytes().as_slice())).await }
            .boxed()
    }

    fn incarnation_to_delete(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<Incarnation>, IndexError>> {
        const SQL: &str = "SELECT incarnation FROM xorbs WHERE hash = $1";
        async move {
            // In a transaction that writes, which fails if the session of this process has ended.
            let mut held = self.writing("find the blob to delete").await?;
            let mut tx = held.begin().await?;
            let found = tx.find(query(SQL).bind(hash.as_bytes().as_slice())).await?;
            tx.commit().await?;
            Ok(found)
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
        const SQL: &str = "INSERT INTO objects (hash, incarnation, state, since, len) VALUES ($1, $2, 0, $3, $4)";
        async move {
            let begin = query(SQL).bind(hash.as_bytes().as_slice()).bind(incarnation_to_sql(incarnation));
            let begin = begin.bind(millis(now)).bind(len.cast_signed());
            self.write("name a new blob").execute(begin).await.map(drop)
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
        describe(self, "replace the blob of a xorb", xorb, ticket, NamedBlob::Pending(incarnation), now).boxed()
    }

    fn mark_object_dead(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
        len: u64,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "INSERT INTO objects (hash, incarnation, state, since, len) SELECT $1, $2, 1, $3, $4 \
             WHERE NOT EXISTS (SELECT 1 FROM xorbs WHERE hash = $1 AND incarnation = $2) \
             ON CONFLICT (hash, incarnation) DO UPDATE SET state = 1, since = greatest(objects.since, excluded.since)";
        async move {
            let bury = query(SQL).bind(hash.as_bytes().as_slice()).bind(incarnation_to_sql(incarnation));
            let bury = bury.bind(millis(now)).bind(len.cast_signed());
            Ok(self.write("give up a blob").execute(bury).await? == 1)
        }
        .boxed()
    }

    fn abandon_objects(&self, before: Timestamp, now: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>> {
        const SQL: &str = "UPDATE objects SET state = 1, since = $1 WHERE state = 0 AND since <= $2";
        let abandon = query(SQL).bind(millis(now)).bind(millis(before));
        async move { self.write("give up pending blobs").execute(abandon).await }.boxed()
    }

    fn dead_objects(
        &self,
        before: Timestamp,
        after: Option<(XorbHash, Incarnation)>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<DeadObject>, IndexError>> {
        // No row should have a dead name. If one has it nevertheless, the blob must not be deleted.
        const SQL: &str = "SELECT hash, incarnation, len FROM objects WHERE state = 1 AND since <= $1 \
             AND (hash, incarnation) > ($2, $3) AND NOT EXISTS \
             (SELECT 1 FROM xorbs WHERE xorbs.hash = objects.hash AND xorbs.incarnation = objects.incarnation) \
             ORDER BY hash, incarnation LIMIT $4";
        async move {
            // Without `after`, an empty hash: it is less than every hash.
            let (hash, incarnation) = after
                .as_ref()
                .map_or((&[][..], 0), |(hash, incarnation)| (&hash.as_bytes()[..], incarnation_to_sql(*incarnation)));
            let list = query(SQL).bind(millis(before)).bind(hash).bind(incarnation).bind(i64::from(limit));
            self.read("list blobs to be deleted").all(list).await
        }
        .boxed()
    }

    fn forget_object(&self, hash: XorbHash, incarnation: Incarnation) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "DELETE FROM objects WHERE hash = $1 AND incarnation = $2 AND state = 1";
        async move {
            let forget = query(SQL).bind(hash.as_bytes().as_slice()).bind(incarnation_to_sql(incarnation));
            Ok(self.write("forget a deleted blob").execute(forget).await? == 1)
        }
        .boxed()
    }

    fn find_replaced(
        &self,
        hash: XorbHash,
        incarnation: Incarnation,
    ) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>> {
        const SQL: &str = "SELECT hash, incarnation, crc64, layout, FALSE AS is_damaged, replaced_at FROM objects \
             WHERE hash = $1 AND incarnation = $2 AND state = 1 AND crc64 IS NOT NULL AND layout IS NOT NULL";
        async move {
            let find = query(SQL).bind(hash.as_bytes().as_slice()).bind(incarnation_to_sql(incarnation));
            self.read("find a replaced blob").find(find).await
        }
        .boxed()
    }

    fn unknown_names(
        &self,
        names: Vec<(XorbHash, Incarnation)>,
    ) -> BoxFuture<'_, Result<Vec<(XorbHash, Incarnation)>, IndexError>> {
        // One statement: while a blob is replaced, its name moves from one table to the other.
        const SQL: &str = "SELECT name.hash AS hash, name.incarnation AS incarnation \
             FROM unnest($1, $2) WITH ORDINALITY AS name (hash, incarnation, place) \
             WHERE NOT EXISTS (SELECT 1 FROM xorbs WHERE xorbs.hash = name.hash AND xorbs.incarnation = name.incarnation) \
             AND NOT EXISTS (SELECT 1 FROM objects WHERE objects.hash = name.hash AND objects.incarnation = name.incarnation) \
             ORDER BY place";
        row! { Name { hash: XorbHash, incarnation: Incarnation } }
        async move {
            let mut unknown_names = Vec::new();
            for batch in names.chunks(BATCH_COUNT) {
                let hashes = hash_list(batch.iter().map(|(hash, _)| hash));
                let incarnations: Vec<i64> = batch.iter().map(|(_, name)| incarnation_to_sql(*name)).collect();
                let find = query(SQL).bind(hashes).bind(incarnations);
                let unknown: Vec<Name> = self.read("look for blobs without a row").all(find).await?;
                unknown_names.extend(unknown.into_iter().map(|name| (name.hash, name.incarnation)));
            }
            Ok(unknown_names)
        }
        .boxed()
    }

    fn object_sums(&self) -> BoxFuture<'_, Result<ObjectSums, IndexError>> {
        const SQL: &str = "SELECT count(*) AS count, coalesce(sum(len), 0)::bigint AS len FROM objects";
        async move { self.read("sum up replaced blobs").one(query(SQL)).await }.boxed()
    }

    fn set_objects_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        let set = query("UPDATE objects SET since = $1 WHERE since > $1").bind(millis(now));
        async move { self.write("set times of blobs back").execute(set).await.map(drop) }.boxed()
    }
}
