//! Objects in SQLite: see [`ObjectIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::health::{NamedBlob, describe};
use super::{SqliteIndex, millis};
use crate::format::XorbHash;
use crate::index::error::IndexError;
use crate::index::objects::{DeadObject, ObjectIndex, ObjectSums};
use crate::index::rows::incarnation_to_sql;
use crate::index::{NewXorb, Ticket, XorbRow};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

impl ObjectIndex for SqliteIndex {
    fn incarnation_of(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<Incarnation>, IndexError>> {
        const SQL: &str = "SELECT incarnation FROM xorbs WHERE hash = ?";
        async move { self.read("find the blob of a xorb").find(query(SQL).bind(hash.as_bytes().as_slice())).await }
            .boxed()
    }

    fn incarnation_to_delete(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<Incarnation>, IndexError>> {
        // The lock of that process is a file, which it has until it ends.
        self.incarnation_of(hash)
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
        const SQL: &str = "INSERT INTO objects (hash, incarnation, state, since, len) SELECT ?1, ?2, 1, ?3, ?4 \
             WHERE NOT EXISTS (SELECT 1 FROM xorbs WHERE hash = ?1 AND incarnation = ?2) \
             ON CONFLICT (hash, incarnation) DO UPDATE SET state = 1, since = max(since, excluded.since)";
        async move {
            let mark = query(SQL).bind(hash.as_bytes().as_slice()).bind(incarnation_to_sql(incarnation));
            let mark = mark.bind(millis(now)).bind(len.cast_signed());
            Ok(self.write("give up a blob").execute(mark).await? == 1)
        }
        .boxed()
    }

    fn abandon_objects(&self, before: Timestamp, now: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>> {
        const SQL: &str = "UPDATE objects SET state = 1, since = ? WHERE state = 0 AND since <= ?";
        let abandon = query(SQL).bind(millis(now)).bind(millis(before));
        async move { self.write("give up pending blobs").execute(abandon).await }.boxed()
    }

    fn dead_objects(
        &self,
        before: Timestamp,
        after: Option<(XorbHash, Incarnation)>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<DeadObject>, IndexError>> {
        // No row should have the name of a dead object. If a row has it nevertheless, the blob must
        // not be deleted.
        const SQL: &str = "SELECT hash, incarnation, len FROM objects WHERE state = 1 AND since <= ?1 \
             AND (hash, incarnation) > (?2, ?3) AND NOT EXISTS \
             (SELECT 1 FROM xorbs WHERE xorbs.hash = objects.hash AND xorbs.incarnation = objects.incarnation) \
             ORDER BY hash, incarnation LIMIT +?4";
        async move {
            // Without `after`, an empty hash: it is less than every hash.
            let (hash, incarnation) = after
                .as_ref()
                .map_or((&[][..], 0), |(hash, incarnation)| (&hash.as_bytes()[..], incarnation_to_sql(*incarnation)));
            let list = query(SQL).bind(millis(before)).bind(hash).bind(incarnation).bind(limit);
            self.read("list blobs to be deleted").all(list).await
        }
        .boxed()
    }

    fn forget_object(&self, hash: XorbHash, incarnation: Incarnation) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "DELETE FROM objects WHERE hash = ? AND incarnation = ? AND state = 1";
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
             WHERE hash = ? AND incarnation = ? AND state = 1 AND crc64 IS NOT NULL AND layout IS NOT NULL";
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
        // One statement reads both tables in one snapshot, because a name moves from one table to
        // the other when a blob is replaced.
        const SQL: &str = "SELECT EXISTS (SELECT 1 FROM xorbs WHERE hash = ?1 AND incarnation = ?2) \
             OR EXISTS (SELECT 1 FROM objects WHERE hash = ?1 AND incarnation = ?2)";
        async move {
            let (read, mut unknown_names) = (self.read("look for blobs without a row"), Vec::new());
            for (hash, incarnation) in names {
                let find = query(SQL).bind(hash.as_bytes().as_slice()).bind(incarnation_to_sql(incarnation));
                if !read.one::<bool>(find).await? {
                    unknown_names.push((hash, incarnation));
                }
            }
            Ok(unknown_names)
        }
        .boxed()
    }

    fn object_sums(&self) -> BoxFuture<'_, Result<ObjectSums, IndexError>> {
        const SQL: &str = "SELECT count(*) AS count, coalesce(sum(len), 0) AS len FROM objects";
        async move { self.read("sum up replaced blobs").one(query(SQL)).await }.boxed()
    }

    fn set_objects_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        let set = query("UPDATE objects SET since = ?1 WHERE since > ?1").bind(millis(now));
        async move { self.write("set times of blobs back").execute(set).await.map(drop) }.boxed()
    }
}
