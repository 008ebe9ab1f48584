//! Registrations in SQLite: whole in one transaction, or in steps.
//!
//! New files are written in batches, with as many statements for 256 files as for one, and usage is
//! counted once for the batch. Known files are looked up in batches; their changes are written file
//! by file.
//!
//! A file of very many terms is written in parts: the row and its claim, then the references to its
//! xorbs, then the terms. So a term never names a xorb without a reference from its file.
//!
//! A whole registration is visible after its transaction. The rows of steps are invisible until the
//! registration is published: see [`steps`](crate::index::steps) for what a crash leaves.

mod entry;
mod insert;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;

use self::entry::Entry;
use super::bulk::insert_rows;
use super::compact::chunk_hash;
use super::files::{execute, release};
use super::named::{Named, Unusable};
use super::store::take_record;
use super::usage::{Meter, usages};
use super::write::{Write, statement};
use super::{SqliteIndex, get, map};
use crate::format::{ChunkHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::{Begun, Cursor, Entered, RegisterIndex, Registered, Registration};
use crate::runtime::clock::Timestamp;

/// After this time a step writes no further batch. Other writers wait for the current batch and the
/// commit, too, and no write may take over 50 ms.
const STEP_TIME: Duration = Duration::from_millis(10);

/// Files of one batch: one statement of each kind. One in unit tests, for steps between small
/// files.
const BATCH_FILE_COUNT: usize = if cfg!(test) { 1 } else { 256 };

/// The mark of the rows of a registration, see migration 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Visible with its transaction.
    Whole,
    /// Visible when this registration is published.
    Step(i64),
}

impl Mark {
    /// The mark of rows whose usage the batch counts.
    const fn in_batch(self) -> i64 {
        match self {
            Self::Whole => -1,
            Self::Step(id) => id,
        }
    }

    /// The mark of claims to a row that existed before.
    const fn of_claim(self) -> i64 {
        match self {
            Self::Whole => 0,
            Self::Step(id) => id,
        }
    }
}

impl SqliteIndex {
    pub(super) async fn register_files(
        &self,
        registration: &Registration,
        record: Option<u64>,
    ) -> Result<Registered, IndexError> {
        let op = "register files";
        let start = Cursor::start(registration);
        let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
        let registered = register_whole(op, &mut connection, registration, start, record).await;
        release(connection, registered.is_ok()).await;
        registered
    }
}

impl RegisterIndex for SqliteIndex {
    fn begin_registration<'a>(&'a self, registration: &'a Registration) -> BoxFuture<'a, Result<Begun, IndexError>> {
        let op = "begin a registration";
        async move {
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let begun = begin(op, &mut connection, registration).await;
            release(connection, begun.is_ok()).await;
            begun
        }
        .boxed()
    }

    fn enter_files<'a>(
        &'a self,
        begun: Begun,
        registration: &'a Registration,
        from: Cursor,
    ) -> BoxFuture<'a, Result<Entered, IndexError>> {
        let op = "write a step of a registration";
        async move {
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let entered = enter_step(op, &mut connection, begun, registration, from).await;
            release(connection, entered.is_ok()).await;
            entered
        }
        .boxed()
    }

    fn publish_registration<'a>(&'a self, begun: Begun, record: Option<u64>) -> BoxFuture<'a, Result<(), IndexError>> {
        let op = "publish a registration";
        async move {
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let published = publish(op, &mut connection, begun.id, record).await;
            release(connection, published.is_ok()).await;
            published
        }
        .boxed()
    }

    fn enter_dedup<'a>(
        &'a self,
        registration: &'a Registration,
        from: usize,
        count: usize,
    ) -> BoxFuture<'a, Result<(), IndexError>> {
        let op = "write chunks that clients may ask for";
        async move {
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let end = registration.dedup.len().min(from.saturating_add(count));
            let entered = enter_some_dedup(op, &mut connection, &registration.dedup[from.min(end)..end]).await;
            release(connection, entered.is_ok()).await;
            entered
        }
        .boxed()
    }

    fn dedup_chunk_count(&self) -> BoxFuture<'_, Result<u64, IndexError>> {
        let op = "count the chunks that clients may ask for";
        async move {
            let row = sqlx::query("SELECT count(*) FROM dedup_chunks").fetch_one(&self.readers).await;
            get::<i64>(op, &row.map_err(|error| map(op, error))?, 0).map(i64::cast_unsigned)
        }
        .boxed()
    }

    fn dedup_chunks_after(
        &self,
        after: Option<ChunkHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>> {
        // The empty blob is before every hash.
        const SQL: &str =
            "SELECT DISTINCT chunk_hash FROM dedup_chunks WHERE chunk_hash > ? ORDER BY chunk_hash LIMIT ?";
        let op = "list the chunks that clients may ask for";
        async move {
            let after = after.map_or(Vec::new(), |chunk| chunk.as_bytes().to_vec());
            let rows = sqlx::query(SQL).bind(after).bind(limit).fetch_all(&self.readers).await;
            let rows = rows.map_err(|error| map(op, error))?;
            rows.iter().map(|row| chunk_hash(op, get(op, row, 0)?)).collect()
        }
        .boxed()
    }

    fn clear_registration(&self, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        self.clear_over(now).boxed()
    }

    fn abandon_registrations(&self, id: Option<i64>) -> BoxFuture<'_, Result<u64, IndexError>> {
        let op = "abandon a registration";
        async move {
            let mut connection = self.writer.acquire().await.map_err(|error| map(op, error))?;
            let abandoned = abandon(op, &mut connection, id).await;
            release(connection, abandoned.is_ok()).await;
            abandoned
        }
        .boxed()
    }
}

async fn register_whole(
    op: &'static str,
    connection: &mut SqliteConnection,
    registration: &Registration,
    start: Cursor,
    record: Option<u64>,
) -> Result<Registered, IndexError> {
    let mut transaction = Write::begin(op, connection).await?;
    let outcome = write_whole(op, &mut transaction, registration, start).await?;
    match outcome {
        Registered::New | Registered::Added => {
            take_record(op, &mut transaction, record).await?;
            transaction.commit().await?;
        }
        // The caller rolls its record back.
        Registered::Known => transaction.commit().await?,
        _ => transaction.rollback().await?,
    }
    Ok(outcome)
}

async fn write_whole(
    op: &'static str,
    connection: &mut SqliteConnection,
    registration: &Registration,
    start: Cursor,
) -> Result<Registered, IndexError> {
    let meter = Meter::read(op, connection, registration).await?;
    let mut entry = Entry::new(op, registration, Mark::Whole, start);
    while !entry.is_done() {
        if let Some(refused) = entry.write_some(connection).await? {
            return Ok(refused);
        }
    }
    if let Some(meter) = &meter
        && entry.outcome != Registered::Known
        && let Some(excess) = meter.excess(op, connection).await?
    {
        return Ok(Registered::OverQuota(excess));
    }
    for some in registration.dedup.chunks(BATCH_FILE_COUNT) {
        if let Err(missing) = write_dedup(op, connection, some).await? {
            return Ok(Registered::MissingXorb(missing));
        }
    }
    Ok(entry.outcome)
}

async fn begin(
    op: &'static str,
    connection: &mut SqliteConnection,
    registration: &Registration,
) -> Result<Begun, IndexError> {
    let failed = |error| map(op, error);
    let mut transaction = Write::begin(op, connection).await?;
    let (repo, owner) = usages(op, &mut transaction, registration).await?;
    let row = sqlx::query("INSERT INTO registrations DEFAULT VALUES RETURNING id")
        .fetch_one(statement(op, &mut transaction)?)
        .await;
    let id = get(op, &row.map_err(failed)?, 0)?;
    transaction.commit().await?;
    Ok(Begun { id, repo, owner })
}

async fn enter_step(
    op: &'static str,
    connection: &mut SqliteConnection,
    begun: Begun,
    registration: &Registration,
    from: Cursor,
) -> Result<Entered, IndexError> {
    const IS_OPEN: &str = "SELECT 1 FROM registrations WHERE id = ? AND state = 0";
    let failed = |error| map(op, error);
    let began = Instant::now();
    let mut transaction = Write::begin(op, connection).await?;
    let open =
        sqlx::query(IS_OPEN).bind(begun.id).fetch_optional(statement(op, &mut transaction)?).await.map_err(failed)?;
    if open.is_none() {
        return Err(IndexError::lost(op, 0));
    }
    let mut entry = Entry::new(op, registration, Mark::Step(begun.id), from);
    while !entry.is_done() {
        if let Some(refused) = entry.write_some(&mut transaction).await? {
            transaction.rollback().await?;
            return Ok(Entered { outcome: refused, next: None });
        }
        if began.elapsed() >= STEP_TIME || cfg!(test) {
            break;
        }
    }
    let meter = Meter::since(registration, begun);
    if entry.outcome != Registered::Known
        && let Some(meter) = meter
        && let Some(excess) = meter.excess(op, &mut transaction).await?
    {
        transaction.rollback().await?;
        return Ok(Entered { outcome: Registered::OverQuota(excess), next: None });
    }
    transaction.commit().await?;
    let next = (!entry.is_done()).then_some(entry.at);
    Ok(Entered { outcome: entry.outcome, next })
}

async fn publish(
    op: &'static str,
    connection: &mut SqliteConnection,
    id: i64,
    record: Option<u64>,
) -> Result<(), IndexError> {
    let mut transaction = Write::begin(op, connection).await?;
    let sql = "UPDATE registrations SET state = 2 WHERE id = ? AND state = 0";
    let published = execute(op, &mut transaction, sql, |query| query.bind(id)).await?;
    if published != 1 {
        return Err(IndexError::lost(op, published));
    }
    take_record(op, &mut transaction, record).await?;
    transaction.commit().await
}

async fn abandon(op: &'static str, connection: &mut SqliteConnection, id: Option<i64>) -> Result<u64, IndexError> {
    const SQL: &str = "UPDATE registrations SET state = 1 WHERE state = 0 AND (?1 IS NULL OR id = ?1)";
    let mut transaction = Write::begin(op, connection).await?;
    let abandoned = execute(op, &mut transaction, SQL, |query| query.bind(id)).await?;
    transaction.commit().await?;
    Ok(abandoned)
}

async fn enter_some_dedup(
    op: &'static str,
    connection: &mut SqliteConnection,
    dedup: &[(ChunkHash, XorbHash)],
) -> Result<(), IndexError> {
    let mut transaction = Write::begin(op, connection).await?;
    for some in dedup.chunks(BATCH_FILE_COUNT) {
        // A xorb that is damaged by now is mentioned to no client, whatever its chunks are.
        write_dedup(op, &mut transaction, some).await?.ok();
    }
    transaction.commit().await
}

/// Inserts the xorbs of these chunks; the error is a missing or damaged xorb.
async fn write_dedup(
    op: &'static str,
    connection: &mut SqliteConnection,
    dedup: &[(ChunkHash, XorbHash)],
) -> Result<Result<(), XorbHash>, IndexError> {
    const INSERT: (&str, &str) = ("INSERT INTO dedup_chunks (chunk_hash, xorb_id) ", " ON CONFLICT DO NOTHING");
    let xorbs: HashSet<XorbHash> = dedup.iter().map(|(_, xorb)| *xorb).collect();
    let named = match Named::find(op, connection, &xorbs.into_iter().collect::<Vec<_>>()).await? {
        Ok(named) => named,
        Err(Unusable::Unknown(xorb) | Unusable::Damaged(xorb)) => return Ok(Err(xorb)),
    };
    let rows: Vec<_> = dedup.iter().filter_map(|(chunk, xorb)| Some((*chunk, *named.ids().get(xorb)?))).collect();
    insert_rows(op, connection, INSERT, &rows, |columns, (chunk, xorb)| {
        columns.push_bind(chunk.as_bytes().to_vec()).push_bind(*xorb);
    })
    .await?;
    Ok(Ok(()))
}
