//! The xorbs that a registration or a switch names: they must exist, and must not be collected.
//!
//! A reference retains a xorb for as long as its file exists. The removal of the file touches the
//! xorb, so its row is only read here. A row contains the layout: a thousand updates would write
//! the pages of a thousand layouts. Only a named xorb without a reference is touched.

use std::collections::HashMap;

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::files::{BATCH_COUNT, execute, push_hashes};
use super::repair::xorb_hash;
use super::write::statement;
use super::{get, map, millis};
use crate::format::XorbHash;
use crate::index::XorbState;
use crate::index::error::IndexError;
use crate::index::rows::state_to_sql;
use crate::runtime::clock::Timestamp;

/// By covering indexes: in the table, the columns after the layout can only be reached by reading
/// it.
const SELECT: &str = "SELECT id, hash, state, \
     EXISTS (SELECT 1 FROM xorbs AS bad INDEXED BY xorbs_damaged WHERE bad.damaged_at IS NOT NULL AND bad.hash = xorbs.hash) \
     FROM xorbs INDEXED BY xorbs_life WHERE state IN (1, 2) AND hash IN (";

/// The xorbs of the new terms of files, all visible and sound.
#[derive(Debug)]
pub(super) struct Named {
    ids: HashMap<XorbHash, i64>,
    condemned: Vec<i64>,
}

/// A xorb that no file may be made of.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It is not visible.
    Unknown(XorbHash),
    /// It is quarantined.
    Damaged(XorbHash),
}

impl Named {
    /// Finds them, in the transaction that writes the files.
    pub(super) async fn find(
        op: &'static str,
        connection: &mut SqliteConnection,
        hashes: &[XorbHash],
    ) -> Result<Result<Self, Unusable>, IndexError> {
        let mut named = Self { ids: HashMap::with_capacity(hashes.len()), condemned: Vec::new() };
        for batch in hashes.chunks(BATCH_COUNT) {
            let mut query = QueryBuilder::<Sqlite>::new(SELECT);
            push_hashes(&mut query, batch);
            let rows = query.build().fetch_all(statement(op, connection)?).await.map_err(|error| map(op, error))?;
            let mut damaged = None;
            for row in &rows {
                let hash = xorb_hash(op, row, 1)?;
                let id = get(op, row, 0)?;
                named.ids.insert(hash, id);
                if get::<i64>(op, row, 2)? == state_to_sql(XorbState::Condemned) {
                    named.condemned.push(id);
                }
                if get(op, row, 3)? {
                    damaged.get_or_insert(hash);
                }
            }
            if let Some(missing) = batch.iter().find(|hash| !named.ids.contains_key(*hash)) {
                return Ok(Err(Unusable::Unknown(*missing)));
            }
            if let Some(damaged) = damaged {
                return Ok(Err(Unusable::Damaged(damaged)));
            }
        }
        Ok(Ok(named))
    }

    pub(super) const fn ids(&self) -> &HashMap<XorbHash, i64> {
        &self.ids
    }

    /// Protects them from collection, after the files were written. A concurrent deletion waits for
    /// this transaction and then sees its rows. An earlier one has marked the row, so that `find`
    /// did not return it.
    pub(super) async fn retain(
        &self,
        op: &'static str,
        connection: &mut SqliteConnection,
        now: Timestamp,
    ) -> Result<(), IndexError> {
        const UNREFERENCED: &str = "SELECT value FROM json_each(?) \
             WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = value)";
        const REGISTERED_AT: &str = "UPDATE visibility SET registered_at = ?1 WHERE registered_at < ?1";
        const TOUCH: &str = "UPDATE xorbs SET state = 1, since = max(since, ?) WHERE id = ?";
        let rows = sqlx::query(UNREFERENCED)
            .bind(id_list(self.ids.values()))
            .fetch_all(statement(op, connection)?)
            .await
            .map_err(|error| map(op, error))?;
        let unreferenced = rows.iter().map(|row| get(op, row, 0)).collect::<Result<Vec<i64>, _>>()?;
        for id in self.condemned.iter().chain(&unreferenced).copied() {
            execute(op, connection, TOUCH, |query| query.bind(millis(now)).bind(id)).await?;
        }
        // For the untouched ones, which count from this time on when they lose their references.
        execute(op, connection, REGISTERED_AT, |query| query.bind(millis(now))).await?;
        Ok(())
    }
}

/// Ids for `json_each`, which takes more values than a statement has parameters.
pub(super) fn id_list<'i>(ids: impl IntoIterator<Item = &'i i64>) -> String {
    let ids: Vec<String> = ids.into_iter().map(i64::to_string).collect();
    format!("[{}]", ids.join(","))
}
