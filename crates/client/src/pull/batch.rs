//! Many small files by one plan (spec 5.3), which is one request instead of two for each, and few
//! fetches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use xet_format::merkle::Aggregator;
use xet_format::{ChunkRange, FileHash, XorbHash};

use super::PullError;
use super::decode::decode;
use super::fetch::Fetcher;
use super::plan::{MAX_PLAN_LEN, Places, Plan, PlanTarget, parse_parts, parse_term};
use crate::activity::Activity;
use crate::error::RequestError;
use crate::machine::Workers;
use crate::retry::Retries;
use crate::server::{Server, Watch};
use crate::wire::{BatchJson, DescriptorJson, FetchJson};

/// Files of one plan, at most: servers take no more (docs/http-files.md).
pub const MAX_BATCH_COUNT: usize = 1000;

/// Files that are being put together and written at once.
const WRITING_COUNT: usize = 32;

/// Takes files that were pulled together.
pub trait FileSink: Send + Sync + 'static {
    /// Takes one of them, proven by its hash, or why there is none. May block.
    fn take(&self, file: FileHash, bytes: Result<Vec<u8>, PullError>);
}

impl Server {
    /// Gets files that fit into memory, each of them and some dozen at once: at most
    /// [`MAX_BATCH_COUNT`], with the lengths that they are to have, none of them empty. Each is
    /// given to the sink when its hash has proven it.
    ///
    /// # Errors
    ///
    /// The server has not all of them, or has no such route, or breaks off. The sink may have taken
    /// some.
    pub async fn pull_small(
        &self,
        files: &[(FileHash, u64)],
        job_count: usize,
        workers: &Workers,
        sink: &Arc<dyn FileSink>,
        watch: &Arc<dyn Watch>,
    ) -> Result<(), PullError> {
        let target = PlanTarget::Files(files.into());
        let (plan, counts) = batch_plan(self, files, watch).await?;
        let mut fetcher = Fetcher::new(self, target, &plan, job_count, watch);
        let mut running = VecDeque::new();
        let mut rest = plan.terms.as_slice();
        for ((file, _), count) in files.iter().copied().zip(counts) {
            let (terms, behind) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            rest = behind;
            let mut pieces = Vec::with_capacity(terms.len());
            for term in terms {
                let bytes = fetcher.part(term.part).await?;
                let part = plan.parts.get(term.part).expect("terms name parts of their plan");
                let (xorb, first) = (part.xorb, part.chunks.start());
                pieces.push(Piece { bytes, xorb, first, chunks: term.chunks, raw_len: term.raw_len });
            }
            terms.iter().for_each(|term| fetcher.release(term.part));
            let sink = Arc::clone(sink);
            let start = Box::pin(workers.start(move || sink.take(file, assemble(file, &pieces))));
            running.push_back(fetcher.alongside(start).await?);
            while running.len() > WRITING_COUNT
                && let Some(first) = running.pop_front()
            {
                fetcher.alongside(first).await?;
            }
        }
        for last in running {
            last.await;
        }
        Ok(())
    }
}

/// Chunks of a file, and the part of a xorb that they are in.
struct Piece {
    bytes: Bytes,
    xorb: XorbHash,
    /// The first chunk of the part.
    first: u32,
    chunks: ChunkRange,
    raw_len: u64,
}

/// Decompresses a file, and proves it.
fn assemble(file: FileHash, pieces: &[Piece]) -> Result<Vec<u8>, PullError> {
    let (mut raw, mut aggregator) = (Vec::new(), Aggregator::new());
    for piece in pieces {
        let decoded = decode(&piece.bytes, piece.first, piece.chunks)
            .map_err(|source| PullError::Damaged { xorb: piece.xorb, source })?;
        let (expected, actual) = (piece.raw_len, decoded.raw.len() as u64);
        if expected != actual {
            return Err(PullError::WrongLen { xorb: piece.xorb, expected, actual });
        }
        decoded.chunks.iter().for_each(|(hash, len)| aggregator.push(hash, *len));
        raw.extend_from_slice(&decoded.raw);
    }
    let actual = aggregator.file_hash();
    if actual == file { Ok(raw) } else { Err(PullError::WrongFile { file, actual }) }
}

/// Asks for the plan of these files, as often as it takes: the terms of all of them, and how many
/// each has.
pub(super) async fn batch_plan(
    server: &Server,
    files: &[(FileHash, u64)],
    watch: &Arc<dyn Watch>,
) -> Result<(Plan, Vec<usize>), PullError> {
    let failed = |error| PullError::Batch { count: files.len(), source: Box::new(error) };
    let mut retries = Retries::new(server.retry, Arc::clone(watch));
    loop {
        match batch_plan_once(server, files).await {
            Ok(json) => return parse(json, files).map_err(|what| failed(server.strange(what))),
            Err(error) => retries.after(error).await.map_err(failed)?,
        }
    }
}

async fn batch_plan_once(server: &Server, files: &[(FileHash, u64)]) -> Result<BatchJson, RequestError> {
    let keys: Vec<_> = files.iter().map(|(file, _)| json!({"prefix": "default", "hash": file.to_string()})).collect();
    let response = server.send(server.post_request("v1/reconstructions").json(&keys), &Activity::new()).await?;
    server.json_within(response, MAX_PLAN_LEN).await
}

/// Reads a plan. What it promises has to be possible: who fetches it allocates by it.
fn parse(mut json: BatchJson, files: &[(FileHash, u64)]) -> Result<(Plan, Vec<usize>), &'static str> {
    let entries = json.fetch_info.into_iter().map(|(xorb, entries)| {
        let parts = entries.into_iter().map(|entry| FetchJson {
            url: entry.url,
            ranges: vec![DescriptorJson { chunks: entry.range, bytes: entry.url_range }],
        });
        (xorb, parts.collect())
    });
    let xorbs: BTreeMap<String, Vec<FetchJson>> = entries.collect();
    let (parts, places): (_, Places) = parse_parts(&xorbs)?;
    let mut plan = Plan { skipped_len: 0, terms: Vec::new(), parts };
    let mut counts = Vec::with_capacity(files.len());
    for (file, len) in files {
        let terms = json.files.remove(&file.to_string()).ok_or("a file is not in its plan")?;
        counts.push(terms.len());
        let mut planned_len = 0_u64;
        for term in &terms {
            let term = parse_term(term, &plan.parts, &places)?;
            planned_len = planned_len.saturating_add(term.raw_len);
            plan.terms.push(term);
        }
        if planned_len != *len {
            return Err("a file has an unexpected length");
        }
    }
    Ok((plan, counts))
}
