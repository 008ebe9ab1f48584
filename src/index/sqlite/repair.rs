//! Checks and repairs of the whole index in SQLite, page by page: see [`RepairIndex`].
//!
//! Each repair is one conditional transaction, so after a crash it is either complete or without
//! effect. This module repairs rows only. `service/fsck` decides what to repair in which order, and
//! also repairs blobs.

use std::collections::{HashMap, HashSet};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};
use sqlx::{QueryBuilder, query};

use super::collect::hide;
use super::health::{NamedBlob, describe, select_health};
use super::lists::{BATCH_COUNT, after_bytes, push_hashes};
use super::rows::{AnyTerms, pack_chunks, row};
use super::tx::Tx;
use super::{SqliteIndex, millis};
use crate::format::{FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::health::XorbHealth;
use crate::index::repair::{FaultPage, FileFault, FutureTimes, RepairIndex, TotalsError};
use crate::index::rows::incarnation_to_sql;
use crate::index::{NewXorb, Ticket, Totals};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// The maximum number of files on one page.
const PAGE_COUNT: u32 = 500;

/// A page ends when its files have this many bytes of terms. The last file of a page may have any
/// number of terms, because only 32 bytes for each of its xorbs are in memory.
const PAGE_TERMS_LEN: i64 = 4 << 20;

impl RepairIndex for SqliteIndex {
    fn health_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>> {
        const SQL: &str = select_health!("hash > ? ORDER BY hash LIMIT +?");
        async move { self.read("list the health of xorbs").all(query(SQL).bind(after_bytes(after)).bind(limit)).await }
            .boxed()
    }

    fn adopt_xorb(
        &self,
        xorb: NewXorb,
        incarnation: Incarnation,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        const INSERT: &str = "INSERT INTO xorbs \
             (hash, state, since, ticket, serialized_len, raw_len, crc64, layout, verified_at, incarnation) \
             VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7, ?2, ?8) ON CONFLICT (hash) DO NOTHING RETURNING id";
        const NAME: &str = "DELETE FROM objects WHERE hash = ? AND incarnation = ?";
        const DESCRIBE: &str = "INSERT INTO xorb_chunks (xorb_id, hashes, schemes) VALUES (?, ?, ?)";
        const ADD: &str = "UPDATE totals \
             SET xorb_count = xorb_count + 1, serialized_len = serialized_len + ?, raw_len = raw_len + ?";
        async move {
            let (serialized_len, raw_len) = (xorb.layout.serialized_len(), xorb.layout.raw_len());
            let (serialized_len, raw_len) = (serialized_len.cast_signed(), raw_len.cast_signed());
            let (hash, incarnation) = (xorb.hash.as_bytes().as_slice(), incarnation_to_sql(incarnation));
            let mut held = self.writing("adopt a xorb").await?;
            let mut tx = held.begin().await?;
            let insert = query(INSERT)
                .bind(hash)
                .bind(millis(now))
                .bind(ticket.number())
                .bind(serialized_len)
                .bind(raw_len)
                .bind(xorb.crc64.cast_signed())
                .bind(xorb.layout.pack())
                .bind(incarnation);
            let Some(id) = tx.find::<i64>(insert).await? else { return Ok(false) };
            tx.execute(query(NAME).bind(hash).bind(incarnation)).await?;
            let (hashes, schemes) = pack_chunks(&xorb.chunk_hashes, &xorb.schemes);
            tx.execute(query(DESCRIBE).bind(id).bind(hashes).bind(schemes)).await?;
            tx.execute(query(ADD).bind(serialized_len).bind(raw_len)).await?;
            tx.commit().await?;
            Ok(true)
        }
        .boxed()
    }

    fn adopt_blob(
        &self,
        xorb: NewXorb,
        ticket: Ticket,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>> {
        describe(self, "adopt a blob", xorb, ticket, NamedBlob::Unknown(incarnation), now).boxed()
    }

    fn restore_xorb(
        &self,
        xorb: NewXorb,
        was: Incarnation,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        const TAKE_NAME: &str = "DELETE FROM objects WHERE hash = ? AND incarnation = ? AND state = 0";
        // The trigger makes the previous name a dead object.
        const GO_LIVE: &str = "UPDATE xorbs SET state = 1, since = max(since, ?1), ticket = ?2, incarnation = ?3, \
             serialized_len = ?4, raw_len = ?5, crc64 = ?6, layout = ?7, verified_at = ?1, damaged_at = NULL, \
             replaced_at = NULL WHERE hash = ?8 AND state IN (0, 3) AND incarnation = ?9 RETURNING id";
        const DESCRIBE: &str = "INSERT OR REPLACE INTO xorb_chunks (xorb_id, hashes, schemes) VALUES (?, ?, ?)";
        const ADD: &str = "UPDATE totals \
             SET xorb_count = xorb_count + 1, serialized_len = serialized_len + ?, raw_len = raw_len + ?";
        async move {
            let (serialized_len, raw_len) = (xorb.layout.serialized_len(), xorb.layout.raw_len());
            let (serialized_len, raw_len) = (serialized_len.cast_signed(), raw_len.cast_signed());
            let (hash, new) = (xorb.hash.as_bytes().as_slice(), incarnation_to_sql(ticket.incarnation()));
            let mut held = self.writing("restore a xorb").await?;
            let mut tx = held.begin().await?;
            if tx.execute(query(TAKE_NAME).bind(hash).bind(new)).await? != 1 {
                return Ok(false);
            }
            let go_live = query(GO_LIVE)
                .bind(millis(now))
                .bind(ticket.number())
                .bind(new)
                .bind(serialized_len)
                .bind(raw_len)
                .bind(xorb.crc64.cast_signed())
                .bind(xorb.layout.pack())
                .bind(hash)
                .bind(incarnation_to_sql(was));
            let Some(id) = tx.find::<i64>(go_live).await? else { return Ok(false) };
            let (hashes, schemes) = pack_chunks(&xorb.chunk_hashes, &xorb.schemes);
            tx.execute(query(DESCRIBE).bind(id).bind(hashes).bind(schemes)).await?;
            tx.execute(query(ADD).bind(serialized_len).bind(raw_len)).await?;
            tx.commit().await?;
            Ok(true)
        }
        .boxed()
    }

    fn faulty_files(&self, after: Option<FileHash>) -> BoxFuture<'_, Result<FaultPage, IndexError>> {
        const SQL: &str = "SELECT id, hash, \
             (SELECT coalesce(sum(length(terms)), 0) FROM file_terms WHERE file_id = id) AS terms_len FROM files \
             WHERE hash > ? AND removed_at IS NULL AND registration NOT IN hidden ORDER BY hash LIMIT +?";
        row! { Checked { id: i64, hash: FileHash, terms_len: i64 } }
        async move {
            let mut held = self.reading("compare files with their references").await?;
            // One snapshot, because a file that is removed or registered between two statements
            // would look faulty.
            let mut tx = held.snapshot().await?;
            let (mut files, mut terms_len): (Vec<Checked>, i64) = (Vec::new(), 0);
            {
                let mut rows = tx.stream::<Checked>(query(SQL).bind(after_bytes(after)).bind(PAGE_COUNT));
                while terms_len < PAGE_TERMS_LEN
                    && let Some(file) = rows.try_next().await?
                {
                    terms_len = terms_len.saturating_add(file.terms_len);
                    files.push(file);
                }
            }
            let mut page = FaultPage { last: files.last().map(|file| file.hash), ..FaultPage::default() };
            for file in files {
                page.file_count += 1;
                page.faults.extend(compare(&mut tx, file.id, file.hash).await?.map(|(fault, _)| fault));
            }
            tx.rollback().await?;
            Ok(page)
        }
        .boxed()
    }

    fn rebuild_references(&self, file: FileHash) -> BoxFuture<'_, Result<bool, IndexError>> {
        const FORGET: &str = "DELETE FROM xorb_files WHERE file_id = ?";
        const REFER: &str = "INSERT INTO xorb_files (xorb_id, file_id) VALUES (?, ?)";
        // A condemned xorb becomes live, because it is referenced now, as after a registration.
        const REVIVE: &str = "UPDATE xorbs SET state = 1 WHERE id = ? AND state = 2";
        async move {
            let mut held = self.writing("rebuild the references of a file").await?;
            let mut tx = held.begin().await?;
            let find = query("SELECT id FROM files WHERE hash = ?").bind(file.as_bytes().as_slice());
            let Some(id) = tx.find::<i64>(find).await? else { return Ok(false) };
            let Some((fault, wanted)) = compare(&mut tx, id, file).await? else { return Ok(false) };
            if fault.is_unreadable || (fault.unreferenced.is_empty() && fault.surplus_count == 0) {
                return Ok(false);
            }
            tx.execute(query(FORGET).bind(id)).await?;
            for xorb_id in wanted.into_values() {
                tx.execute(query(REFER).bind(xorb_id).bind(id)).await?;
                tx.execute(query(REVIVE).bind(xorb_id)).await?;
            }
            tx.commit().await?;
            Ok(true)
        }
        .boxed()
    }

    fn totals_drift(&self) -> BoxFuture<'_, Result<TotalsError, IndexError>> {
        // One statement, so one snapshot.
        const SQL: &str = "SELECT counted - xorb_count AS xorb_count, serialized - serialized_len AS serialized_len, \
             raw - raw_len AS raw_len FROM totals, \
             (SELECT count(*) AS counted, coalesce(sum(x.serialized_len), 0) AS serialized, \
             coalesce(sum(x.raw_len), 0) AS raw FROM visible_xorbs AS x)";
        async move { self.read("add up the xorbs").one(query(SQL)).await }.boxed()
    }

    fn repair_totals(&self, drift: TotalsError) -> BoxFuture<'_, Result<Totals, IndexError>> {
        const SQL: &str = "UPDATE totals SET xorb_count = xorb_count + ?, serialized_len = serialized_len + ?, \
             raw_len = raw_len + ? RETURNING xorb_count, serialized_len, raw_len";
        let op = "repair the totals";
        async move {
            let repair = query(SQL).bind(drift.xorb_count).bind(drift.serialized_len).bind(drift.raw_len);
            let totals: Vec<Totals> = self.write(op).all(repair).await?;
            totals.into_iter().next().ok_or_else(|| IndexError::lost(op, 0))
        }
        .boxed()
    }

    fn future_times(&self, than: Timestamp) -> BoxFuture<'_, Result<FutureTimes, IndexError>> {
        // One statement, so one snapshot. `max` of several arguments is NULL if any argument is.
        const SQL: &str = "SELECT count(*) AS xorb_count, coalesce(max(latest), 0) AS latest, \
             (SELECT max(collected_at, registered_at) FROM visibility) AS collected_at FROM \
             (SELECT max(since, coalesce(verified_at, 0), coalesce(replaced_at, 0)) AS latest FROM xorbs) WHERE latest > ?";
        row! { Times { xorb_count: u64, latest: Timestamp, collected_at: Timestamp } }
        async move {
            let times: Times = self.read("look for times in the future").one(query(SQL).bind(millis(than))).await?;
            let collected = Some(times.collected_at).filter(|collected| *collected > than);
            let latest = collected.into_iter().chain((times.xorb_count > 0).then_some(times.latest)).max();
            Ok(FutureTimes { xorb_count: times.xorb_count, has_collection: collected.is_some(), latest })
        }
        .boxed()
    }

    fn clamp_times(
        &self,
        after: Option<XorbHash>,
        limit: u32,
        than: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<XorbHash>, IndexError>> {
        const LAST: &str = "SELECT hash FROM (SELECT hash FROM xorbs WHERE hash > ? ORDER BY hash LIMIT +?) \
             ORDER BY hash DESC LIMIT 1";
        const TOUCHED: &str = "UPDATE xorbs SET since = ?4, state = CASE state WHEN 2 THEN 1 ELSE state END \
             WHERE hash > ?1 AND hash <= ?2 AND since > ?3";
        const VERIFIED: &str =
            "UPDATE xorbs SET verified_at = NULL WHERE hash > ?1 AND hash <= ?2 AND verified_at > ?3";
        const REPLACED: &str = "UPDATE xorbs SET replaced_at = ?4 WHERE hash > ?1 AND hash <= ?2 AND replaced_at > ?3";
        let op = "set times back";
        async move {
            let after = after_bytes(after);
            let last: Option<XorbHash> = self.read(op).find(query(LAST).bind(after.as_slice()).bind(limit)).await?;
            let Some(last) = last else { return Ok(None) };
            let mut held = self.writing(op).await?;
            let mut tx = held.begin().await?;
            let of_page = |sql: &'static str| {
                query(sql).bind(after.as_slice()).bind(last.as_bytes().as_slice()).bind(millis(than))
            };
            tx.execute(of_page(TOUCHED).bind(millis(now))).await?;
            tx.execute(of_page(VERIFIED)).await?;
            if tx.execute(of_page(REPLACED).bind(millis(now))).await? > 0 {
                // Servers cache `replaced_at`.
                hide(&mut tx).await?;
            }
            tx.commit().await?;
            Ok(Some(last))
        }
        .boxed()
    }

    fn set_collection_back(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        const SQL: &str =
            "UPDATE visibility SET collected_at = min(collected_at, ?1), registered_at = min(registered_at, ?1)";
        async move { self.write("set the last collection back").execute(query(SQL).bind(millis(now))).await.map(drop) }
            .boxed()
    }
}

/// The fault of a file, and the ids of the xorbs that it should reference; `None` if the file has
/// no fault.
async fn compare(
    tx: &mut Tx<'_>,
    id: i64,
    file: FileHash,
) -> Result<Option<(FileFault, HashMap<XorbHash, i64>)>, IndexError> {
    const REFERENCES: &str = "SELECT hash, id FROM xorb_files JOIN visible_xorbs ON id = xorb_id WHERE file_id = ?";
    const COUNT: &str = "SELECT count(*) FROM xorb_files WHERE file_id = ?";
    row! { Xorb { hash: XorbHash, id: i64 } }
    let none = FileFault { file, lost: Vec::new(), unreferenced: Vec::new(), surplus_count: 0, is_unreadable: false };
    let Some(named) = named_xorbs(tx, id).await? else {
        return Ok(Some((FileFault { is_unreadable: true, ..none }, HashMap::new())));
    };
    let rows: Vec<Xorb> = tx.all(query(REFERENCES).bind(id)).await?;
    let referenced: HashMap<XorbHash, i64> = rows.into_iter().map(|xorb| (xorb.hash, xorb.id)).collect();
    let reference_count: u64 = tx.one(query(COUNT).bind(id)).await?;
    let referenced_count = named.iter().filter(|xorb| referenced.contains_key(xorb)).count() as u64;
    let mut fault = FileFault { surplus_count: reference_count.saturating_sub(referenced_count), ..none };
    let mut wanted: HashMap<XorbHash, i64> =
        referenced.iter().filter(|(xorb, _)| named.contains(*xorb)).map(|(xorb, id)| (*xorb, *id)).collect();
    let open: Vec<XorbHash> = named.iter().filter(|xorb| !referenced.contains_key(xorb)).copied().collect();
    for batch in open.chunks(BATCH_COUNT) {
        let mut find = QueryBuilder::new("SELECT hash, id FROM visible_xorbs WHERE hash IN (");
        push_hashes(&mut find, batch);
        wanted.extend(tx.all::<Xorb>(find.build()).await?.into_iter().map(|xorb| (xorb.hash, xorb.id)));
    }
    for xorb in open {
        if wanted.contains_key(&xorb) { fault.unreferenced.push(xorb) } else { fault.lost.push(xorb) }
    }
    let is_faulty = !fault.lost.is_empty() || !fault.unreferenced.is_empty() || fault.surplus_count > 0;
    Ok(is_faulty.then_some((fault, wanted)))
}

/// The xorbs in the terms of a file; `None` if a run of terms does not parse.
async fn named_xorbs(tx: &mut Tx<'_>, file_id: i64) -> Result<Option<HashSet<XorbHash>>, IndexError> {
    let mut named = HashSet::new();
    let mut rows = tx.stream(query("SELECT terms FROM file_terms WHERE file_id = ?").bind(file_id));
    while let Some(AnyTerms(terms)) = rows.try_next().await? {
        let Some(terms) = terms else { return Ok(None) };
        named.extend(terms.iter().map(|term| term.xorb));
    }
    Ok(Some(named))
}

#[cfg(test)]
impl SqliteIndex {
    /// Runs a statement that violates foreign keys, as a damaged disk or a bug would.
    pub(crate) async fn tamper(&self, sql: &str) {
        let sql = format!("PRAGMA foreign_keys = OFF; {sql}; PRAGMA foreign_keys = ON");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(self.writer.acquire().await.unwrap().parts().0).await.unwrap();
    }
}
