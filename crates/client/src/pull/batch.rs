//! Gets many small files with one plan (spec 5.3): one request for all of them instead of two per
//! file, and few fetches.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use xet_format::merkle::Aggregator;
use xet_format::{ChunkRange, FileHash, XorbHash};

use super::PullError;
use super::batch_plan::batch_plan;
use super::decode::decode;
use super::fetch::Fetcher;
use super::target::PlanTarget;
use crate::machine::Workers;
use crate::server::Server;
use crate::watch::Watch;

/// Files of one plan, at most: servers accept no more (docs/http-files.md).
pub const MAX_BATCH_COUNT: usize = 1000;

/// Files that are assembled and written at once, about.
const WRITING_COUNT: usize = 32;

/// Fetched bytes of one file that are held before they are decompressed, about. A file of a few
/// terms has less; without this limit a plan of many terms could take all memory.
const HELD_LEN: usize = 64 << 20;

/// Takes the files of [`Server::pull_small`].
pub trait FileSink: Send + Sync + 'static {
    /// Takes one file, proven by its hash, or the error for this file. May block.
    fn take(&self, file: FileHash, bytes: Result<Vec<u8>, PullError>);
}

impl Server {
    /// Gets at most [`MAX_BATCH_COUNT`] files with these lengths, none of them empty. Some dozen
    /// files are in memory at once, so they must be small. Each is passed to the sink when its hash
    /// is verified.
    ///
    /// # Errors
    ///
    /// The server lacks one of the files or has no such route, or the transfer fails. The sink may
    /// have received some of the files.
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
            let mut assembly = Ok(Assembly::default());
            let (mut pieces, mut held_len, mut last) = (Vec::new(), 0, None);
            for term in terms {
                let bytes = fetcher.part(term.part).await?;
                if last.replace(term.part) != Some(term.part) {
                    held_len += bytes.len();
                }
                let part = plan.parts.get(term.part).expect("terms name parts of their plan");
                let (xorb, first) = (part.xorb, part.chunks.start());
                pieces.push(Piece { bytes, xorb, first, chunks: term.chunks, raw_len: term.raw_len });
                if held_len > HELD_LEN {
                    let held = std::mem::take(&mut pieces);
                    let add =
                        Box::pin(workers.run(move || assembly.and_then(|assembly: Assembly| assembly.add(&held))));
                    assembly = fetcher.alongside(add).await?;
                    (held_len, last) = (0, None);
                }
            }
            terms.iter().for_each(|term| fetcher.release(term.part));
            let sink = Arc::clone(sink);
            let assemble = move || assembly.and_then(|assembly| assembly.add(&pieces)?.finish(file));
            let start = Box::pin(workers.start(move || sink.take(file, assemble())));
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

/// A term of a file, and the fetched part of a xorb that contains its chunks.
struct Piece {
    /// The bytes of the part.
    bytes: Bytes,
    xorb: XorbHash,
    /// The first chunk of the part.
    first: u32,
    /// The chunks of the term.
    chunks: ChunkRange,
    /// Bytes of the term, according to the plan.
    raw_len: u64,
}

/// The beginning of a file, decompressed.
#[derive(Default)]
struct Assembly {
    raw: Vec<u8>,
    aggregator: Aggregator,
}

impl Assembly {
    /// Decompresses and adds the next terms.
    fn add(mut self, pieces: &[Piece]) -> Result<Self, PullError> {
        for piece in pieces {
            let decoded = decode(&piece.bytes, piece.first, piece.chunks)
                .map_err(|source| PullError::Damaged { xorb: piece.xorb, source })?;
            let (expected, actual) = (piece.raw_len, decoded.raw.len() as u64);
            if expected != actual {
                return Err(PullError::WrongLen { xorb: piece.xorb, expected, actual });
            }
            decoded.chunks.iter().for_each(|(hash, len)| self.aggregator.push(hash, *len));
            self.raw.extend_from_slice(&decoded.raw);
        }
        Ok(self)
    }

    /// The bytes of the complete file, verified by its hash.
    fn finish(self, file: FileHash) -> Result<Vec<u8>, PullError> {
        let actual = self.aggregator.file_hash();
        if actual == file { Ok(self.raw) } else { Err(PullError::WrongFile { file, actual }) }
    }
}
