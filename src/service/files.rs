//! Reading files: the plan of a range, and dedup responses.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::coop::consume_budget;

use super::Cas;
use super::access::{Claims, RepoScope};
use super::download::StoredXorb;
use super::error::StoreError;
use super::reconstruct::{BatchPlan, FileTerm, Inconsistency, Plan, PlanError, Planned, Planner, place_terms, select};
use super::register::dedup_scope;
use super::response_budget::ResponseBudget;
use crate::format::shard::{CasChunk, CasInfo, DedupResponse, write_dedup_response};
use crate::format::xorb::ChunkPlace;
use crate::format::{ByteRange, ChunkHash, FileHash, HmacKey, XorbHash};
use crate::index::{FileRow, Reader, XorbContents};
use crate::runtime::clock::Timestamp;

/// How long clients may use a dedup response, and how long its xorb stays because of it. Stock
/// clients store such shards for three weeks (spec 7.5).
const DEDUP_LEASE: Duration = Duration::from_secs(21 * 24 * 3600);

/// A longer range is returned without the lengths of its chunks (spec 5.1).
const MAX_DETAILED_LEN: u64 = 1 << 30;

/// So are more chunks: a GiB of the shortest common chunks has 131 072, but one of single bytes
/// would have 10⁹.
const MAX_DETAILED_COUNT: u64 = 256 << 10;

/// Terms of all files of a batch, at most: they are planned in memory, and a response takes some
/// KiB for each. One file of 100 GiB has some thousand; clients request larger ones alone, in
/// ranges.
const MAX_BATCH_TERM_COUNT: usize = 100_000;

/// Xorbs whose layouts are in memory at once, for each plan: 8 MiB of common ones, and up to 64
/// where chunks are small. Stock clients request 256 MB of a file at once, in some ten xorbs.
pub(super) const PLANNED_XORB_COUNT: usize = 1024;

/// Every byte that a file can have.
const WHOLE: Option<ByteRange> = ByteRange::new(0, u64::MAX);

/// The plan of a range of a file.
#[derive(Debug)]
pub struct Reconstruction {
    /// Bytes of the file.
    pub file_len: u64,
    /// The terms and the places of their chunks.
    pub plan: Plan,
    /// For each term the raw lengths of its chunks, if they were requested.
    pub chunk_raw_lens: Option<Vec<Vec<u32>>>,
    /// Covers the plan, and its text while that is made.
    pub budget: ResponseBudget,
}

/// The plan of several whole files.
#[derive(Debug)]
pub struct BatchReconstruction {
    /// The terms and the places of their chunks.
    pub plan: BatchPlan,
    /// As for a single file.
    pub budget: ResponseBudget,
}

/// The requested detail of a reconstruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The terms.
    Terms,
    /// Also the lengths of their chunks, unless the range is very long.
    Chunks,
}

/// Why there is no reconstruction.
#[derive(Debug, Error)]
pub enum ReconstructError {
    /// There is no such file, or this reader may not see it. Both are deliberately
    /// indistinguishable.
    #[error("file not found")]
    NotFound,
    /// The range begins after the end of the file.
    #[error("the range begins after the end of the file, which has {file_len} bytes")]
    PastEnd {
        /// Bytes of the file.
        file_len: u64,
    },
    /// Bytes of the range are in a xorb whose blob is known to be damaged.
    #[error("xorb {xorb} is damaged, and the range needs it")]
    DamagedXorb {
        /// Which xorb.
        xorb: XorbHash,
    },
    /// The files of a query have too many terms to be planned at once.
    #[error("the files have more than {limit} terms together")]
    BatchTooLarge {
        /// Terms that they may have.
        limit: usize,
    },
    /// The index contradicts itself.
    #[error("file {file} cannot be reconstructed")]
    Inconsistent {
        /// Which file.
        file: FileHash,
        /// How.
        #[source]
        source: Inconsistency,
    },
    /// The store failed.
    #[error("the file could not be looked up")]
    Store(#[from] StoreError),
}

impl Cas {
    /// Length of a file in bytes; `None` where this reader sees none.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn file_len(&self, claims: &Claims, file: FileHash) -> Result<Option<u64>, StoreError> {
        Ok(self.index.find_file(file, reader(claims), None).await?.map(|row| row.raw_len))
    }

    /// The plan of a range of a file, or of all of it. The cost grows with the terms around the
    /// range.
    ///
    /// # Errors
    ///
    /// See [`ReconstructError`].
    pub async fn reconstruct(
        &self,
        claims: &Claims,
        file: FileHash,
        range: Option<ByteRange>,
        detail: Detail,
    ) -> Result<Reconstruction, ReconstructError> {
        let row = self.file_row(claims, file, range.or(WHOLE)).await?;
        let (file_len, term_count) = (row.raw_len, row.terms.len());
        let budget = self.plan_budget(term_count).await?;
        let find = move || {
            let terms = place(&row)?;
            let selection = select(&terms, file_len, range).map_err(|error| plan_error(file, error))?;
            let is_short = selection.wanted().map_or(0, ByteRange::byte_len) <= MAX_DETAILED_LEN;
            let chunk_limit = (detail == Detail::Chunks && is_short).then_some(MAX_DETAILED_COUNT);
            Ok::<_, ReconstructError>((Planner::new(&[selection], PLANNED_XORB_COUNT, chunk_limit), budget))
        };
        let found = self.compute(term_count, find).await?;
        let (planned, budget) = self.plan(file, found).await?;
        let Planned { plan: BatchPlan { files, xorbs }, chunk_raw_lens } = planned;
        let file = files.into_iter().next().expect("there is a plan for each file");
        Ok(Reconstruction { file_len, plan: Plan { file, xorbs }, chunk_raw_lens, budget })
    }

    /// The plan of several whole files.
    ///
    /// # Errors
    ///
    /// See [`ReconstructError`]; one missing file is enough.
    pub async fn reconstruct_all(
        &self,
        claims: &Claims,
        files: &[FileHash],
    ) -> Result<BatchReconstruction, ReconstructError> {
        let (mut rows, mut term_count) = (Vec::new(), 0_usize);
        for file in files {
            let row = self.file_row(claims, *file, WHOLE).await?;
            term_count = term_count.saturating_add(row.terms.len());
            if term_count > MAX_BATCH_TERM_COUNT {
                return Err(ReconstructError::BatchTooLarge { limit: MAX_BATCH_TERM_COUNT });
            }
            rows.push(row);
        }
        let budget = self.plan_budget(term_count).await?;
        let first = files.first().copied().unwrap_or(FileHash::EMPTY);
        let find = move || {
            let terms = rows.iter().map(place).collect::<Result<Vec<_>, _>>()?;
            let select = |(row, terms): (&FileRow, _)| {
                select(terms, row.raw_len, None).map_err(|error| plan_error(row.hash, error))
            };
            let selections = rows.iter().zip(terms.iter().map(Vec::as_slice)).map(select);
            let selections = selections.collect::<Result<Vec<_>, _>>()?;
            Ok::<_, ReconstructError>((Planner::new(&selections, PLANNED_XORB_COUNT, None), budget))
        };
        let found = self.compute(term_count, find).await?;
        let (planned, budget) = self.plan(first, found).await?;
        Ok(BatchReconstruction { plan: planned.plan, budget })
    }

    /// Makes a plan, for this file and perhaps others, with the layouts of some of its xorbs in
    /// memory. The budget moves along: work that has begun completes even when the caller is
    /// cancelled.
    async fn plan(
        &self,
        file: FileHash,
        (mut planner, mut budget): (Planner, ResponseBudget),
    ) -> Result<(Planned, ResponseBudget), ReconstructError> {
        let term_count = planner.term_count();
        while let Some(run) = planner.next_run() {
            let layouts = self.layouts(run.xorbs()).await?;
            let item_count = planner.item_count(&run);
            let plan = move || {
                let planned =
                    planner.plan(run, |xorb| layouts.get(xorb).map(|xorb| (xorb.incarnation(), xorb.layout())));
                planned.map(|()| (planner, budget))
            };
            let inconsistent = |source| ReconstructError::Inconsistent { file, source };
            (planner, budget) = self.compute(item_count, plan).await.map_err(inconsistent)?;
        }
        Ok(self.compute(term_count, move || (planner.finish(), budget)).await)
    }

    /// The response to a dedup query: a shard with the xorb that has the chunk, blinded with a
    /// fresh key. `None` where there is nothing to tell, for any reason.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn dedup_response(&self, claims: &Claims, chunk: ChunkHash) -> Result<Option<Vec<u8>>, StoreError> {
        if self.asked_chunks.lacks(&chunk) {
            return Ok(None);
        }
        let now = self.clock.now();
        let lease_until = Timestamp::from_millis(
            now.as_millis().saturating_add(u64::try_from(DEDUP_LEASE.as_millis()).unwrap_or(u64::MAX)),
        );
        let dedup_scope = dedup_scope(&claims.repo);
        let Some(hit) = self.index.find_dedup(chunk, dedup_scope, lease_until).await? else { return Ok(None) };
        let hashes = std::iter::once(hit.xorb).chain(hit.neighbours).collect();
        let contents = self.index.xorb_contents(hashes).await?;
        let chunk_count = contents.iter().map(|xorb| xorb.chunk_hashes.len()).sum();
        let response = move || {
            let xorbs = contents.iter().map(|xorb| describe(xorb, chunk)).collect::<Option<Vec<_>>>()?;
            let response = DedupResponse {
                xorbs: &xorbs,
                key: HmacKey::from_bytes(rand::random()),
                created_unix_secs: now.as_secs(),
                key_expires_unix_secs: lease_until.as_secs(),
            };
            // A client fails its whole upload over an unreadable shard; a missing response costs it
            // nothing.
            write_dedup_response(&response).ok()
        };
        Ok(self.compute(chunk_count, response).await)
    }

    /// The file, with the terms around this part of it.
    pub(super) async fn file_row(
        &self,
        claims: &Claims,
        file: FileHash,
        part: Option<ByteRange>,
    ) -> Result<FileRow, ReconstructError> {
        let row = self.index.find_file(file, reader(claims), part).await.map_err(StoreError::from)?;
        if row.is_none() && file == FileHash::EMPTY {
            // The empty file always exists, registered or not (spec 5.1).
            return Ok(FileRow { hash: file, raw_len: 0, terms: Vec::new(), terms_start: 0 });
        }
        row.ok_or(ReconstructError::NotFound)
    }

    /// The layouts of these xorbs; missing ones are left out. A damaged one is an error: a plan
    /// with it would only fail later.
    async fn layouts(
        &self,
        xorbs: impl Iterator<Item = XorbHash> + Send,
    ) -> Result<HashMap<XorbHash, Arc<StoredXorb>>, ReconstructError> {
        let mut layouts = HashMap::new();
        for hash in xorbs {
            if let Some(xorb) = self.find(hash).await? {
                if xorb.is_damaged() {
                    return Err(ReconstructError::DamagedXorb { xorb: hash });
                }
                layouts.insert(hash, xorb);
            }
            // Thousands may be cached, and then nothing else here awaits.
            consume_budget().await;
        }
        Ok(layouts)
    }
}

/// A xorb as a response describes it, before its chunk hashes are blinded.
fn describe(contents: &XorbContents, asked: ChunkHash) -> Option<CasInfo> {
    let narrow = |number: u64| u32::try_from(number).ok();
    let chunk = |(place, hash): (ChunkPlace, &ChunkHash)| {
        Some(CasChunk {
            hash: *hash,
            raw_offset: narrow(place.raw.start())?,
            raw_len: narrow(place.raw.byte_len())?,
            dedup_eligible: hash.is_dedup_eligible() || *hash == asked,
        })
    };
    let chunks = contents.layout.chunks().zip(&contents.chunk_hashes).map(chunk).collect::<Option<_>>()?;
    Some(CasInfo { hash: contents.hash, chunks, raw_len: narrow(contents.layout.raw_len())? })
}

pub(super) fn reader(claims: &Claims) -> Reader {
    match &claims.repo {
        RepoScope::All => Reader::All,
        RepoScope::One(repo) => Reader::Repo(repo.to_string()),
    }
}

/// The terms of a file, or of a part, with their places.
fn place(row: &FileRow) -> Result<Vec<FileTerm>, ReconstructError> {
    let too_long = PlanError::Inconsistent(Inconsistency::Gap { offset: row.raw_len });
    place_terms(row.terms_start, &row.terms).ok_or_else(|| plan_error(row.hash, too_long))
}

fn plan_error(file: FileHash, error: PlanError) -> ReconstructError {
    match error {
        PlanError::PastEnd { file_len } => ReconstructError::PastEnd { file_len },
        PlanError::Inconsistent(source) => ReconstructError::Inconsistent { file, source },
    }
}
