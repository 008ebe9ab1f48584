//! The step of a xorb from staged to live.
//!
//! One transaction writes the layout, chunk hashes, owner, spent grant and totals. The blob must be
//! durable before. If another upload or a cleanup has taken the staged row, the error is
//! [`Lost`](crate::index::IndexErrorKind::Lost), and nothing is changed.

use sqlx::SqliteConnection;

use super::write::{Write, statement};
use super::{get, grants, map, millis};
use crate::index::error::IndexError;
use crate::index::{NewXorb, Ticket};
use crate::runtime::clock::Timestamp;

pub(super) async fn publish(
    connection: &mut SqliteConnection,
    op: &'static str,
    xorb: NewXorb,
    ticket: Ticket,
    now: Timestamp,
) -> Result<(), IndexError> {
    const GO_LIVE: &str = "UPDATE xorbs \
             SET state = 1, since = max(since, ?), serialized_len = ?, raw_len = ?, crc64 = ?, layout = ?, \
             verified_at = ? \
             WHERE hash = ? AND state = 0 AND ticket = ? RETURNING id";
    const ADD: &str = "UPDATE totals \
             SET xorb_count = xorb_count + 1, serialized_len = serialized_len + ?, raw_len = raw_len + ?";
    let failed = |error| map(op, error);
    let (serialized_len, raw_len) = (xorb.layout.serialized_len().cast_signed(), xorb.layout.raw_len().cast_signed());
    let mut transaction = Write::begin(op, connection).await?;
    let row = sqlx::query(GO_LIVE)
        .bind(millis(now))
        .bind(serialized_len)
        .bind(raw_len)
        .bind(xorb.crc64.cast_signed())
        .bind(xorb.layout.pack())
        .bind(millis(now))
        .bind(xorb.hash.as_bytes().as_slice())
        .bind(ticket.0)
        .fetch_optional(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    let Some(row) = row else { return Err(IndexError::lost(op, 0)) };
    let hashes: Vec<u8> = xorb.chunk_hashes.iter().flat_map(|hash| *hash.as_bytes()).collect();
    let schemes: Vec<u8> = xorb.schemes.iter().map(|scheme| scheme.as_byte()).collect();
    let id: i64 = get(op, &row, 0)?;
    sqlx::query("INSERT INTO xorb_chunks (xorb_id, hashes, schemes) VALUES (?, ?, ?)")
        .bind(id)
        .bind(hashes)
        .bind(schemes)
        .execute(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    if let Some(owner) = xorb.owner {
        let share = sqlx::query("INSERT INTO xorb_domains (xorb_id, domain) VALUES (?, ?)").bind(id).bind(owner);
        share.execute(statement(op, &mut transaction)?).await.map_err(failed)?;
    }
    if let Some(grant) = xorb.grant {
        grants::insert_spent(&mut *transaction, grant).await.map_err(failed)?;
    }
    sqlx::query(ADD)
        .bind(serialized_len)
        .bind(raw_len)
        .execute(statement(op, &mut transaction)?)
        .await
        .map_err(failed)?;
    transaction.commit().await
}
