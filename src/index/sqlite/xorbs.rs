//! Xorbs in SQLite: see [`XorbIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{QueryBuilder, Sqlite, query};

use super::grants::insert_spent;
use super::lists::BATCH_COUNT;
use super::rows::{pack_chunks, row};
use super::{SqliteIndex, millis};
use crate::format::{ChunkRange, XorbHash};
use crate::index::error::IndexError;
use crate::index::rows::state_to_sql;
use crate::index::{
    ChunkColumns, NewXorb, Staging, Ticket, Totals, XorbContents, XorbIndex, XorbPart, XorbRow, XorbState,
};
use crate::runtime::clock::Timestamp;

impl XorbIndex for SqliteIndex {
    fn find_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>> {
        const SQL: &str = "SELECT hash, crc64, layout, damaged_at IS NOT NULL AS is_damaged, replaced_at, incarnation \
             FROM visible_xorbs WHERE hash = ?";
        async move { self.read("find a xorb").find(query(SQL).bind(hash.as_bytes().as_slice())).await }.boxed()
    }

    fn find_chunks(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<ChunkColumns>, IndexError>> {
        const SQL: &str =
            "SELECT hash, hashes, schemes FROM xorb_chunks JOIN visible_xorbs ON id = xorb_id WHERE hash = ?";
        async move { self.read("find the chunks of a xorb").find(query(SQL).bind(hash.as_bytes().as_slice())).await }
            .boxed()
    }

    fn xorb_contents(&self, hashes: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<XorbContents>, IndexError>> {
        const HEAD: &str = "SELECT hash, layout, hashes, schemes FROM visible_xorbs JOIN xorb_chunks ON xorb_id = id \
             WHERE hash IN (";
        async move {
            let read = self.read("read the contents of xorbs");
            read.all_of(&hashes, |query| _ = query.push(HEAD)).await
        }
        .boxed()
    }

    fn xorb_parts(&self, wanted: Vec<(XorbHash, ChunkRange)>) -> BoxFuture<'_, Result<Vec<XorbPart>, IndexError>> {
        // CROSS JOIN fixes the order of the tables: SQLite looks up each wanted xorb by its hash,
        // and does not scan the table of xorbs.
        const TAIL: &str = ") SELECT hash, first, substr(layout, max(first - 1, 0) * 8 + 1, (count + min(first, 1)) * 8) AS layout, \
             length(layout) AS layout_len, substr(hashes, first * 32 + 1, count * 32) AS hashes, length(hashes) AS hashes_len \
             FROM wanted CROSS JOIN visible_xorbs ON hash = wanted.xorb \
             JOIN xorb_chunks ON xorb_id = id";
        async move {
            let mut parts = Vec::with_capacity(wanted.len());
            for batch in wanted.chunks(BATCH_COUNT) {
                let mut query = QueryBuilder::new("WITH wanted (xorb, first, count) AS (");
                query.push_values(batch, |mut row, (xorb, chunks)| {
                    row.push_bind(xorb.as_bytes().as_slice()).push_bind(chunks.start()).push_bind(chunks.count());
                });
                query.push(TAIL);
                parts.extend(self.read("read parts of xorbs").all::<XorbPart>(query.build()).await?);
            }
            Ok(parts)
        }
        .boxed()
    }

    fn stage_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<Staging, IndexError>> {
        // One statement decides: a new or staged row becomes staged, and a visible one live. A row
        // that is being deleted is not changed, and the statement returns no row.
        const SQL: &str = "INSERT INTO xorbs (hash, state, since, ticket, incarnation) VALUES (?1, 0, ?2, ?3, ?3) \
             ON CONFLICT (hash) DO UPDATE SET \
                 state = CASE state WHEN 0 THEN 0 ELSE 1 END, since = max(since, excluded.since), ticket = excluded.ticket, \
                 incarnation = CASE state WHEN 0 THEN excluded.incarnation ELSE incarnation END \
             WHERE state IN (0, 1, 2) \
             RETURNING state, damaged_at IS NOT NULL AS is_damaged, coalesce(serialized_len, 0) AS serialized_len";
        row! { Staged { state: XorbState, is_damaged: bool, serialized_len: u64 } }
        async move {
            let query = query(SQL).bind(hash.as_bytes().as_slice()).bind(millis(now)).bind(ticket.number());
            let rows: Vec<Staged> = self.write("stage a xorb").all(query).await?;
            Ok(match rows.first() {
                None => Staging::Deleting,
                Some(Staged { state: XorbState::Staged, .. }) => Staging::Staged,
                Some(Staged { is_damaged: true, .. }) => Staging::Damaged,
                Some(Staged { serialized_len, .. }) => Staging::Live { serialized_len: *serialized_len },
            })
        }
        .boxed()
    }

    /// One transaction writes the layout, chunk hashes, owner, spent grant and totals.
    fn publish_xorb(&self, xorb: NewXorb, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        const GO_LIVE: &str = "UPDATE xorbs \
             SET state = 1, since = max(since, ?), serialized_len = ?, raw_len = ?, crc64 = ?, layout = ?, \
             verified_at = ? \
             WHERE hash = ? AND state = 0 AND ticket = ? RETURNING id";
        const DESCRIBE: &str = "INSERT INTO xorb_chunks (xorb_id, hashes, schemes) VALUES (?, ?, ?)";
        const SHARE: &str = "INSERT INTO xorb_domains (xorb_id, domain) VALUES (?, ?)";
        const ADD: &str = "UPDATE totals \
             SET xorb_count = xorb_count + 1, serialized_len = serialized_len + ?, raw_len = raw_len + ?";
        let op = "make a xorb live";
        async move {
            let mut held = self.writing(op).await?;
            let (serialized_len, raw_len) = (xorb.layout.serialized_len(), xorb.layout.raw_len());
            let (serialized_len, raw_len) = (serialized_len.cast_signed(), raw_len.cast_signed());
            let mut tx = held.begin().await?;
            let go_live = query(GO_LIVE)
                .bind(millis(now))
                .bind(serialized_len)
                .bind(raw_len)
                .bind(xorb.crc64.cast_signed())
                .bind(xorb.layout.pack())
                .bind(millis(now))
                .bind(xorb.hash.as_bytes().as_slice())
                .bind(ticket.number());
            let id: Option<i64> = tx.find(go_live).await?;
            let Some(id) = id else { return Err(IndexError::lost(op, 0)) };
            let (hashes, schemes) = pack_chunks(&xorb.chunk_hashes, &xorb.schemes);
            tx.execute(query(DESCRIBE).bind(id).bind(hashes).bind(schemes)).await?;
            if let Some(owner) = xorb.owner {
                tx.execute(query(SHARE).bind(id).bind(owner)).await?;
            }
            if let Some(grant) = xorb.grant {
                tx.execute(insert_spent(grant)).await?;
            }
            tx.execute(query(ADD).bind(serialized_len).bind(raw_len)).await?;
            tx.commit().await
        }
        .boxed()
    }

    fn share_xorb(&self, hash: XorbHash, owner: String) -> BoxFuture<'_, Result<bool, IndexError>> {
        const KNOWN: &str = "SELECT EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND domain = ?) \
             FROM visible_xorbs WHERE hash = ?";
        // If another upload has inserted the same row meanwhile, the update changes nothing but
        // counts as one changed row. So no changed row means that the xorb is not visible.
        const SHARE: &str = "INSERT INTO xorb_domains (xorb_id, domain) \
             SELECT id, ? FROM visible_xorbs WHERE hash = ? \
             ON CONFLICT DO UPDATE SET domain = excluded.domain";
        let op = "share a xorb";
        async move {
            // Most uploads of an existing xorb come from one of its owners. They need no writing
            // connection.
            let known = query(KNOWN).bind(owner.as_str()).bind(hash.as_bytes().as_slice());
            match self.read(op).find::<bool>(known).await? {
                None => return Ok(false),
                Some(true) => return Ok(true),
                Some(false) => {}
            }
            let share = query(SHARE).bind(owner.as_str()).bind(hash.as_bytes().as_slice());
            Ok(self.write(op).execute(share).await? == 1)
        }
        .boxed()
    }

    fn foreign_single_chunks(
        &self,
        hashes: Vec<XorbHash>,
        owner: String,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        // A packed layout has 8 bytes per chunk.
        const HEAD: &str = "SELECT hash FROM visible_xorbs WHERE length(layout) = 8 AND NOT EXISTS \
             (SELECT 1 FROM xorb_domains AS d WHERE d.xorb_id = visible_xorbs.id AND d.domain = ";
        async move {
            let head = |query: &mut QueryBuilder<Sqlite>| {
                query.push(HEAD).push_bind(owner.as_str()).push(") AND hash IN (");
            };
            self.read("find single chunks of others").all_of(&hashes, head).await
        }
        .boxed()
    }

    /// If the response says that the server has the xorb, the client does not upload it. So before
    /// the response the xorb is touched, and a condemned one becomes live.
    fn renew_xorb(
        &self,
        hash: XorbHash,
        owner: Option<String>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        const KNOWN: &str = "SELECT 1 FROM visible_xorbs WHERE hash = ?1 AND damaged_at IS NULL AND \
             (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND domain = ?2))";
        const RENEW: &str = "UPDATE xorbs SET state = 1, since = max(since, ?3) WHERE hash = ?1 AND state IN (1, 2) AND \
             damaged_at IS NULL AND (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND domain = ?2))";
        let op = "renew a xorb";
        async move {
            // Most queries are for xorbs that do not exist. They need no writing connection.
            let known = query(KNOWN).bind(hash.as_bytes().as_slice()).bind(owner.as_deref());
            if self.read(op).find::<i64>(known).await?.is_none() {
                return Ok(false);
            }
            let renew = query(RENEW).bind(hash.as_bytes().as_slice()).bind(owner.as_deref()).bind(millis(now));
            Ok(self.write(op).execute(renew).await? == 1)
        }
        .boxed()
    }

    fn abandon_xorb(&self, hash: XorbHash, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        async move {
            let abandon = query("UPDATE xorbs SET state = ?, since = ? WHERE hash = ? AND state = ?")
                .bind(state_to_sql(XorbState::Deleting))
                .bind(millis(now))
                .bind(hash.as_bytes().as_slice())
                .bind(state_to_sql(XorbState::Staged));
            Ok(self.write("give up a staged xorb").execute(abandon).await? == 1)
        }
        .boxed()
    }

    fn forget_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<bool, IndexError>> {
        async move {
            let forget = query("DELETE FROM xorbs WHERE hash = ? AND state = ?")
                .bind(hash.as_bytes().as_slice())
                .bind(state_to_sql(XorbState::Deleting));
            Ok(self.write("forget a deleted xorb").execute(forget).await? == 1)
        }
        .boxed()
    }

    fn unfinished_xorbs(&self) -> BoxFuture<'_, Result<Vec<(XorbHash, XorbState)>, IndexError>> {
        const SQL: &str = "SELECT hash, state FROM xorbs WHERE state IN (0, 3)";
        row! { Unfinished { hash: XorbHash, state: XorbState } }
        async move {
            let rows: Vec<Unfinished> = self.read("list unfinished xorbs").all(query(SQL)).await?;
            Ok(rows.into_iter().map(|row| (row.hash, row.state)).collect())
        }
        .boxed()
    }

    fn totals(&self) -> BoxFuture<'_, Result<Totals, IndexError>> {
        const SQL: &str = "SELECT xorb_count, serialized_len, raw_len FROM totals";
        async move { self.read("read the totals").one(query(SQL)).await }.boxed()
    }

    fn list_xorbs(&self) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        async move { self.read("list xorbs").all(query("SELECT hash FROM visible_xorbs")).await }.boxed()
    }
}
