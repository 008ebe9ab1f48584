//! Times in the future, written by a clock that ran ahead: finds them, and sets them back.

use sqlx::SqliteConnection;

use super::collect::hide;
use super::files::release;
use super::health::after_bytes;
use super::repair::xorb_hash;
use super::write::{Write, statement};
use super::{SqliteIndex, get, map, millis};
use crate::format::XorbHash;
use crate::index::error::IndexError;
use crate::index::health::FutureTimes;
use crate::runtime::clock::Timestamp;

impl SqliteIndex {
    pub(super) async fn read_future_times(&self, than: Timestamp) -> Result<FutureTimes, IndexError> {
        // One statement, so one snapshot. With several arguments, `max` is NULL if one of them is.
        const SQL: &str = "SELECT count(*), coalesce(max(latest), 0), (SELECT max(collected_at, registered_at) FROM visibility) FROM \
             (SELECT max(since, coalesce(verified_at, 0), coalesce(replaced_at, 0)) AS latest FROM xorbs) WHERE latest > ?";
        let op = "look for times in the future";
        let row = sqlx::query(SQL).bind(millis(than)).fetch_one(&self.readers).await.map_err(|error| map(op, error))?;
        let xorb_count = get::<i64>(op, &row, 0)?.cast_unsigned();
        let (latest, collected): (i64, i64) = (get(op, &row, 1)?, get(op, &row, 2)?);
        let collected = Some(collected).filter(|collected| *collected > millis(than));
        let latest = collected.into_iter().chain((xorb_count > 0).then_some(latest)).max();
        let has_collection = collected.is_some();
        Ok(FutureTimes {
            xorb_count,
            has_collection,
            latest: latest.map(|latest| Timestamp::from_millis(latest.cast_unsigned())),
        })
    }

    pub(super) async fn write_times_back(
        &self,
        after: Option<XorbHash>,
        limit: u32,
        than: Timestamp,
        now: Timestamp,
    ) -> Result<Option<XorbHash>, IndexError> {
        const LAST: &str = "SELECT hash FROM (SELECT hash FROM xorbs WHERE hash > ? ORDER BY hash LIMIT ?) \
             ORDER BY hash DESC LIMIT 1";
        let op = "set times back";
        let failed = |error| map(op, error);
        let row = sqlx::query(LAST).bind(after_bytes(after)).bind(limit).fetch_optional(&self.readers).await;
        let Some(row) = row.map_err(failed)? else { return Ok(None) };
        let last = xorb_hash(op, &row, 0)?;
        let mut connection = self.writer.acquire().await.map_err(failed)?;
        let set = set_back(&mut connection, op, &after_bytes(after), &last, (millis(than), millis(now))).await;
        release(connection, set.is_ok()).await;
        set.map(|()| Some(last))
    }

    pub(super) async fn write_collection_back(&self, now: Timestamp) -> Result<(), IndexError> {
        sqlx::query(
            "UPDATE visibility SET collected_at = min(collected_at, ?1), registered_at = min(registered_at, ?1)",
        )
        .bind(millis(now))
        .execute(&self.writer)
        .await
        .map_err(|error| map("set the last collection back", error))?;
        Ok(())
    }
}

async fn set_back(
    connection: &mut SqliteConnection,
    op: &'static str,
    after: &[u8],
    last: &XorbHash,
    (than, now): (i64, i64),
) -> Result<(), IndexError> {
    const TOUCHED: &str = "UPDATE xorbs SET since = ?4, state = CASE state WHEN 2 THEN 1 ELSE state END \
         WHERE hash > ?1 AND hash <= ?2 AND since > ?3";
    const VERIFIED: &str = "UPDATE xorbs SET verified_at = NULL WHERE hash > ?1 AND hash <= ?2 AND verified_at > ?3";
    const REPLACED: &str = "UPDATE xorbs SET replaced_at = ?4 WHERE hash > ?1 AND hash <= ?2 AND replaced_at > ?3";
    let failed = |error| map(op, error);
    let last = last.as_bytes().as_slice();
    let mut transaction = Write::begin(op, connection).await?;
    let of_page = |sql: &'static str| sqlx::query(sql).bind(after).bind(last).bind(than);
    of_page(TOUCHED).bind(now).execute(statement(op, &mut transaction)?).await.map_err(failed)?;
    of_page(VERIFIED).execute(statement(op, &mut transaction)?).await.map_err(failed)?;
    let replaced = of_page(REPLACED).bind(now).execute(statement(op, &mut transaction)?).await.map_err(failed)?;
    if replaced.rows_affected() > 0 {
        // Servers cache it.
        hide(op, &mut transaction).await?;
    }
    transaction.commit().await
}
