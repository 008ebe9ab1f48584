//! Garbage collection in SQLite, and the removal of files: see [`Collect`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{QueryBuilder, Sqlite, query};

use super::claims::hand_over_claim;
use super::compact::term_rows;
use super::lists::{after_bytes, push_hashes};
use super::records::mark_record_applied;
use super::remove::{FIND_REMOVED, MAKE_INVISIBLE, hide_claim, is_large, sweep};
use super::rows::row;
use super::tx::Tx;
use super::{SqliteIndex, discard, millis};
use crate::format::{FileHash, XorbHash};
use crate::index::collect::{Collect, RemovedClaims, TermPage, TermRun, XorbLife};
use crate::index::error::IndexError;
use crate::index::{RegisterIndex, TermRow, TermRowPage};
use crate::runtime::clock::Timestamp;

/// Selects the columns of [`XorbLife`]. The index `xorbs_life` has all of them, so the table is not
/// read, whose rows have some kilobytes each.
const SELECT_LIFE: &str = "SELECT hash, state, since, lease_until, coalesce(serialized_len, 0) AS serialized_len, \
     EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = xorbs.id) AS is_referenced FROM xorbs INDEXED BY xorbs_life ";

/// Together with [`UNREFERENCED`], the condition of the steps to `Condemned` and to `Deleting`: the
/// xorb is unleased and unreferenced. Each step checks the condition in its own statement.
const UNLEASED: &str = " AND lease_until <= ";
const UNREFERENCED: &str = " AND NOT EXISTS (SELECT 1 FROM xorb_files WHERE xorb_id = xorbs.id) AND hash IN (";

impl Collect for SqliteIndex {
    fn xorb_lives(&self, after: Option<XorbHash>, limit: u32) -> BoxFuture<'_, Result<Vec<XorbLife>, IndexError>> {
        async move {
            let mut list = QueryBuilder::new(SELECT_LIFE);
            list.push("WHERE hash > ").push_bind(after_bytes(after)).push(" ORDER BY hash LIMIT +").push_bind(limit);
            self.read("list the references of xorbs").all(list.build()).await
        }
        .boxed()
    }

    fn find_life(&self, hash: XorbHash) -> BoxFuture<'_, Result<Option<XorbLife>, IndexError>> {
        async move {
            let mut find = QueryBuilder::new(SELECT_LIFE);
            find.push("WHERE hash = ").push_bind(hash.as_bytes().as_slice());
            self.read("find the references of a xorb").find(find.build()).await
        }
        .boxed()
    }

    fn term_runs(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermPage, IndexError>> {
        async move {
            let TermRowPage { rows, next } = term_rows(self.read("list the terms of files"), after, limit).await?;
            let distinct = |row: TermRow| {
                let mut xorbs: Vec<XorbHash> = row.terms.iter().map(|term| term.xorb).collect();
                xorbs.sort_unstable_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
                xorbs.dedup();
                TermRun { file: row.file, xorbs }
            };
            Ok(TermPage { runs: rows.into_iter().map(distinct).collect(), next })
        }
        .boxed()
    }

    fn condemn_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        idle_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        async move {
            let mut step = QueryBuilder::new("UPDATE xorbs SET state = 2, since = max(since, ");
            step.push_bind(millis(now)).push(") WHERE state = 1 AND since <= ").push_bind(millis(idle_since));
            push_unused(&mut step, &xorbs, now);
            step.push(" RETURNING hash");
            self.write("condemn xorbs").all(step.build()).await
        }
        .boxed()
    }

    fn begin_deletions(
        &self,
        xorbs: Vec<XorbHash>,
        condemned_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        const SUBTRACT: &str = "UPDATE totals SET xorb_count = xorb_count - ?, \
             serialized_len = serialized_len - ?, raw_len = raw_len - ?";
        row! { Begun { hash: XorbHash, serialized_len: i64, raw_len: i64 } }
        async move {
            let mut held = self.writing("begin to delete xorbs").await?;
            let mut tx = held.begin().await?;
            let mut step = QueryBuilder::new("UPDATE xorbs SET state = 3, since = max(since, ");
            step.push_bind(millis(now)).push(") WHERE state = 2 AND since <= ").push_bind(millis(condemned_since));
            push_unused(&mut step, &xorbs, now);
            step.push(" RETURNING hash, serialized_len, raw_len");
            let begun: Vec<Begun> = tx.all(step.build()).await?;
            if begun.is_empty() {
                tx.rollback().await?;
                return Ok(Vec::new());
            }
            let count = i64::try_from(begun.len()).unwrap_or(i64::MAX);
            let sum = |len: fn(&Begun) -> i64| begun.iter().map(len).fold(0, i64::saturating_add);
            let (serialized_len, raw_len) = (sum(|xorb| xorb.serialized_len), sum(|xorb| xorb.raw_len));
            tx.execute(query(SUBTRACT).bind(count).bind(serialized_len).bind(raw_len)).await?;
            hide(&mut tx).await?;
            tx.commit().await?;
            Ok(begun.into_iter().map(|xorb| xorb.hash).collect())
        }
        .boxed()
    }

    fn abandon_xorbs(
        &self,
        xorbs: Vec<XorbHash>,
        staged_since: Timestamp,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<XorbHash>, IndexError>> {
        async move {
            let mut step = QueryBuilder::new("UPDATE xorbs SET state = 3, since = max(since, ");
            step.push_bind(millis(now)).push(") WHERE state = 0 AND since <= ").push_bind(millis(staged_since));
            step.push(" AND hash IN (");
            push_hashes(&mut step, &xorbs);
            step.push(" RETURNING hash");
            self.write("give up staged xorbs").all(step.build()).await
        }
        .boxed()
    }

    fn remove_claims_of(
        &self,
        file: FileHash,
        repo: Option<String>,
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'_, Result<RemovedClaims, IndexError>> {
        const FILE: &str = "SELECT id FROM files WHERE hash = ? AND registration NOT IN hidden";
        const CLAIMS: &str = "SELECT repo, has_claimed FROM file_repos WHERE file_id = ?1 AND (?2 IS NULL OR repo = ?2) \
             AND registration NOT IN hidden";
        // Whether no visible claim is left afterwards: only this repository has the file, or all
        // claims are to be removed. Hidden ones are of ended registrations, because the caller has
        // the lock of the file.
        const IS_LAST: &str = "SELECT ?2 IS NULL OR NOT EXISTS \
             (SELECT 1 FROM file_repos WHERE file_id = ?1 AND repo != ?2 AND registration NOT IN hidden)";
        const UNCLAIM: &str = "DELETE FROM file_repos WHERE file_id = ?1 AND (?2 IS NULL OR repo = ?2)";
        row! { Claimed { repo: String, has_claimed: bool } }
        async move {
            let mut held = self.writing("remove a file").await?;
            let mut tx = held.begin().await?;
            let found: Option<i64> = tx.find(query(FILE).bind(file.as_bytes().as_slice())).await?;
            let Some(id) = found else { return Ok(RemovedClaims::default()) };
            let claims: Vec<Claimed> = tx.all(query(CLAIMS).bind(id).bind(repo.as_deref())).await?;
            if claims.is_empty() && repo.is_some() {
                return Ok(RemovedClaims::default());
            }
            let is_file_removed: bool = tx.one(query(IS_LAST).bind(id).bind(repo.as_deref())).await?;
            if is_file_removed {
                discard::abandon_claims(&mut tx, id).await?;
            }
            match (is_large(&mut tx, id, repo.as_deref()).await?, is_file_removed) {
                // The sweep deletes the claims of a large file after its references.
                (true, true) => {}
                (true, false) => hide_claim(&mut tx, id, repo.as_deref()).await?,
                (false, _) => tx.execute(query(UNCLAIM).bind(id).bind(repo.as_deref())).await.map(drop)?,
            }
            if is_file_removed {
                tx.execute(query(MAKE_INVISIBLE).bind(millis(now)).bind(id)).await?;
            } else if claims.iter().any(|claim| claim.has_claimed) {
                hand_over_claim(&mut tx, id).await?;
            }
            mark_record_applied(&mut tx, record).await?;
            tx.commit().await?;
            Ok(RemovedClaims { repos: claims.into_iter().map(|claim| claim.repo).collect(), is_file_removed })
        }
        .boxed()
    }

    fn sweep_removed(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        let op = "clean up a removed file";
        async move {
            // Usually there is nothing to delete. To find this out needs no writing connection.
            if self.sweep_registrations(None, now).await? {
                return Ok(true);
            }
            if self.read(op).find::<i64>(query(FIND_REMOVED)).await?.is_none() {
                return Ok(false);
            }
            let mut held = self.writing(op).await?;
            let mut tx = held.begin().await?;
            let has_swept = sweep(&mut tx, now).await?;
            tx.commit().await?;
            Ok(has_swept)
        }
        .boxed()
    }

    fn generation(&self) -> BoxFuture<'_, Result<u64, IndexError>> {
        async move { self.read("read the generation").one(query("SELECT generation FROM visibility")).await }.boxed()
    }

    fn last_collection(&self) -> BoxFuture<'_, Result<Timestamp, IndexError>> {
        const SQL: &str = "SELECT collected_at FROM visibility";
        async move { self.read("read when garbage was collected").one(query(SQL)).await }.boxed()
    }

    fn record_collection(&self, now: Timestamp) -> BoxFuture<'_, Result<(), IndexError>> {
        const SQL: &str = "UPDATE visibility SET collected_at = max(collected_at, ?)";
        async move { self.write("record a GC run").execute(query(SQL).bind(millis(now))).await.map(drop) }.boxed()
    }
}

/// Appends the condition of a step: the xorb is unleased, unreferenced and among `xorbs`.
fn push_unused(step: &mut QueryBuilder<Sqlite>, xorbs: &[XorbHash], now: Timestamp) {
    step.push(UNLEASED).push_bind(millis(now)).push(UNREFERENCED);
    push_hashes(step, xorbs);
}

/// Increments the generation, in a transaction that makes cached data about a xorb wrong.
pub(super) async fn hide(tx: &mut Tx<'_>) -> Result<(), IndexError> {
    tx.execute(query("UPDATE visibility SET generation = generation + 1")).await.map(drop)
}

#[cfg(test)]
impl SqliteIndex {
    /// Runs a statement that violates the rules of the database.
    pub(crate) async fn corrupt(&self, sql: &'static str) {
        let mut connection = self.writer.acquire().await.unwrap();
        for sql in ["PRAGMA foreign_keys = OFF", sql, "PRAGMA foreign_keys = ON"] {
            sqlx::query(sql).execute(connection.parts().0).await.unwrap();
        }
    }
}
