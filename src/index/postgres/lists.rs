//! Lists of hashes and ids in statements: each list is one parameter, an array.

use sqlx::{Postgres, QueryBuilder};

use super::rows::FromRow;
use super::tx::Single;
use crate::index::error::IndexError;
pub(super) use crate::index::lists::{Key, after_bytes};

/// Hashes of one statement: the longer a statement writes, the longer others wait.
pub(super) const BATCH_COUNT: usize = 1000;

/// Hashes as a `bytea[]`.
pub(super) fn hash_list<'h, K: Key + 'h>(hashes: impl IntoIterator<Item = &'h K>) -> Vec<&'h [u8]> {
    hashes.into_iter().map(|hash| hash.bytes().as_slice()).collect()
}

/// Appends the rest of a list of hashes, after `ANY(`.
pub(super) fn push_hashes<'h, K: Key + 'h>(
    query: &mut QueryBuilder<Postgres>,
    hashes: impl IntoIterator<Item = &'h K>,
) {
    query.push_bind(hash_list(hashes)).push(")");
}

/// Ids as a `bigint[]`.
pub(super) fn id_list<'i>(ids: impl IntoIterator<Item = &'i i64>) -> Vec<i64> {
    ids.into_iter().copied().collect()
}

impl Single<'_> {
    /// The rows for these hashes, a statement for each batch. The head ends with the opening
    /// parenthesis of their list, `hash = ANY(`.
    pub(super) async fn all_of<K: Key, T: FromRow>(
        self,
        hashes: &[K],
        head: impl Fn(&mut QueryBuilder<Postgres>) + Send + Sync,
    ) -> Result<Vec<T>, IndexError> {
        let mut found = Vec::with_capacity(hashes.len());
        for batch in hashes.chunks(BATCH_COUNT) {
            let mut query = QueryBuilder::new("");
            head(&mut query);
            push_hashes(&mut query, batch);
            found.extend(self.all::<T>(query.build()).await?);
        }
        Ok(found)
    }
}
