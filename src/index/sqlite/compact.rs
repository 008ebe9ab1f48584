//! Compaction in SQLite: see [`Compact`].

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use super::records::mark_record_applied;
use super::rows::{FromRow, column, row};
use super::switch::switch;
use super::tx::Single;
use super::{SqliteIndex, millis};
use crate::format::{ChunkHash, FileHash, XorbHash};
use crate::index::Ticket;
use crate::index::compact::{Compact, FilePage, FileSwitch, Switched, TermRow, TermRowPage};
use crate::index::decode::Cells;
use crate::index::error::{Inconsistent, IndexError};
use crate::index::files::parse_terms;
use crate::runtime::clock::Timestamp;

/// A run of terms with its row id. `terms` is `None` if the file is being removed.
struct Run {
    row: u64,
    terms: Option<TermRow>,
}

impl FromRow for Run {
    fn from_row(row: &impl Cells) -> sqlx::Result<Self> {
        let number: u64 = column(row, "number")?;
        if column::<Option<i64>>(row, "removed_at")?.is_some() {
            return Ok(Self { row: number, terms: None });
        }
        let invalid = |reason: &str| {
            let (key, reason) = (format!("row {number}"), reason.to_owned());
            Inconsistent { table: "file_terms", column: "terms", key, reason }
        };
        let file = column::<Option<FileHash>>(row, "hash")?.ok_or_else(|| invalid("it belongs to no file"))?;
        let terms = parse_terms(column(row, "terms")?).ok_or_else(|| invalid("no packed terms"))?;
        Ok(Self { row: number, terms: Some(TermRow { row: number, file, terms }) })
    }
}

impl Compact for SqliteIndex {
    fn term_rows(&self, after: u64, limit: u32) -> BoxFuture<'_, Result<TermRowPage, IndexError>> {
        term_rows(self.read("list all terms of files"), after, limit).boxed()
    }

    fn terms_of(&self, file: FileHash) -> BoxFuture<'_, Result<Vec<TermRow>, IndexError>> {
        const SQL: &str = "SELECT file_terms.rowid AS number, hash, removed_at, terms FROM files JOIN file_terms ON file_id = id \
             WHERE hash = ? AND files.registration NOT IN hidden ORDER BY start";
        async move {
            let list = query(SQL).bind(file.as_bytes().as_slice());
            let runs: Vec<Run> = self.read("read all terms of a file").all(list).await?;
            Ok(runs.into_iter().filter_map(|run| run.terms).collect())
        }
        .boxed()
    }

    fn files_of(&self, xorb: XorbHash, after: u64, limit: u32) -> BoxFuture<'_, Result<FilePage, IndexError>> {
        const SQL: &str = "SELECT file_id, files.hash AS hash, removed_at FROM xorb_files JOIN files ON files.id = file_id \
             WHERE xorb_id = (SELECT id FROM xorbs WHERE hash = ?) AND file_id > ? \
             AND files.registration NOT IN hidden ORDER BY file_id LIMIT +?";
        row! { Referring { file_id: u64, hash: FileHash, removed_at: Option<u64> } }
        async move {
            let list = query(SQL).bind(xorb.as_bytes().as_slice()).bind(after.cast_signed()).bind(limit);
            let rows: Vec<Referring> = self.read("list the files that refer to a xorb").all(list).await?;
            let next = rows.last().filter(|_| rows.len() == limit as usize).map(|row| row.file_id);
            let present = rows.into_iter().filter(|row| row.removed_at.is_none());
            Ok(FilePage { files: present.map(|row| row.hash).collect(), next })
        }
        .boxed()
    }

    fn owners_of(&self, xorbs: Vec<XorbHash>) -> BoxFuture<'_, Result<Vec<(XorbHash, String)>, IndexError>> {
        const HEAD: &str = "SELECT hash, domain FROM visible_xorbs JOIN xorb_domains ON xorb_id = id WHERE hash IN (";
        row! { Owned { hash: XorbHash, domain: String } }
        async move {
            let read = self.read("find the owners of xorbs");
            let owned: Vec<Owned> = read.all_of(&xorbs, |query| _ = query.push(HEAD)).await?;
            let mut owners: Vec<_> = owned.into_iter().map(|owned| (owned.hash, owned.domain)).collect();
            owners.sort_by_cached_key(|(xorb, owner)| (*xorb.as_bytes(), owner.clone()));
            Ok(owners)
        }
        .boxed()
    }

    fn dedup_chunks_of(&self, xorb: XorbHash) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>> {
        const SQL: &str = "SELECT chunk_hash FROM dedup_chunks JOIN visible_xorbs ON id = xorb_id WHERE hash = ?";
        async move {
            let list = query(SQL).bind(xorb.as_bytes().as_slice());
            self.read("list the chunks of a xorb that clients may ask for").all(list).await
        }
        .boxed()
    }

    fn stage_new_xorb(
        &self,
        hash: XorbHash,
        ticket: Ticket,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        const SQL: &str = "INSERT INTO xorbs (hash, state, since, ticket, incarnation) VALUES (?1, 0, ?2, ?3, ?3) \
             ON CONFLICT (hash) DO NOTHING";
        async move {
            let claim = query(SQL).bind(hash.as_bytes().as_slice()).bind(millis(now)).bind(ticket.number());
            Ok(self.write("claim a new xorb").execute(claim).await? == 1)
        }
        .boxed()
    }

    fn add_owners_and_dedup(
        &self,
        xorb: XorbHash,
        owners: Vec<String>,
        chunks: Vec<ChunkHash>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, IndexError>> {
        // Makes a visible and sound xorb live, and touches it.
        const TOUCH: &str = "UPDATE xorbs SET state = 1, since = max(since, ?) \
             WHERE hash = ? AND state IN (1, 2) AND damaged_at IS NULL RETURNING id";
        const SHARE: &str = "INSERT OR IGNORE INTO xorb_domains (xorb_id, domain) VALUES (?, ?)";
        const MENTION: &str = "INSERT OR IGNORE INTO dedup_chunks (xorb_id, chunk_hash) VALUES (?, ?)";
        async move {
            let mut held = self.writing("endow a xorb").await?;
            let mut tx = held.begin().await?;
            let touched: Option<i64> = tx.find(query(TOUCH).bind(millis(now)).bind(xorb.as_bytes().as_slice())).await?;
            let Some(id) = touched else {
                tx.rollback().await?;
                return Ok(false);
            };
            for owner in owners {
                tx.execute(query(SHARE).bind(id).bind(owner)).await?;
            }
            for chunk in chunks {
                tx.execute(query(MENTION).bind(id).bind(chunk.as_bytes().as_slice())).await?;
            }
            tx.commit().await?;
            Ok(true)
        }
        .boxed()
    }

    fn switch_terms_of<'a>(
        &'a self,
        files: &'a [FileSwitch],
        now: Timestamp,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Switched, IndexError>> {
        async move {
            let mut held = self.writing("switch the terms of files").await?;
            let mut tx = held.begin().await?;
            let switched = switch(&mut tx, files, now).await?;
            match switched {
                Switched::All => {
                    mark_record_applied(&mut tx, record).await?;
                    tx.commit().await?;
                }
                Switched::Other(_) | Switched::Unusable(_) => tx.rollback().await?,
            }
            Ok(switched)
        }
        .boxed()
    }
}

/// A page of the runs of all files, ordered by row id. Excludes runs of a file that is being
/// removed, because it needs no xorbs. So a page may have fewer runs than `limit` and still have a
/// next page.
pub(super) async fn term_rows(read: Single<'_>, after: u64, limit: u32) -> Result<TermRowPage, IndexError> {
    const SQL: &str = "SELECT file_terms.rowid AS number, hash, removed_at, terms FROM file_terms \
         LEFT JOIN files ON files.id = file_id WHERE file_terms.rowid > ? ORDER BY file_terms.rowid LIMIT +?";
    let runs: Vec<Run> = read.all(query(SQL).bind(after.cast_signed()).bind(limit)).await?;
    let next = runs.last().filter(|_| runs.len() == limit as usize).map(|run| run.row);
    Ok(TermRowPage { rows: runs.into_iter().filter_map(|run| run.terms).collect(), next })
}
