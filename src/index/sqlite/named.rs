//! The xorbs that a registration or a switch names: that they are there, and that they stay.
//!
//! What a file refers to is kept by that, for as long as the file is there, and is touched when it goes: its row is only
//! read. A row has the layout in it, so that a thousand updates would write the pages of a thousand layouts. What is named
//! and has nothing else that keeps it is touched.

use std::collections::HashMap;

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::files::{BATCH_COUNT, execute, push_hashes};
use super::repair::xorb_hash;
use super::{get, map, millis};
use crate::format::XorbHash;
use crate::index::XorbState;
use crate::index::error::IndexError;
use crate::index::rows::state_to_sql;
use crate::runtime::clock::Timestamp;

/// By the indexes that have all of it: in the table, what is behind the layout is not reached without reading that.
const SELECT: &str = "SELECT id, hash, state, \
     EXISTS (SELECT 1 FROM xorbs AS bad INDEXED BY xorbs_damaged WHERE bad.damaged_at IS NOT NULL AND bad.hash = xorbs.hash) \
     FROM xorbs INDEXED BY xorbs_life WHERE state IN (1, 2) AND hash IN (";

/// The xorbs that files are to be made of, all of which are visible and sound.
#[derive(Debug)]
pub(super) struct Named {
    ids: HashMap<XorbHash, i64>,
    condemned: Vec<i64>,
}

/// A xorb of which no file can be made.
#[derive(Debug)]
pub(super) enum Unfit {
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
    ) -> Result<Result<Self, Unfit>, IndexError> {
        let mut named = Self { ids: HashMap::with_capacity(hashes.len()), condemned: Vec::new() };
        for batch in hashes.chunks(BATCH_COUNT) {
            let mut query = QueryBuilder::<Sqlite>::new(SELECT);
            push_hashes(&mut query, batch);
            let rows = query.build().fetch_all(&mut *connection).await.map_err(|error| map(op, error))?;
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
                return Ok(Err(Unfit::Unknown(*missing)));
            }
            if let Some(damaged) = damaged {
                return Ok(Err(Unfit::Damaged(damaged)));
            }
        }
        Ok(Ok(named))
    }

    pub(super) const fn ids(&self) -> &HashMap<XorbHash, i64> {
        &self.ids
    }

    /// Makes sure that they stay, after the files were written. Whoever deletes waits until this transaction is over, and
    /// finds what it has written then; or has marked a row before it began, and then that was not found here.
    pub(super) async fn keep(
        &self,
        op: &'static str,
        connection: &mut SqliteConnection,
        now: Timestamp,
    ) -> Result<(), IndexError> {
        const UNKEPT: &str = "SELECT value FROM json_each(?) \
             WHERE NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = value)";
        const NOTE: &str = "UPDATE visibility SET registered_at = ?1 WHERE registered_at < ?1";
        const TOUCH: &str = "UPDATE xorbs SET state = 1, since = max(since, ?) WHERE id = ?";
        let rows = sqlx::query(UNKEPT)
            .bind(id_list(self.ids.values()))
            .fetch_all(&mut *connection)
            .await
            .map_err(|error| map(op, error))?;
        let unkept = rows.iter().map(|row| get(op, row, 0)).collect::<Result<Vec<i64>, _>>()?;
        for id in self.condemned.iter().chain(&unkept).copied() {
            execute(op, connection, TOUCH, |query| query.bind(millis(now)).bind(id)).await?;
        }
        // For those that are not touched, until they lose what keeps them.
        execute(op, connection, NOTE, |query| query.bind(millis(now))).await?;
        Ok(())
    }
}

/// Ids as `json_each` takes them, which takes more than a statement has parameters.
pub(super) fn id_list<'i>(ids: impl IntoIterator<Item = &'i i64>) -> String {
    let ids: Vec<String> = ids.into_iter().map(i64::to_string).collect();
    format!("[{}]", ids.join(","))
}
