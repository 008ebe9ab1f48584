//! Changes to the index that no production code makes. Tests use them to break one guarantee at a
//! time, and check that the violation is detected.

use sqlx::{QueryBuilder, query};

use super::lists::push_hashes;
use super::{SqliteIndex, millis};
use crate::format::XorbHash;
use crate::format::shard::Term;
use crate::index::conformance::backends::register_in_steps;
use crate::index::error::IndexError;
use crate::index::files::pack_terms;
use crate::index::{Registered, Registration, Ticket, XorbState};
use crate::runtime::clock::Timestamp;

/// The conditions that [`SqliteIndex::step_unchecked`] checks.
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

    /// Registers like the service does it in steps: writes all steps, publishes the registration,
    /// and deletes its file list. A registration that is refused or adds nothing is abandoned, and
    /// its rows are discarded.
    pub(super) async fn register_in_steps(
        &self,
        registration: &Registration,
        record: Option<u64>,
    ) -> Result<Registered, IndexError> {
        register_in_steps(self, registration, record).await
    }

    /// The number of rows of unfinished registrations and removals, and of rows without their file.
    pub(crate) async fn left_row_count(&self) -> i64 {
        const SQL: &str = "SELECT (SELECT count(*) FROM registrations) + (SELECT count(*) FROM registration_files) \
             + (SELECT count(*) FROM files WHERE removed_at IS NOT NULL OR registration IN hidden) \
             + (SELECT count(*) FROM file_terms WHERE file_id NOT IN (SELECT id FROM files)) \
             + (SELECT count(*) FROM xorb_files WHERE file_id NOT IN (SELECT id FROM files)) \
             + (SELECT count(*) FROM file_repos WHERE file_id NOT IN (SELECT id FROM files)) \
             + (SELECT count(*) FROM repo_files WHERE file_id NOT IN (SELECT id FROM files))";
        self.read("count rows").one(query(SQL)).await.unwrap()
    }

    /// Runs any statement: `?1` is a hash, `?2` a number.
    pub(crate) async fn corrupt_row(&self, sql: &'static str, hash: &[u8], number: i64) -> Result<u64, IndexError> {
        self.write("corrupt the index").execute(query(sql).bind(hash).bind(number)).await
    }

    /// Runs any statement with two hashes.
    pub(crate) async fn corrupt_pair(&self, sql: &'static str, one: &[u8], other: &[u8]) -> Result<u64, IndexError> {
        self.write("corrupt the index").execute(query(sql).bind(one).bind(other)).await
    }

    /// Overwrites a run of terms without a check.
    pub(crate) async fn force_terms(&self, row: u64, terms: &[Term]) -> Result<(), IndexError> {
        let force = query("UPDATE file_terms SET terms = ? WHERE rowid = ?").bind(pack_terms(terms));
        self.write("corrupt the index").execute(force.bind(row.cast_signed())).await.map(drop)
    }

    /// Makes a row staged under this ticket, whatever its state and ticket were.
    pub(crate) async fn force_restage(&self, hash: XorbHash, ticket: Ticket) -> Result<(), IndexError> {
        let sql = "UPDATE xorbs SET state = 0, ticket = ?2 WHERE hash = ?1";
        self.corrupt_row(sql, hash.as_bytes(), ticket.number()).await.map(drop)
    }

    /// `Live` → `Condemned`, or `Condemned` → `Deleting`, with no other conditions than `checks`.
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
        let write = self.write("take a step without its checks");
        let (before, after) = if from == XorbState::Live { (1, 2) } else { (2, 3) };
        let mut step = QueryBuilder::new("UPDATE xorbs SET state = ");
        step.push_bind(after).push(", since = max(since, ").push_bind(millis(now)).push(") WHERE state = ");
        step.push_bind(before);
        if checks.age {
            step.push(" AND since <= ").push_bind(millis(since));
        }
        if checks.lease {
            step.push(" AND lease_until <= ").push_bind(millis(now));
        }
        if checks.references {
            step.push(" AND NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = xorbs.id)");
        }
        step.push(" AND hash IN (");
        push_hashes(&mut step, xorbs);
        step.push(" RETURNING hash");
        let hashes = write.all(step.build()).await?;
        for sql in [RECOUNT, "UPDATE visibility SET generation = generation + 1"] {
            write.execute(query(sql)).await?;
        }
        Ok(hashes)
    }
}
