//! Lists of hashes and ids in statements.

use sqlx::{QueryBuilder, Sqlite};

use super::rows::FromRow;
use super::tx::Single;
use crate::index::error::IndexError;
pub(super) use crate::index::lists::{Key, after_bytes};

/// The maximum number of hashes in one statement. With at most three parameters per hash, that is
/// far below SQLite's limit of 32 766 parameters.
pub(super) const BATCH_COUNT: usize = 500;

/// Appends the rest of a list of hashes, after its opening parenthesis.
pub(super) fn push_hashes<'h, K: Key + 'h>(query: &mut QueryBuilder<Sqlite>, hashes: impl IntoIterator<Item = &'h K>) {
    let mut list = query.separated(", ");
    for hash in hashes {
        list.push_bind(hash.bytes().as_slice());
    }
    query.push(")");
}

/// Ids for `json_each`, which takes more values than a statement has parameters.
pub(super) fn id_list<'i>(ids: impl IntoIterator<Item = &'i i64>) -> String {
    let ids: Vec<String> = ids.into_iter().map(i64::to_string).collect();
    format!("[{}]", ids.join(","))
}

impl Single<'_> {
    /// The rows for these hashes. Each batch of hashes is one statement, so one snapshot. `head`
    /// writes the SQL up to the opening parenthesis of the list of hashes.
    pub(super) async fn all_of<K: Key, T: FromRow>(
        self,
        hashes: &[K],
        head: impl Fn(&mut QueryBuilder<Sqlite>) + Send + Sync,
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
