//! Registrations in PostgreSQL: in one transaction (*whole*), or in steps.
//!
//! New files are written in batches, with as many statements for 256 files as for one, and usage is
//! counted once for the batch. Known files are looked up in batches; their changes are written file
//! by file.
//!
//! A file with very many terms is written in parts: the row and its claim, then the references to
//! its xorbs, then the terms. So GC never sees a term whose xorb has no reference from the file.
//! A known file with more than 1024 references is claimed in parts, too.
//!
//! A whole registration is visible after its transaction. The rows of steps are invisible until the
//! registration is published: see [`register`](crate::index::register) for what a crash leaves.

mod entry;
mod insert;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::query;

use self::entry::Entry;
pub(super) use self::insert::next_ids;
use super::PostgresIndex;
use super::bulk::insert_rows;
use super::discard::{self, FIND_FINISHED};
use super::lists::after_bytes;
use super::named::{Named, Unusable};
use super::records::mark_record_applied;
use super::tx::Tx;
use super::usage::usages;
use crate::format::{ChunkHash, XorbHash};
use crate::index::error::IndexError;
use crate::index::register::{STEP_RUN_COUNT, STEP_TIME, WHOLE_TIME};
use crate::index::{Cursor, OpenRegistration, RegisterIndex, Registered, Registration, StepOutcome};
use crate::runtime::clock::Timestamp;

/// Files of one batch, which one statement of each kind writes. One in unit tests, so that a step
/// can end between small files.
const BATCH_FILE_COUNT: usize = if cfg!(test) { 1 } else { 256 };

/// Which registration wrote a row: the columns `registration` and `claim_registration` (migration
/// 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// None: the row is visible after its transaction.
    Whole,
    /// This one: the row is visible when the registration is published.
    Step(i64),
}

impl Mark {
    /// The mark of the rows of this number of new files. The triggers count the usage of rows with
    /// mark 0. For one file they take fewer statements; the usage of several is counted at once.
    const fn of_new(self, file_count: usize) -> i64 {
        match self {
            Self::Whole if file_count == 1 => 0,
            Self::Whole => -1,
            Self::Step(id) => id,
        }
    }

    /// The number of the registration, if it is written in steps.
    const fn of_step(self) -> Option<i64> {
        match self {
            Self::Whole => None,
            Self::Step(id) => Some(id),
        }
    }

    /// The mark of claims to files that existed before, which the triggers count, and of sha256
    /// claims.
    const fn of_claim(self) -> i64 {
        match self {
            Self::Whole => 0,
            Self::Step(id) => id,
        }
    }
}

impl RegisterIndex for PostgresIndex {
    fn register_of<'a>(
        &'a self,
        registration: &'a Registration,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<Option<Registered>, IndexError>> {
        #[cfg(test)]
        if self.registers_in_steps {
            return async move { self.register_in_steps(registration, record).await.map(Some) }.boxed();
        }
        async move {
            let start = Cursor::start(registration);
            let mut held = self.writing("register files").await?;
            let mut tx = held.begin().await?;
            let Some(outcome) = write_whole(&mut tx, registration, start).await? else {
                tx.rollback().await?;
                return Ok(None);
            };
            match outcome {
                Registered::New | Registered::Added => {
                    mark_record_applied(&mut tx, record).await?;
                    tx.commit().await?;
                }
                // The caller rolls its record back.
                Registered::Known => tx.commit().await?,
                _ => tx.rollback().await?,
            }
            Ok(Some(outcome))
        }
        .boxed()
    }

    fn begin_registration<'a>(
        &'a self,
        registration: &'a Registration,
    ) -> BoxFuture<'a, Result<OpenRegistration, IndexError>> {
        async move {
            let mut held = self.writing("begin a registration").await?;
            let mut tx = held.begin().await?;
            let (repo, owner) = usages(&mut tx, registration).await?;
            let begin = query("INSERT INTO registrations (own_lock) VALUES ($1) RETURNING id").bind(tx.own_lock());
            let id = tx.one(begin).await?;
            tx.commit().await?;
            Ok(OpenRegistration { id, repo, owner })
        }
        .boxed()
    }

    fn write_step<'a>(
        &'a self,
        begun: OpenRegistration,
        registration: &'a Registration,
        from: Cursor,
    ) -> BoxFuture<'a, Result<StepOutcome, IndexError>> {
        const IS_OPEN: &str = "SELECT 1::bigint FROM registrations WHERE id = $1 AND state = 0";
        let op = "write a step of a registration";
        async move {
            let mut held = self.writing(op).await?;
            let began = Instant::now();
            let mut tx = held.begin().await?;
            if tx.find::<i64>(query(IS_OPEN).bind(begun.id)).await?.is_none() {
                return Err(IndexError::lost(op, 0));
            }
            let allowance = &registration.allowance;
            let before = if allowance.is_unlimited() { None } else { Some(usages(&mut tx, registration).await?) };
            let mut entry = Entry::new(registration, Mark::Step(begun.id), from);
            while !entry.is_done() {
                if let Some(refused) = entry.write_some(&mut tx).await? {
                    tx.rollback().await?;
                    return Ok(StepOutcome { outcome: refused, next: None });
                }
                if began.elapsed() >= STEP_TIME || entry.run_count >= STEP_RUN_COUNT || cfg!(test) {
                    break;
                }
            }
            if let Some(before) = before
                && entry.outcome != Registered::Known
            {
                let after = usages(&mut tx, registration).await?;
                // The step must fit by itself, because files may have been removed since the
                // beginning. The refusal states what the whole registration has added so far.
                if let Some(of_step) = allowance.excess(before, after) {
                    let excess = allowance.excess((begun.repo, begun.owner), after).unwrap_or(of_step);
                    tx.rollback().await?;
                    return Ok(StepOutcome { outcome: Registered::OverQuota(excess), next: None });
                }
            }
            tx.commit().await?;
            let next = (!entry.is_done()).then_some(entry.at);
            Ok(StepOutcome { outcome: entry.outcome, next })
        }
        .boxed()
    }

    fn publish_registration<'a>(
        &'a self,
        begun: OpenRegistration,
        record: Option<u64>,
    ) -> BoxFuture<'a, Result<(), IndexError>> {
        const SQL: &str = "UPDATE registrations SET state = 2 WHERE id = $1 AND state = 0";
        let op = "publish a registration";
        async move {
            let mut held = self.writing(op).await?;
            let mut tx = held.begin().await?;
            let published = tx.execute(query(SQL).bind(begun.id)).await?;
            if published != 1 {
                return Err(IndexError::lost(op, published));
            }
            mark_record_applied(&mut tx, record).await?;
            tx.commit().await
        }
        .boxed()
    }

    fn write_dedup_step<'a>(
        &'a self,
        registration: &'a Registration,
        from: usize,
        count: usize,
    ) -> BoxFuture<'a, Result<(), IndexError>> {
        async move {
            let end = registration.dedup.len().min(from.saturating_add(count));
            let mut held = self.writing("write chunks that clients may ask for").await?;
            let mut tx = held.begin().await?;
            for some in registration.dedup[from.min(end)..end].chunks(BATCH_FILE_COUNT) {
                // A xorb that is damaged by now is mentioned to no client, whatever its chunks are.
                write_dedup(&mut tx, some, &HashMap::new()).await?.ok();
            }
            tx.commit().await
        }
        .boxed()
    }

    fn dedup_chunk_count(&self) -> BoxFuture<'_, Result<u64, IndexError>> {
        const SQL: &str = "SELECT count(*) FROM dedup_chunks";
        async move { self.read("count the chunks that clients may ask for").one(query(SQL)).await }.boxed()
    }

    fn dedup_chunks_after(
        &self,
        after: Option<ChunkHash>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<ChunkHash>, IndexError>> {
        const SQL: &str =
            "SELECT DISTINCT chunk_hash FROM dedup_chunks WHERE chunk_hash > $1 ORDER BY chunk_hash LIMIT $2";
        let list = query(SQL).bind(after_bytes(after)).bind(i64::from(limit));
        async move { self.read("list the chunks that clients may ask for").all(list).await }.boxed()
    }

    fn sweep_registrations(&self, id: Option<i64>, now: Timestamp) -> BoxFuture<'_, Result<bool, IndexError>> {
        let op = "clean up after a registration";
        async move {
            if self.read(op).find::<i64>(query(FIND_FINISHED).bind(id)).await?.is_none() {
                return Ok(false);
            }
            let mut held = self.writing(op).await?;
            let mut tx = held.begin().await?;
            if !discard::step(&mut tx, id, now).await? {
                return Ok(false);
            }
            tx.commit().await?;
            Ok(true)
        }
        .boxed()
    }

    fn abandon_registrations(&self, id: Option<i64>) -> BoxFuture<'_, Result<u64, IndexError>> {
        const SQL: &str = "UPDATE registrations SET state = 1 WHERE state = 0 AND ($1 IS NULL OR id = $1)";
        async move {
            let mut held = self.writing("abandon a registration").await?;
            let mut tx = held.begin().await?;
            let abandoned = tx.execute(query(SQL).bind(id)).await?;
            tx.commit().await?;
            Ok(abandoned)
        }
        .boxed()
    }

    fn abandon_registrations_of_ended(&self) -> BoxFuture<'_, Result<u64, IndexError>> {
        const SQL: &str = "UPDATE registrations SET state = 1 WHERE state = 0 \
             AND pg_try_advisory_xact_lock_shared(own_lock)";
        async move { self.write("abandon registrations of ended servers").execute(query(SQL)).await }.boxed()
    }
}

pub(super) async fn write_whole(
    tx: &mut Tx<'_>,
    registration: &Registration,
    start: Cursor,
) -> Result<Option<Registered>, IndexError> {
    let allowance = &registration.allowance;
    let before = if allowance.is_unlimited() { None } else { Some(usages(tx, registration).await?) };
    let mut entry = Entry::new(registration, Mark::Whole, start);
    let began = Instant::now();
    while !entry.is_done() {
        if began.elapsed() >= WHOLE_TIME {
            return Ok(None);
        }
        if let Some(refused) = entry.write_some(tx).await? {
            return Ok(Some(refused));
        }
    }
    if entry.is_too_long {
        return Ok(None);
    }
    if let Some(before) = before
        && entry.outcome != Registered::Known
        && let Some(excess) = allowance.excess(before, usages(tx, registration).await?)
    {
        return Ok(Some(Registered::OverQuota(excess)));
    }
    let batches = registration.dedup.chunks(BATCH_FILE_COUNT);
    for (batch, left_count) in batches.clone().zip((1..=batches.len()).rev()) {
        // One more batch takes less time than to write the files once more, in steps.
        if left_count > 1 && began.elapsed() >= WHOLE_TIME {
            return Ok(None);
        }
        if let Err(missing) = write_dedup(tx, batch, &entry.ids).await? {
            return Ok(Some(Registered::MissingXorb(missing)));
        }
    }
    Ok(Some(entry.outcome))
}

/// Inserts the xorbs of these chunks; the error is a missing or damaged xorb.
///
/// `known` has the ids of xorbs that this transaction has found to be visible and sound.
async fn write_dedup(
    tx: &mut Tx<'_>,
    dedup: &[(ChunkHash, XorbHash)],
    known: &HashMap<XorbHash, i64>,
) -> Result<Result<(), XorbHash>, IndexError> {
    const INSERT: (&str, &str) = ("INSERT INTO dedup_chunks (chunk_hash, xorb_id) ", " ON CONFLICT DO NOTHING");
    let unknown: HashSet<XorbHash> =
        dedup.iter().map(|(_, xorb)| *xorb).filter(|xorb| !known.contains_key(xorb)).collect();
    let named = match Named::find(tx, &unknown.into_iter().collect::<Vec<_>>()).await? {
        Ok(named) => named,
        Err(Unusable::Unknown(xorb) | Unusable::Damaged(xorb)) => return Ok(Err(xorb)),
    };
    let id_of = |xorb| known.get(xorb).or_else(|| named.ids().get(xorb));
    let rows: Vec<_> = dedup.iter().filter_map(|(chunk, xorb)| Some((*chunk, *id_of(xorb)?))).collect();
    insert_rows(tx, INSERT, &rows, |columns, (chunk, xorb)| {
        columns.push_bind(chunk.as_bytes().as_slice()).push_bind(*xorb);
    })
    .await?;
    Ok(Ok(()))
}
