//! Responses to two requests of clients. A *reconstruction* tells a client which chunks of which
//! xorbs a file consists of. A *dedup query* asks whether a chunk is stored, and its response lists
//! xorbs that contain the chunk. Both requests use only the index and open no blob.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::coop::consume_budget;

use super::Server;
use super::access::Claims;
use super::download::StoredXorb;
use super::error::StoreError;
use super::reconstruct::{BatchPlan, FileTerm, Inconsistency, Plan, PlanError, Planned, Planner, place_terms, select};
use super::response_budget::ResponseBudget;
use super::scope::{dedup_scope, reader};
use crate::format::shard::{CasChunk, CasInfo, DedupResponse, write_dedup_response};
use crate::format::xorb::ChunkPlace;
use crate::format::{ByteRange, ChunkHash, FileHash, HmacKey, XorbHash};
use crate::index::{FileRow, XorbContents};
use crate::runtime::clock::Timestamp;

/// How long clients may use the response to a dedup query. GC retains the xorb for the same time,
/// because a client may register a file with it until then. Stock clients store these responses for
/// three weeks (spec 7.5).
const DEDUP_LEASE: Duration = Duration::from_secs(21 * 24 * 3600);

/// How much longer a lease is than it must be. Within this time further responses that mention the
/// same xorbs write nothing, so a chunk that many clients ask for does not occupy the only writer.
const DEDUP_LEASE_SLACK: Duration = Duration::from_secs(3600);

/// The lengths of chunks are left out of a reconstruction of a longer range (spec 5.1).
const MAX_DETAILED_LEN: u64 = 1 << 30;

/// The lengths of chunks are also left out of a reconstruction with more chunks. In common files,
/// 1 GiB has at most 131 072 chunks. But with chunks of one byte, it would have 10⁹.
const MAX_DETAILED_COUNT: u64 = 256 << 10;

/// Maximum number of terms of all files of a batch, because the whole batch is planned in memory. A
/// file of 100 GiB has some thousand terms. Larger files can be requested one at a time, in ranges.
const MAX_BATCH_TERM_COUNT: usize = 100_000;

/// Maximum number of xorbs whose layouts are in memory at the same time for a plan. These layouts
/// take 8 MiB for common xorbs, and up to 64 MiB for xorbs with small chunks. Stock clients request
/// 256 MB of a file at a time, which is in about ten xorbs.
pub(super) const PLANNED_XORB_COUNT: usize = 1024;

/// A range with every byte that a file can have.
const WHOLE: Option<ByteRange> = ByteRange::new(0, u64::MAX);

/// The reconstruction of a range of a file.
#[derive(Debug)]
pub struct Reconstruction {
    /// Length of the file in bytes.
    pub file_len: u64,
    /// The terms, and the byte ranges of the xorbs that contain them.
    pub plan: Plan,
    /// For each term the raw lengths of its chunks. `None` if they were not requested, if the
    /// range is too long, or if it has too many chunks.
    pub chunk_raw_lens: Option<Vec<Vec<u32>>>,
    /// The memory reserved for the plan, and for the text of the response.
    pub budget: ResponseBudget,
}

/// The reconstruction of several whole files.
#[derive(Debug)]
pub struct BatchReconstruction {
    /// The terms, and the byte ranges of the xorbs that contain them.
    pub plan: BatchPlan,
    /// The memory reserved for the plan, and for the text of the response.
    pub budget: ResponseBudget,
}

/// The requested detail of a reconstruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The terms.
    Terms,
    /// The terms and the lengths of their chunks, unless the range is too long for that.
    Chunks,
}

/// Why there is no reconstruction.
#[derive(Debug, Error)]
pub enum ReconstructError {
    /// The file does not exist, or this reader may not see it. Both are deliberately
    /// indistinguishable.
    #[error("file not found")]
    NotFound,
    /// The range begins after the end of the file.
    #[error("the range begins after the end of the file, which has {file_len} bytes")]
    PastEnd {
        /// Length of the file in bytes.
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
        /// The maximum number of terms.
        limit: usize,
    },
    /// The index contradicts itself.
    #[error("file {file} cannot be reconstructed")]
    Inconsistent {
        /// Which file.
        file: FileHash,
        /// The contradiction.
        #[source]
        source: Inconsistency,
    },
    /// The store failed.
    #[error("the file could not be looked up")]
    Store(#[from] StoreError),
}

impl Server {
    /// Length of a file in bytes; `None` if the holder of these claims may not read it, or if it
    /// does not exist.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn file_len(&self, claims: &Claims, file: FileHash) -> Result<Option<u64>, StoreError> {
        Ok(self.store.index.find_file(file, reader(claims), None).await?.map(|row| row.raw_len))
    }

    /// The reconstruction of a range of a file, or of the whole file. The cost is proportional to
    /// the terms of the range, not of the file.
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

    /// The reconstruction of several whole files.
    ///
    /// # Errors
    ///
    /// See [`ReconstructError`]. One missing file is an error for the whole batch.
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

    /// Makes the plan of a planner, with the layouts of some xorbs at a time. An error names
    /// `file`, the first of the planned files, even if another file is inconsistent. The budget
    /// moves into each computation, because a computation that has begun completes and uses memory
    /// even if the caller is cancelled.
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

    /// The response to a dedup query: a shard that lists a xorb with the chunk, and its neighbours
    /// in files. The chunk hashes in it are keyed with a new random key. `None` if no xorb has the
    /// chunk, or if the client may not learn of the xorb.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn dedup_response(&self, claims: &Claims, chunk: ChunkHash) -> Result<Option<Vec<u8>>, StoreError> {
        if self.dedup_filter.lacks(&chunk) {
            return Ok(None);
        }
        let now = self.store.clock.now();
        let after = |time: Duration| {
            Timestamp::from_millis(now.as_millis().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
        };
        let usable_until = after(DEDUP_LEASE);
        let lease_until = usable_until..=after(DEDUP_LEASE + DEDUP_LEASE_SLACK);
        let dedup_scope = dedup_scope(&claims.repo);
        let Some(hit) = self.store.index.find_dedup(chunk, dedup_scope, lease_until).await? else { return Ok(None) };
        let hashes = std::iter::once(hit.xorb).chain(hit.neighbours).collect();
        let contents = self.store.index.xorb_contents(hashes).await?;
        let chunk_count = contents.iter().map(|xorb| xorb.chunk_hashes.len()).sum();
        let response = move || {
            let xorbs = contents.iter().map(|xorb| describe(xorb, chunk)).collect::<Option<Vec<_>>>()?;
            let response = DedupResponse {
                xorbs: &xorbs,
                key: HmacKey::from_bytes(rand::random()),
                created_unix_secs: now.as_secs(),
                key_expires_unix_secs: usable_until.as_secs(),
            };
            // If the shard cannot be written, the response is that the chunk is not stored. Then
            // the client uploads the chunk. An invalid shard would make its whole upload fail.
            write_dedup_response(&response).ok()
        };
        Ok(self.compute(chunk_count, response).await)
    }

    /// The row of a file, with the terms of this part of the file; without terms if `part` is
    /// `None`.
    pub(super) async fn file_row(
        &self,
        claims: &Claims,
        file: FileHash,
        part: Option<ByteRange>,
    ) -> Result<FileRow, ReconstructError> {
        let row = self.store.index.find_file(file, reader(claims), part).await.map_err(StoreError::from)?;
        if row.is_none() && file == FileHash::EMPTY {
            // The empty file always exists, registered or not (spec 5.1).
            return Ok(FileRow { hash: file, raw_len: 0, terms: Vec::new(), terms_start: 0 });
        }
        row.ok_or(ReconstructError::NotFound)
    }

    /// The layouts of these xorbs. Xorbs that do not exist are left out. A damaged xorb is an
    /// error, because a client with a plan that needs it would fail later.
    async fn layouts(
        &self,
        xorbs: impl Iterator<Item = XorbHash> + Send,
    ) -> Result<HashMap<XorbHash, Arc<StoredXorb>>, ReconstructError> {
        let mut layouts = HashMap::new();
        for hash in xorbs {
            if let Some(xorb) = self.store.find(hash).await? {
                if xorb.is_damaged() {
                    return Err(ReconstructError::DamagedXorb { xorb: hash });
                }
                layouts.insert(hash, xorb);
            }
            // Yields to other tasks from time to time. If all layouts are cached, nothing else in
            // this loop does.
            consume_budget().await;
        }
        Ok(layouts)
    }
}

/// A xorb for the response to a dedup query, before its chunk hashes are keyed. `None` if it is too
/// long for a shard.
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

/// The terms of a row, with their positions in the file.
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
