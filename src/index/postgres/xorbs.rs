//! Xorbs in PostgreSQL: see [`XorbIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{Postgres, QueryBuilder, query};

use super::grants::insert_spent;
use super::lists::{BATCH_COUNT, hash_list};
use super::rows::{pack_chunks, row};
use super::{PostgresIndex, millis};
use crate::format::{ChunkRange, XorbHash};
use crate::index::error::IndexError;
use crate::index::rows::state_to_sql;
use crate::index::{
    ChunkColumns, NewXorb, Staging, Ticket, Totals, XorbContents, XorbIndex, XorbPart, XorbRow, XorbState,
};
use crate::runtime::clock::Timestamp;

impl XorbIndex for PostgresIndex {
    fn find_xorb(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbRow>, IndexError>> {
        const SQL: &str = "SELECT hash, crc64, layout, damaged_at IS NOT NULL AS is_damaged, replaced_at, incarnation \
             FROM visible_xorbs WHERE hash = $1";
        async move { self.read("find a xorb").find(query(SQL).bind(hash.as_bytes().as_slice())).await }.boxed()
    }

    fn find_chunks(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<ChunkColumns>, IndexError>> {
        const SQL: &str =
            "SELECT hash, hashes, schemes FROM xorb_chunks JOIN visible_xorbs ON id = xorb_id WHERE hash = $1";
        async move { self.read("find the chunks of a xorb").find(query(SQL).bind(hash.as_bytes().as_slice())).await }
            .boxed()
    }

    fn xorb_contents(&self, hashes: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<XorbContents>, IndexError>> {
        const HEAD: &str = "SELECT hash, layout, hashes, schemes FROM visible_xorbs JOIN xorb_chunks ON xorb_id = id \
             WHERE hash = ANY(";
        async move {
            let read = self.read("read the contents of xorbs");
            read.all_of(&hashes, |query| _ = query.push(HEAD)).await
        }
        .boxed()
    }

    fn xorb_parts(&self, wanted: Vec<(XorbHash, ChunkRange)>) -> BoxFuture<'_, Result<Vec<XorbPart>, IndexError>> {
        // A place behind every column, if a number is too large for `substring`.
        const SQL: &str = "SELECT hash, first, \
             substring(layout, least(greatest(first - 1, 0) * 8 + 1, 1 << 30)::int, \
                 least((count + least(first, 1)) * 8, 1 << 30)::int) AS layout, length(layout)::bigint AS layout_len, \
             substring(hashes, least(first * 32 + 1, 1 << 30)::int, least(count * 32, 1 << 30)::int) AS hashes, \
             length(hashes)::bigint AS hashes_len \
             FROM unnest($1, $2, $3) AS wanted (xorb, first, count) JOIN visible_xorbs ON hash = wanted.xorb \
             JOIN xorb_chunks ON xorb_id = id";
        async move {
            let mut parts = Vec::with_capacity(wanted.len());
            for batch in wanted.chunks(BATCH_COUNT) {
                let xorbs = hash_list(batch.iter().map(|(xorb, _)| xorb));
                let (firsts, counts): (Vec<i64>, Vec<i64>) =
                    batch.iter().map(|(_, chunks)| (i64::from(chunks.start()), i64::from(chunks.count()))).unzip();
                let select = query(SQL).bind(xorbs).bind(firsts).bind(counts);
                parts.extend(self.read("read parts of xorbs").all::<XorbPart>(select).await?);
            }
            Ok(parts)
        }
        .boxed()
    }

    fn stage_xorb(&self, hash: XorbHash, ticket: Ticket, now: Timestamp) -> BoxFuture<'_, Result<Staging, IndexError>> {
        // One statement decides: a new or staged row ends as staged, a visible one as live. A row
        // that is being deleted is not touched, and nothing is returned.
        const SQL: &str = "INSERT INTO xorbs (hash, state, since, ticket, incarnation) VALUES ($1, 0, $2, $3, $3) \
             ON CONFLICT (hash) DO UPDATE SET state = CASE xorbs.state WHEN 0 THEN 0 ELSE 1 END, \
                 since = greatest(xorbs.since, excluded.since), ticket = excluded.ticket, \
                 incarnation = CASE xorbs.state WHEN 0 THEN excluded.incarnation ELSE xorbs.incarnation END \
             WHERE xorbs.state IN (0, 1, 2) \
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
             SET state = 1, since = greatest(since, $1), serialized_len = $2, raw_len = $3, crc64 = $4, layout = $5, \
             verified_at = $6 \
             WHERE hash = $7 AND state = 0 AND ticket = $8 RETURNING id";
        const DESCRIBE: &str = "INSERT INTO xorb_chunks (xorb_id, hashes, schemes) VALUES ($1, $2, $3)";
        const SHARE: &str = "INSERT INTO xorb_domains (xorb_id, domain) VALUES ($1, $2)";
        const ADD: &str = "UPDATE totals \
             SET xorb_count = xorb_count + 1, serialized_len = serialized_len + $1, raw_len = raw_len + $2";
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
        const KNOWN: &str = "SELECT EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND domain = $1) \
             FROM visible_xorbs WHERE hash = $2";
        // The update changes nothing: it tells a row that another upload has entered meanwhile from
        // a xorb that does not exist.
        const SHARE: &str = "INSERT INTO xorb_domains (xorb_id, domain) \
             SELECT id, $1 FROM visible_xorbs WHERE hash = $2 \
             ON CONFLICT (xorb_id, domain) DO UPDATE SET domain = excluded.domain";
        let op = "share a xorb";
        async move {
            // Most uploads of an existing xorb come from an owner of it, and need no writer.
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
            let head = |query: &mut QueryBuilder<Postgres>| {
                query.push(HEAD).push_bind(owner.as_str()).push(") AND hash = ANY(");
            };
            self.read("find single chunks of others").all_of(&hashes, head).await
        }
        .boxed()
    }

    /// A client that is told that the server has a xorb does not upload it. So the xorb is touched,
    /// and a condemned one made live, before the response.
    fn renew_xorb(
        &self,
        hash: XorbHash,
        owner: Option<String>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        const KNOWN: &str = "SELECT 1::bigint FROM visible_xorbs WHERE hash = $1 AND damaged_at IS NULL AND \
             ($2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND domain = $2))";
        const RENEW: &str = "UPDATE xorbs SET state = 1, since = greatest(since, $3) WHERE hash = $1 AND state IN (1, 2) AND \
             damaged_at IS NULL AND ($2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND domain = $2))";
        let op = "renew a xorb";
        async move {
            // Most queries are about new xorbs, and need no writer.
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
            let abandon = query("UPDATE xorbs SET state = $1, since = $2 WHERE hash = $3 AND state = $4")
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
            let forget = query("DELETE FROM xorbs WHERE hash = $1 AND state = $2")
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
