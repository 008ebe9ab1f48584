//! Changes that no store makes to its index. Tests break its guards one by one with them, and
//! expect to notice it.

use sqlx::{QueryBuilder, Sqlite};

use super::files::push_hashes;
use super::{SqliteIndex, map, millis};
use crate::format::XorbHash;
use crate::format::shard::Term;
use crate::index::error::IndexError;
use crate::index::files::pack_terms;
use crate::index::rows;
use crate::index::{Cursor, RegisterIndex, Registered, Registration, Ticket, XorbState};
use crate::runtime::clock::Timestamp;

/// The checks that a step in the life of a xorb makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checks {
    pub(crate) age: bool,
    pub(crate) lease: bool,
    pub(crate) references: bool,
}

impl SqliteIndex {
    /// The same index, but every registration is written in steps.
    pub(crate) fn in_steps(mut self) -> Self {
        self.registers_in_steps = true;
        self
    }

    pub(super) async fn register_in_steps(
        &self,
        registration: &Registration,
        record: Option<u64>,
    ) -> Result<Registered, IndexError> {
        let begun = self.begin_registration(registration).await?;
        let (mut outcome, mut next) = (Registered::Known, Some(Cursor::start(registration)));
        while let Some(from) = next {
            let entered = self.enter_files(begun, registration, from).await?;
            next = entered.next;
            match entered.outcome {
                Registered::Known => {}
                Registered::Added if outcome == Registered::New => {}
                told => outcome = told,
            }
        }
        if matches!(outcome, Registered::New | Registered::Added) {
            self.publish_registration(begun, record).await?;
        }
        if matches!(outcome, Registered::New | Registered::Added | Registered::Known) {
            self.enter_dedup(registration, 0, usize::MAX).await?;
        }
        self.abandon_registrations(Some(begun.id)).await?;
        while self.clear_registration(registration.now).await? {}
        Ok(outcome)
    }

    /// Rows of registrations and removals that are not over, and rows without their file.
    pub(crate) async fn left_row_count(&self) -> i64 {
        const SQL: &str = "SELECT (SELECT count(*) FROM registrations) + (SELECT count(*) FROM registration_files) \
             + (SELECT count(*) FROM files WHERE removed_at IS NOT NULL OR registration IN hidden) \
             + (SELECT count(*) FROM file_terms WHERE file_id NOT IN (SELECT id FROM files)) \
             + (SELECT count(*) FROM xorb_files WHERE file_id NOT IN (SELECT id FROM files)) \
             + (SELECT count(*) FROM file_repos WHERE file_id NOT IN (SELECT id FROM files)) \
             + (SELECT count(*) FROM repo_files WHERE file_id NOT IN (SELECT id FROM files))";
        sqlx::query_scalar(SQL).fetch_one(&self.readers).await.unwrap()
    }

    /// Runs any statement: `?1` is a hash, `?2` a number.
    pub(crate) async fn corrupt_row(&self, sql: &'static str, hash: &[u8], number: i64) -> Result<u64, IndexError> {
        let result = sqlx::query(sql).bind(hash.to_vec()).bind(number).execute(&self.writer).await;
        result.map(|result| result.rows_affected()).map_err(|error| map("corrupt the index", error))
    }

    /// Runs any statement with two hashes.
    pub(crate) async fn corrupt_pair(&self, sql: &'static str, one: &[u8], other: &[u8]) -> Result<u64, IndexError> {
        let result = sqlx::query(sql).bind(one.to_vec()).bind(other.to_vec()).execute(&self.writer).await;
        result.map(|result| result.rows_affected()).map_err(|error| map("corrupt the index", error))
    }

    /// Overwrites a run of terms without a check.
    pub(crate) async fn force_terms(&self, row: u64, terms: &[Term]) -> Result<(), IndexError> {
        let query = sqlx::query("UPDATE file_terms SET terms = ? WHERE rowid = ?");
        let result = query.bind(pack_terms(terms)).bind(row.cast_signed()).execute(&self.writer).await;
        result.map(drop).map_err(|error| map("corrupt the index", error))
    }

    /// Makes a row staged by this upload, in any state and under any ticket.
    pub(crate) async fn force_restage(&self, hash: XorbHash, ticket: Ticket) -> Result<(), IndexError> {
        let sql = "UPDATE xorbs SET state = 0, ticket = ?2 WHERE hash = ?1";
        self.corrupt_row(sql, hash.as_bytes(), ticket.0).await.map(drop)
    }

    /// `Live` → `Condemned`, or `Condemned` → `Deleting`, with these checks and no others.
    pub(crate) async fn step_unchecked(
        &self,
        from: XorbState,
        xorbs: &[XorbHash],
        since: Timestamp,
        now: Timestamp,
        checks: Checks,
    ) -> Result<Vec<XorbHash>, IndexError> {
        const RECOUNT: &str = "UPDATE totals SET \
             xorb_count = (SELECT count(*) FROM xorbs WHERE state IN (1, 2)), \
             serialized_len = (SELECT coalesce(sum(serialized_len), 0) FROM xorbs WHERE state IN (1, 2)), \
             raw_len = (SELECT coalesce(sum(raw_len), 0) FROM xorbs WHERE state IN (1, 2))";
        let op = "take a step without its checks";
        let (before, after) = if from == XorbState::Live { (1, 2) } else { (2, 3) };
        let mut query = QueryBuilder::<Sqlite>::new("UPDATE xorbs SET state = ");
        query.push_bind(after).push(", since = max(since, ").push_bind(millis(now)).push(") WHERE state = ");
        query.push_bind(before);
        if checks.age {
            query.push(" AND since <= ").push_bind(millis(since));
        }
        if checks.lease {
            query.push(" AND lease_until <= ").push_bind(millis(now));
        }
        if checks.references {
            query.push(" AND NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = xorbs.id)");
        }
        query.push(" AND hash IN (");
        push_hashes(&mut query, xorbs);
        query.push(" RETURNING hash");
        let found = query.build().fetch_all(&self.writer).await.map_err(|error| map(op, error))?;
        let mut hashes = Vec::with_capacity(found.len());
        for row in &found {
            let hash = rows::xorb_hash(super::get(op, row, 0)?);
            hashes.push(hash.map_err(|error| IndexError::inconsistent(op, error))?);
        }
        for sql in [RECOUNT, "UPDATE visibility SET generation = generation + 1"] {
            sqlx::query(sql).execute(&self.writer).await.map_err(|error| map(op, error))?;
        }
        Ok(hashes)
    }
}
