//! Health of blobs in SQLite: see [`HealthIndex`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::collect::hide;
use super::grants::insert_spent;
use super::lists::after_bytes;
use super::rows::{pack_chunks, row};
use super::{SqliteIndex, millis};
use crate::format::{FileHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::health::{AffectedFiles, HealthIndex, HealthSums, XorbHealth};
use crate::index::{NewXorb, Ticket, rows};
use crate::runtime::clock::Timestamp;
use crate::runtime::incarnation::Incarnation;

/// A query for the columns of [`XorbHealth`], with this `WHERE` clause.
macro_rules! select_health {
    ($rest:literal) => {
        concat!(
            "SELECT hash, ticket, crc64, serialized_len, verified_at, damaged_at, incarnation FROM visible_xorbs WHERE ",
            $rest
        )
    };
}
pub(super) use select_health;

impl HealthIndex for SqliteIndex {
    fn find_health(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbHealth>, IndexError>> {
        const SQL: &str = select_health!("hash = ?");
        async move { self.read("find the health of a xorb").find(query(SQL).bind(hash.as_bytes().as_slice())).await }
            .boxed()
    }

    fn due_xorbs(&self, before: Timestamp, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>> {
        // NULL sorts before all numbers in SQLite, in the index as well.
        const SQL: &str = select_health!(
            "damaged_at IS NULL AND (verified_at IS NULL OR verified_at < ?) \
             ORDER BY verified_at LIMIT +?"
        );
        async move { self.read("list xorbs to be verified").all(query(SQL).bind(millis(before)).bind(limit)).await }
            .boxed()
    }

    fn damaged_after(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbHealth>, IndexError>> {
        const SQL: &str = select_health!("damaged_at IS NOT NULL AND hash > ? ORDER BY hash LIMIT +?");
        async move { self.read("list damaged xorbs").all(query(SQL).bind(after_bytes(after)).bind(limit)).await }
            .boxed()
    }

    fn health_sums(&self) -> BoxFuture<'_, Result<HealthSums, IndexError>> {
        const SQL: &str = "SELECT \
             (SELECT count(*) FROM visible_xorbs WHERE damaged_at IS NOT NULL) AS damaged_count, \
             (SELECT verified_at FROM visible_xorbs WHERE damaged_at IS NULL ORDER BY verified_at LIMIT 1) \
             AS oldest";
        async move { self.read("sum up the health of xorbs").one(query(SQL)).await }.boxed()
    }

    fn affected_files(&self, hash: XorbHash, limit: u32) -> BoxFuture<'_, Result<AffectedFiles, IndexError>> {
        const COUNT: &str = "SELECT count(*) FROM xorb_files JOIN files ON files.id = file_id \
             WHERE xorb_id = (SELECT id FROM xorbs WHERE hash = ?) AND removed_at IS NULL";
        const SQL: &str = "SELECT files.hash FROM xorb_files JOIN files ON files.id = file_id \
             WHERE xorb_id = (SELECT id FROM xorbs WHERE hash = ?) AND removed_at IS NULL ORDER BY file_id LIMIT +?";
        async move {
            let (read, bytes) = (self.read("list the files of a xorb"), hash.as_bytes().as_slice());
            let count: u64 = read.one(query(COUNT).bind(bytes)).await?;
            let files: Vec<FileHash> = read.all(query(SQL).bind(bytes).bind(limit)).await?;
            Ok(AffectedFiles { files, count })
        }
        .boxed()
    }

    fn mark_damaged(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "UPDATE xorbs SET damaged_at = ? \
             WHERE hash = ? AND state IN (1, 2) AND ticket = ? AND crc64 = ? AND damaged_at IS NULL";
        set_health(self, "mark a xorb as damaged", SQL, seen, now, true).boxed()
    }

    fn mark_sound(&self, seen: XorbHealth, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "UPDATE xorbs SET verified_at = ?, damaged_at = NULL \
             WHERE hash = ? AND state IN (1, 2) AND ticket = ? AND crc64 = ?";
        // If the blob was sound before, nothing changes for readers.
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

/// Changes the health of a xorb. If this affects readers, the transaction also increments the
/// generation, so that every process that serves this index drops its caches.
async fn set_health(
    index: &SqliteIndex,
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
    /// The blob that the row names already.
    Present,
    /// The blob of a pending object.
    Pending(Incarnation),
    /// A blob that no row and no object names.
    Unknown(Incarnation),
}

/// Writes the description of `blob` into the row of a xorb, and the name of `blob` if it is another
/// one. The error is of kind `Lost` if the row is no longer visible under this ticket, or if `blob`
/// is not what its variant says.
pub(super) async fn describe(
    index: &SqliteIndex,
    op: &'static str,
    xorb: NewXorb,
    ticket: Ticket,
    blob: NamedBlob,
    now: Timestamp,
) -> Result<(), IndexError> {
    const BEFORE: &str = "SELECT id, serialized_len, raw_len, damaged_at IS NOT NULL AS is_damaged FROM visible_xorbs \
         WHERE hash = ? AND ticket = ?";
    const TAKE_NAME: &str = "DELETE FROM objects WHERE hash = ? AND incarnation = ? AND state = 0";
    const IS_KNOWN: &str = "SELECT EXISTS (SELECT 1 FROM objects WHERE hash = ? AND incarnation = ?)";
    // The row gets a new ticket, so that the result of a running check of the previous blob has no
    // effect on this one. `replaced_at` is set only if the description of the same blob changes.
    const SET_ROW: &str = "UPDATE xorbs SET state = 1, since = max(since, ?1), serialized_len = ?2, raw_len = ?3, \
         crc64 = ?4, layout = ?5, incarnation = coalesce(?8, incarnation), \
         replaced_at = CASE WHEN ?8 IS NOT NULL THEN NULL \
             WHEN crc64 = ?4 AND layout = ?5 THEN replaced_at ELSE ?1 END, \
         damaged_at = NULL, verified_at = ?1, ticket = ?6 WHERE id = ?7";
    const SET_CHUNKS: &str = "INSERT OR REPLACE INTO xorb_chunks (xorb_id, hashes, schemes) VALUES (?, ?, ?)";
    const SUM: &str = "UPDATE totals SET serialized_len = serialized_len + ?, raw_len = raw_len + ?";
    const SHARE: &str = "INSERT OR IGNORE INTO xorb_domains (xorb_id, domain) VALUES (?, ?)";
    row! { Before { id: i64, serialized_len: i64, raw_len: i64, is_damaged: bool } }
    let (serialized_len, raw_len) = (xorb.layout.serialized_len().cast_signed(), xorb.layout.raw_len().cast_signed());
    let hash = xorb.hash.as_bytes().as_slice();
    let mut held = index.writing(op).await?;
    let mut tx = held.begin().await?;
    let before: Option<Before> = tx.find(query(BEFORE).bind(hash).bind(ticket.number())).await?;
    let Some(before) = before else { return Err(IndexError::lost(op, 0)) };
    let (new, is_as_expected) = match blob {
        NamedBlob::Present => (None, true),
        NamedBlob::Pending(new) => {
            let new = rows::incarnation_to_sql(new);
            (Some(new), tx.execute(query(TAKE_NAME).bind(hash).bind(new)).await? == 1)
        }
        NamedBlob::Unknown(new) => {
            let new = rows::incarnation_to_sql(new);
            (Some(new), !tx.one::<bool>(query(IS_KNOWN).bind(hash).bind(new)).await?)
        }
    };
    if !is_as_expected {
        return Err(IndexError::lost(op, 0));
    }
    let set_row = query(SET_ROW)
        .bind(millis(now))
        .bind(serialized_len)
        .bind(raw_len)
        .bind(xorb.crc64.cast_signed())
        .bind(xorb.layout.pack())
        .bind(Ticket::random().number())
        .bind(before.id)
        .bind(new);
    tx.execute(set_row).await?;
    let (hashes, schemes) = pack_chunks(&xorb.chunk_hashes, &xorb.schemes);
    tx.execute(query(SET_CHUNKS).bind(before.id).bind(hashes).bind(schemes)).await?;
    let sum = query(SUM).bind(serialized_len - before.serialized_len).bind(raw_len - before.raw_len);
    tx.execute(sum).await?;
    if let Some(owner) = xorb.owner {
        tx.execute(query(SHARE).bind(before.id).bind(owner)).await?;
    }
    if let Some(grant) = xorb.grant {
        tx.execute(insert_spent(grant)).await?;
    }
    // If a sound blob was replaced, cached layouts stay right: the old blob can still be read for a
    // while. In all other cases they became wrong.
    if before.is_damaged || new.is_none() {
        hide(&mut tx).await?;
    }
    tx.commit().await
}
