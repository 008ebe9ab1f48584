//! Spent grants in SQLite, and the renewal of a stored xorb.
//!
//! A client that is told that the server has a xorb does not upload it. So the xorb is touched, and
//! a condemned one made live, before the response.

use sqlx::{Executor, Sqlite};

use super::{SqliteIndex, map, millis};
use crate::format::XorbHash;
use crate::index::SpentGrant;
use crate::index::error::IndexError;
use crate::runtime::clock::Timestamp;

impl SqliteIndex {
    pub(super) async fn renew(
        &self,
        hash: XorbHash,
        owner: Option<String>,
        now: Timestamp,
    ) -> Result<bool, IndexError> {
        const KNOWN: &str = "SELECT 1 FROM xorbs WHERE hash = ?1 AND state IN (1, 2) AND damaged_at IS NULL AND \
             (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND domain = ?2))";
        const RENEW: &str = "UPDATE xorbs SET state = 1, since = max(since, ?3) WHERE hash = ?1 AND state IN (1, 2) AND \
             damaged_at IS NULL AND (?2 IS NULL OR EXISTS (SELECT 1 FROM xorb_domains WHERE xorb_id = id AND domain = ?2))";
        let op = "renew a xorb";
        let (hash, owner) = (hash.as_bytes().as_slice(), owner.as_deref());
        // Most queries are about new xorbs, and need no writer.
        let known = sqlx::query(KNOWN).bind(hash).bind(owner).fetch_optional(&self.readers).await;
        if known.map_err(|error| map(op, error))?.is_none() {
            return Ok(false);
        }
        let renewed = sqlx::query(RENEW).bind(hash).bind(owner).bind(millis(now)).execute(&self.writer).await;
        Ok(renewed.map_err(|error| map(op, error))?.rows_affected() == 1)
    }

    pub(super) async fn record_spent(&self, grant: SpentGrant) -> Result<(), IndexError> {
        insert_spent(&self.writer, grant).await.map_err(|error| map("record a spent grant", error))
    }

    pub(super) async fn read_spent(&self, nonce: [u8; 16]) -> Result<bool, IndexError> {
        let spent = sqlx::query("SELECT 1 FROM spent_grants WHERE nonce = ?")
            .bind(nonce.as_slice())
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| map("look for a spent grant", error))?;
        Ok(spent.is_some())
    }

    pub(super) async fn delete_spent(&self, before: Timestamp) -> Result<u64, IndexError> {
        let deleted = sqlx::query("DELETE FROM spent_grants WHERE expires < ?")
            .bind(millis(before))
            .execute(&self.writer)
            .await
            .map_err(|error| map("delete expired spent grants", error))?;
        Ok(deleted.rows_affected())
    }
}

/// Inserts a spent grant in the caller's transaction. An existing one stays.
pub(super) async fn insert_spent(
    executor: impl Executor<'_, Database = Sqlite>,
    grant: SpentGrant,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT OR IGNORE INTO spent_grants (nonce, expires) VALUES (?, ?)")
        .bind(grant.nonce.as_slice())
        .bind(millis(grant.expires))
        .execute(executor)
        .await
        .map(drop)
}
