//! Health of blobs in PostgreSQL: see [`HealthIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::collect::hide;
use super::grants::insert_spent;
use super::lists::after_bytes;
use super::rows::{pack_chunks, row};
use super::{PostgresIndex, millis};
use crate::format::{FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::health::{AffectedFiles, HealthIndex, HealthSums, XorbHealth};
use crate::index::{NewXorb, Ticket, rows};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// Columns of [`XorbHealth`].
macro_rules! select_health {
    ($rest:literal) => {
        concat!(
            "SELECT hash, ticket, crc64, serialized_len, verified_at, damaged_at, incarnation FROM visible_xorbs WHERE ",
            $rest
        )
    };
}
pub(super) use select_health;

impl HealthIndex for PostgresIndex {
    fn find_health(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbHealth>, IndexError>> {
        const SQL: &str = select_health!("hash = $1");
        async move { self.read("find the health of a xorb").find(query(SQL).bind(hash.as_bytes().as_slice())).await }
            .boxed()
    }

    fn due_xorbs(&self, before: Timestamp, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>> {
        // NULL sorts before all numbers in PostgreSQL, in the index as well.
        const SQL: &str = select_health!(
            "damaged_at IS NULL AND (verified_at IS NULL OR verified_at < $1) \
             ORDER BY verified_at NULLS FIRST LIMIT $2"
        );
        async move {
            self.read("list xorbs to be verified").all(query(SQL).bind(millis(before)).bind(i64::from(limit))).await
        }
        .boxed()
    }

    fn damaged_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>> {
        const SQL: &str = select_health!("damaged_at IS NOT NULL AND hash > $1 ORDER BY hash LIMIT $2");
        async move { self.read("list damaged xorbs").all(query(SQL).bind(after_bytes(after)).bind(i64::from(limit))).await }
            .boxed()
    }

    fn health_sums(&self) -> BoxFuture<'_, Result<HealthSums, IndexError>> {
        const SQL: &str = "SELECT \
             (SELECT count(*) FROM visible_xorbs WHERE damaged_at IS NOT NULL) AS damaged_count, \
             (SELECT verified_at FROM visible_xorbs WHERE damaged_at IS NULL ORDER BY verified_at NULLS FIRST LIMIT 1) \
             AS oldest";
        async move { self.read("sum up the health of xorbs").one(query(SQL)).await }.boxed()
    }

    fn affected_files(&self, hash: XorbHash, limit: u32) -> BoxFuture<'_, Result<AffectedFiles, IndexError>> {
        const COUNT: &str = "SELECT count(*) FROM xorb_files JOIN files ON files.id = file_id \
             WHERE xorb_id = (SELECT id FROM xorbs WHERE hash = $1) AND removed_at IS NULL";
        const SQL: &str = "SELECT files.hash FROM xorb_files JOIN files ON files.id = file_id \
             WHERE xorb_id = (SELECT id FROM xorbs WHERE hash = $1) AND removed_at IS NULL ORDER BY file_id LIMIT $2";
        async move {
            let (read, bytes) = (self.read("list the files of a xorb"), hash.as_bytes().as_slice());
            let count: u64 = read.one(query(COUNT).bind(bytes)).await?;
            let files: Vec<FileHash> = read.all(query(SQL).bind(bytes).bind(i64::from(limit))).await?;
            Ok(AffectedFiles { files, count })
        }
        .boxed()
    }

    fn mark_damaged(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "UPDATE xorbs SET damaged_at = $1 \
             WHERE hash = $2 AND state IN (1, 2) AND ticket = $3 AND crc64 = $4 AND damaged_at IS NULL";
        set_health(self, "mark a xorb as damaged", SQL, seen, now, true).boxed()
    }

    fn mark_sound(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "UPDATE xorbs SET verified_at = $1, damaged_at = NULL \
             WHERE hash = $2 AND state IN (1, 2) AND ticket = $3 AND crc64 = $4";
        // For readers nothing changes if it was sound before.
        set_health(self, "mark a xorb as valid", SQL, seen, now, seen.damaged_at.is_some()).boxed()
    }

    fn describe_xorb_again(
        &self,
        xorb: NewXorb,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<(), IndexError>> {
        describe(self, "describe a repaired xorb", xorb, ticket, NamedBlob::Present, now).boxed()
    }
}

/// Changes the health of a xorb. If readers are affected, the generation tells every process that
/// serves this index.
async fn set_health(
    index: &PostgresIndex,
    op: &'static str,
    sql: &'static str,
    seen: XorbHealth,
    now: Timestamp,
    affects_readers: bool,
) -> Result<bool, IndexError> {
    let mut held = index.writing(op).await?;
    let mut tx = held.begin().await?;
    let set = query(sql).bind(millis(now)).bind(seen.hash.as_bytes().as_slice());
    let changed = tx.execute(set.bind(seen.ticket.number()).bind(seen.crc64.cast_signed())).await?;
    if changed == 1 && affects_readers {
        hide(&mut tx).await?;
    }
    tx.commit().await?;
    Ok(changed == 1)
}

/// The blob that the row of a xorb is to name.
#[derive(Clone, Copy, Debug)]
pub(super) enum NamedBlob {
    /// The present one.
    Present,
    /// That of a pending object.
    Pending(Incarnation),
    /// One that no row and no object names.
    Unknown(Incarnation),
}

/// Describes the present blob of a xorb, or another one that takes its place.
pub(super) async fn describe(
    index: &PostgresIndex,
    op: &'static str,
    xorb: NewXorb,
    ticket: Ticket,
    blob: NamedBlob,
    now: Timestamp,
) -> Result<(), IndexError> {
    const BEFORE: &str = "SELECT id, serialized_len, raw_len, damaged_at IS NOT NULL AS is_damaged FROM visible_xorbs \
         WHERE hash = $1 AND ticket = $2";
    const NAME: &str = "DELETE FROM objects WHERE hash = $1 AND incarnation = $2 AND state = 0";
    const IS_KNOWN: &str = "SELECT EXISTS (SELECT 1 FROM objects WHERE hash = $1 AND incarnation = $2)";
    // A new ticket: the result of a running check of the previous blob must not apply to this one.
    const HEAL: &str = "UPDATE xorbs SET state = 1, since = greatest(since, $1), serialized_len = $2, raw_len = $3, \
         crc64 = $4, layout = $5, incarnation = coalesce($8, incarnation), \
         replaced_at = CASE WHEN $8 IS NOT NULL THEN NULL \
             WHEN crc64 = $4 AND layout = $5 THEN replaced_at ELSE $1 END, \
         damaged_at = NULL, verified_at = $1, ticket = $6 WHERE id = $7";
    const DESCRIBE: &str = "INSERT INTO xorb_chunks (xorb_id, hashes, schemes) VALUES ($1, $2, $3) \
         ON CONFLICT (xorb_id) DO UPDATE SET hashes = excluded.hashes, schemes = excluded.schemes";
    const SUM: &str = "UPDATE totals SET serialized_len = serialized_len + $1, raw_len = raw_len + $2";
    const SHARE: &str = "INSERT INTO xorb_domains (xorb_id, domain) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    row! { Before { id: i64, serialized_len: i64, raw_len: i64, is_damaged: bool } }
    let (serialized_len, raw_len) = (xorb.layout.serialized_len().cast_signed(), xorb.layout.raw_len().cast_signed());
    let hash = xorb.hash.as_bytes().as_slice();
    let mut held = index.writing(op).await?;
    let mut tx = held.begin().await?;
    let before: Option<Before> = tx.find(query(BEFORE).bind(hash).bind(ticket.number())).await?;
    let Some(before) = before else { return Err(IndexError::lost(op, 0)) };
    let (new, is_free) = match blob {
        NamedBlob::Present => (None, true),
        NamedBlob::Pending(new) => {
            let new = rows::incarnation_to_sql(new);
            (Some(new), tx.execute(query(NAME).bind(hash).bind(new)).await? == 1)
        }
        NamedBlob::Unknown(new) => {
            let new = rows::incarnation_to_sql(new);
            (Some(new), !tx.one::<bool>(query(IS_KNOWN).bind(hash).bind(new)).await?)
        }
    };
    if !is_free {
        return Err(IndexError::lost(op, 0));
    }
    let heal = query(HEAL)
        .bind(millis(now))
        .bind(serialized_len)
        .bind(raw_len)
        .bind(xorb.crc64.cast_signed())
        .bind(xorb.layout.pack())
        .bind(Ticket::random().number())
        .bind(before.id)
        .bind(new);
    tx.execute(heal).await?;
    let (hashes, schemes) = pack_chunks(&xorb.chunk_hashes, &xorb.schemes);
    tx.execute(query(DESCRIBE).bind(before.id).bind(hashes).bind(schemes)).await?;
    let sum = query(SUM).bind(serialized_len - before.serialized_len).bind(raw_len - before.raw_len);
    tx.execute(sum).await?;
    if let Some(owner) = xorb.owner {
        tx.execute(query(SHARE).bind(before.id).bind(owner)).await?;
    }
    if let Some(grant) = xorb.grant {
        tx.execute(insert_spent(grant)).await?;
    }
    // A sound blob that was replaced can be read for a while, as it was described. But the other
    // servers must not use its description for longer: they would sign URLs for it after its end.
    if before.is_damaged || new.is_none() || tx.own_lock().is_some() {
        hide(&mut tx).await?;
    }
    tx.commit().await
}
