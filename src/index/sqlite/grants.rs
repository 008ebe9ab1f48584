//! Spent grants in SQLite.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::tx::Query;
use super::{SqliteIndex, millis};
use crate::index::error::IndexError;
use crate::index::{GrantIndex, SpentGrant};
use crate::runtime::clock::Timestamp;

impl GrantIndex for SqliteIndex {
    fn spend_grant(&self, grant: SpentGrant) -> BoxFuture<'_, Result<(), IndexError>> {
        async move { self.write("record a spent grant").execute(insert_spent(grant)).await.map(drop) }.boxed()
    }

    fn is_grant_spent(&self, nonce: [u8; 16]) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "SELECT 1 FROM spent_grants WHERE nonce = ?";
        async move {
            let spent: Option<i64> =
                self.read("look for a spent grant").find(query(SQL).bind(nonce.as_slice())).await?;
            Ok(spent.is_some())
        }
        .boxed()
    }

    fn forget_grants(&self, before: Timestamp) -> BoxFuture<'_, Result<u64, IndexError>> {
        let forget = query("DELETE FROM spent_grants WHERE expires < ?").bind(millis(before));
        async move { self.write("delete expired spent grants").execute(forget).await }.boxed()
    }
}

/// Inserts a spent grant. An existing one stays.
pub(super) fn insert_spent(grant: SpentGrant) -> Query<'static> {
    query("INSERT OR IGNORE INTO spent_grants (nonce, expires) VALUES (?, ?)")
        .bind(grant.nonce.as_slice())
        .bind(millis(grant.expires))
}
