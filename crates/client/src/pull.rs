//! Downloads a file, or a part of it, and proves the bytes by the hash of the file.
//!
//! The reconstruction from the server, called *plan* here, says which chunks of which xorbs form
//! the file. It is not trusted: every received chunk is decompressed and hashed, and all of them
//! together must give the requested hash. A part of a file is proven in the same way, with
//! summaries from the server for the rest of the file.
//!
//! The file is planned and fetched in sequential windows, so that memory is bounded
//! whatever its length. Within a window, several parts of xorbs are fetched at once and before they
//! are needed.

mod batch;
mod batch_plan;
mod decode;
mod error;
mod fetch;
mod length;
mod plan;
mod proof;
mod target;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use xet_format::limits::MIN_CHUNK_RAW_LEN;
use xet_format::merkle::Aggregator;
use xet_format::merkle::subtree::SubtreeBuilder;
use xet_format::xorb::XorbError;
use xet_format::{ByteRange, ByteRangeSpec, ChunkHash, FileHash, XorbHash};

pub use self::batch::{FileSink, MAX_BATCH_COUNT};
use self::decode::{Decoded, Hasher, Writer, decode, slices};
pub use self::error::PullError;
use self::fetch::Fetcher;
use self::length::file_len;
use self::plan::{Plan, plan};
use self::proof::range_proof;
use self::target::PlanTarget;
use super::error::RequestError;
use super::get::Sink;
use super::server::Server;
use super::watch::Watch;
use crate::machine::{Running, Workers};

/// Bytes of a file that are planned at once.
const WINDOW_LEN: u64 = 256 << 20;

/// Slices of terms that are decompressed at once or wait to be written: 16 MiB each at most.
const DECODING_COUNT: usize = 3;

/// Chunks of a window whose hashes are from lists, at most. Only the last chunk of a file is
/// shorter than 8 KiB; of a file of shorter ones the bytes are fetched.
const MAX_LISTED_COUNT: usize = 1 << 15;

/// Lists that are held, at most: each has up to 8192 chunks, and a plan can name thousands of
/// xorbs.
const MAX_LIST_COUNT: usize = 64;

const _: () = assert!(MAX_LISTED_COUNT as u64 * MIN_CHUNK_RAW_LEN as u64 == WINDOW_LEN, "no fewer than a window has");

/// The error for a plan that does not continue at a chunk boundary.
const UNALIGNED: &str = "its plan starts in the middle of a chunk";

/// A request for a file or for a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Which file.
    pub file: FileHash,
    /// Which bytes; `None` for all.
    pub range: Option<ByteRangeSpec>,
    /// Parts of xorbs that are fetched at once, at least one.
    pub job_count: usize,
}

/// What was downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Which bytes of the file; `None` if the file is empty.
    pub bytes: Option<ByteRange>,
    /// How many of these bytes an earlier run has left in the sink.
    pub resumed_len: u64,
    /// Whether the file's hash proves the bytes. `false` for a part of a file if the server has no
    /// summaries for a proof.
    pub is_proven: bool,
}

impl Server {
    /// Gets a file, or a part of it, and writes it to the sink in order. Returns the sink when
    /// everything is proven, as far as [`Pulled::is_proven`] says.
    ///
    /// Before it returns, nothing in the sink is proven. Memory holds 256 MiB of fetched data, or
    /// one part of up to 64 MiB for each job if that is more, and some 64 MiB of decompressed data.
    ///
    /// # Errors
    ///
    /// See [`PullError`].
    pub async fn pull<S: Sink>(
        &self,
        pull: &Pull,
        sink: S,
        workers: &Workers,
        watch: Arc<dyn Watch>,
    ) -> Result<(Pulled, S), PullError> {
        let transfer = Transfer { server: self, pull: *pull, workers, watch };
        match pull.range {
            None if pull.file == FileHash::EMPTY => {
                // What an earlier run may have left is not of this file.
                let begin = move || {
                    let writer = Writer::new(sink, Hasher::Nothing, 0, 0).resume()?;
                    if writer.hashed_len() > 0 { writer.restart(Hasher::Nothing) } else { Ok(writer) }
                };
                let (sink, _, _) = transfer.workers.run(begin).await?.finish();
                Ok((Pulled { bytes: None, resumed_len: 0, is_proven: true }, sink))
            }
            None => transfer.whole(sink).await,
            Some(range) => transfer.part(range, sink).await,
        }
    }
}

/// A pull in progress.
struct Transfer<'a> {
    server: &'a Server,
    pull: Pull,
    workers: &'a Workers,
    watch: Arc<dyn Watch>,
}

impl Transfer<'_> {
    /// Gets a whole file. If the sink has its beginning from an earlier run, fetches only the rest.
    async fn whole<S: Sink>(&self, sink: S) -> Result<(Pulled, S), PullError> {
        let file = self.pull.file;
        let len = file_len(self.server, file, &self.watch).await?;
        self.watch.total(len);
        let empty = || Hasher::File(Aggregator::new());
        let writer = Writer::new(sink, empty(), 0, u64::MAX);
        let writer = self.workers.run(move || writer.resume()).await?;
        let mut resumed_len = writer.written_len();
        let mut got = self.windows(resumed_len, len, writer).await?;
        if resumed_len > 0 && !got.as_ref().is_ok_and(|writer| is_file(writer, file)) {
            // The bytes of the earlier run are not the beginning of this file, although they have
            // their recorded hashes.
            let writer = got.unwrap_or_else(|writer| writer);
            let writer = self.workers.run(move || writer.restart(empty())).await?;
            resumed_len = 0;
            got = self.windows(0, len, writer).await?;
        }
        let writer = got.map_err(|_| self.invalid_response(UNALIGNED))?;
        match writer.finish() {
            (sink, Hasher::File(aggregator), written_len) => {
                let actual = aggregator.file_hash();
                if actual != file {
                    return Err(PullError::WrongFile { file, actual });
                }
                Ok((Pulled { bytes: ByteRange::new(0, written_len), resumed_len, is_proven: true }, sink))
            }
            _ => unreachable!("a whole file is hashed as one"),
        }
    }

    /// Fetches a file from the byte `begin` to its end. If no chunk begins at `begin`, or the file
    /// is shorter, returns the unchanged writer as the inner error.
    async fn windows<S: Sink>(
        &self,
        begin: u64,
        len: u64,
        mut writer: Writer<S>,
    ) -> Result<Result<Writer<S>, Writer<S>>, PullError> {
        if begin > len {
            return Ok(Err(writer));
        }
        self.watch.position(begin);
        let mut offset = begin;
        // The length from the server is not trusted: the hash proves that nothing is missing.
        while let Some(window) = ByteRange::new(offset, len.min(offset.saturating_add(WINDOW_LEN))) {
            let plan = self.plan(window).await?;
            if plan.skipped_len != 0 {
                return if offset == begin { Ok(Err(writer)) } else { Err(self.invalid_response(UNALIGNED)) };
            }
            offset += plan.raw_len();
            writer = self.take(window, &plan, writer).await?;
        }
        Ok(Ok(writer))
    }

    /// Gets a part of a file, with a proof if the server has summaries.
    async fn part<S: Sink>(&self, range: ByteRangeSpec, sink: S) -> Result<(Pulled, S), PullError> {
        let file = self.pull.file;
        let len = if file == FileHash::EMPTY { 0 } else { file_len(self.server, file, &self.watch).await? };
        let bytes = range.resolve(len).ok_or(PullError::PastEnd { file, len, range })?;
        self.watch.total(bytes.byte_len());
        let Some(around) = range_proof(self.server, file, len, bytes, &self.watch).await? else {
            let writer = Writer::new(sink, Hasher::Nothing, 0, bytes.byte_len());
            let (sink, _, _) = self.range(bytes, None, writer).await?.finish();
            return Ok((Pulled { bytes: Some(bytes), resumed_len: 0, is_proven: false }, sink));
        };
        let hasher = Hasher::Part(SubtreeBuilder::new(around.window.start() == 0));
        let writer = Writer::new(sink, hasher, 0, bytes.byte_len());
        // The proof is about whole chunks. So it does not prove which of their bytes are the part.
        let writer = self.range(bytes, Some(bytes.start() - around.window.start()), writer).await?;
        // The chunks of the part are hashed. The proof needs all chunks of its window, which begins
        // with the first of them, but ends at the end of a term. So the rest is hashed, too.
        let end = around.window.start().saturating_add(writer.hashed_len());
        let writer = match ByteRange::new(end, around.window.end()) {
            Some(rest) => self.hash_only(rest, writer).await?,
            None => writer,
        };
        let (sink, hasher, _) = writer.finish();
        let window = match hasher {
            Hasher::Part(builder) => builder.finish(around.is_last),
            Hasher::File(_) | Hasher::Nothing => None,
        };
        if window.and_then(|window| around.file_hash(&window)) != Some(file) {
            return Err(PullError::WrongPart { file, bytes });
        }
        Ok((Pulled { bytes: Some(bytes), resumed_len: 0, is_proven: true }, sink))
    }

    /// Hashes the chunks in these bytes, without writing them. If the token may read the chunk
    /// lists of the xorbs, the hashes are from these lists, because a list has a thousandth of the
    /// bytes of the chunks. The lists are not trusted: the file's hash proves them.
    async fn hash_only<S: Sink>(&self, bytes: ByteRange, writer: Writer<S>) -> Result<Writer<S>, PullError> {
        let mut writer = writer;
        let mut offset = bytes.start();
        while let Some(window) = ByteRange::new(offset, bytes.end().min(offset.saturating_add(WINDOW_LEN))) {
            let plan = self.plan(window).await?;
            offset = offset.saturating_add(plan.raw_len());
            match self.listed(&plan).await? {
                Some(chunks) => writer.hash(&chunks),
                None => writer = self.take(window, &plan, writer).await?,
            }
        }
        Ok(writer)
    }

    /// Hashes and lengths of the chunks of a plan, from the chunk lists of their xorbs; `None` if
    /// the server refuses a list or sends an invalid one, or one that contradicts the plan.
    async fn listed(&self, plan: &Plan) -> Result<Option<Vec<(ChunkHash, u64)>>, PullError> {
        let mut lists: HashMap<XorbHash, Vec<(ChunkHash, u64)>> = HashMap::new();
        let mut chunks = Vec::new();
        for term in &plan.terms {
            let part = plan.parts.get(term.part).expect("terms name parts of their plan");
            if lists.len() >= MAX_LIST_COUNT && !lists.contains_key(&part.xorb) {
                lists.clear();
            }
            let list = match lists.entry(part.xorb) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => match self.server.chunk_list(part.xorb, &self.watch).await {
                    Ok(list) => entry.insert(list),
                    Err(RequestError::Refused { .. } | RequestError::InvalidResponse { .. }) => return Ok(None),
                    Err(error) => return Err(PullError::request(self.pull.file, error)),
                },
            };
            let Some(run) = list.get(term.chunks.start() as usize..term.chunks.end() as usize) else { return Ok(None) };
            // So the chunks have together the length of the plan, which was compared with that of
            // the window: no plan can name more of them than there are bytes.
            if run.iter().map(|(_, len)| len).sum::<u64>() != term.raw_len {
                return Ok(None);
            }
            chunks.extend_from_slice(run);
            if chunks.len() > MAX_LISTED_COUNT {
                return Ok(None);
            }
        }
        Ok(Some(chunks))
    }

    /// Fetches all chunks that contain these bytes, hashes them and writes the bytes. Bytes of the
    /// first chunk before the range are skipped: `skipped_len`, if it is known.
    async fn range<S: Sink>(
        &self,
        bytes: ByteRange,
        skipped_len: Option<u64>,
        writer: Writer<S>,
    ) -> Result<Writer<S>, PullError> {
        let (mut writer, mut offset) = (writer, bytes.start());
        while let Some(window) = ByteRange::new(offset, bytes.end().min(offset.saturating_add(WINDOW_LEN))) {
            let plan = self.plan(window).await?;
            if offset == bytes.start() {
                if skipped_len.is_some_and(|expected| expected != plan.skipped_len) {
                    return Err(PullError::WrongPart { file: self.pull.file, bytes });
                }
                writer.skip(plan.skipped_len);
            } else if plan.skipped_len != 0 {
                return Err(self.invalid_response(UNALIGNED));
            }
            offset += plan.raw_len() - plan.skipped_len;
            writer = self.take(window, &plan, writer).await?;
        }
        Ok(writer)
    }

    /// Requests the plan of a window that begins within the file.
    async fn plan(&self, window: ByteRange) -> Result<Plan, PullError> {
        let plan = plan(self.server, self.pull.file, window, &self.watch).await?;
        let plan = plan.ok_or_else(|| self.invalid_response("the file became shorter"))?;
        if plan.raw_len() - plan.skipped_len < window.byte_len() {
            return Err(self.invalid_response("its plan covers less than requested"));
        }
        Ok(plan)
    }

    /// Fetches the terms of a plan, decompresses them in slices and writes them in order.
    async fn take<S: Sink>(&self, window: ByteRange, plan: &Plan, writer: Writer<S>) -> Result<Writer<S>, PullError> {
        let (file, job_count) = (self.pull.file, self.pull.job_count);
        let mut fetcher = Fetcher::new(self.server, PlanTarget::Range(file, window), plan, job_count, &self.watch);
        let mut writer = writer;
        let mut decoding = VecDeque::new();
        for term in &plan.terms {
            let part = plan.parts.get(term.part).expect("terms name parts of their plan");
            let mut check = TermCheck { xorb: part.xorb, expected: term.raw_len, is_last: false };
            // Decompressed slices are written before this waits for a fetch, so that they are in
            // the sink if the fetch fails.
            while !decoding.is_empty() && !fetcher.has(term.part) {
                writer = self.write_next(&mut decoding, writer, &mut fetcher).await?;
            }
            let bytes = fetcher.part(term.part).await?;
            for chunks in slices(term.chunks) {
                check.is_last = chunks.end() == term.chunks.end();
                let (bytes, first) = (bytes.clone(), part.chunks.start());
                let start = Box::pin(self.workers.start(move || decode(&bytes, first, chunks)));
                decoding.push_back((fetcher.alongside(start).await?, check));
                if decoding.len() > DECODING_COUNT {
                    writer = self.write_next(&mut decoding, writer, &mut fetcher).await?;
                }
            }
            fetcher.release(term.part);
        }
        while !decoding.is_empty() {
            writer = self.write_next(&mut decoding, writer, &mut fetcher).await?;
        }
        Ok(writer)
    }

    /// Waits for the first slice that is being decompressed, checks its length and writes it.
    async fn write_next<S: Sink>(
        &self,
        decoding: &mut VecDeque<(Decoding, TermCheck)>,
        writer: Writer<S>,
        fetcher: &mut Fetcher,
    ) -> Result<Writer<S>, PullError> {
        let Some((running, check)) = decoding.pop_front() else { return Ok(writer) };
        let decoded = fetcher.alongside(running).await?;
        let decoded = decoded.map_err(|source| PullError::Damaged { xorb: check.xorb, source })?;
        let writer = check.run(writer, &decoded)?;
        let write = Box::pin(self.workers.run(move || writer.take(&decoded)));
        let writer = fetcher.alongside(write).await??;
        self.watch.position(writer.written_len());
        Ok(writer)
    }

    fn invalid_response(&self, what: &'static str) -> PullError {
        PullError::request(self.pull.file, self.server.invalid_response(what))
    }
}

/// Whether the chunks that the writer has hashed form this file.
fn is_file<S: Sink>(writer: &Writer<S>, file: FileHash) -> bool {
    matches!(writer.hasher(), Hasher::File(aggregator) if aggregator.clone().file_hash() == file)
}

/// A slice that is being decompressed.
type Decoding = Running<Result<Decoded, XorbError>>;

/// Checks that a term has the length that its plan says.
#[derive(Clone, Copy, Debug)]
struct TermCheck {
    xorb: XorbHash,
    /// Bytes of the term, according to the plan.
    expected: u64,
    /// Whether this is the last slice of the term.
    is_last: bool,
}

impl TermCheck {
    /// Counts a slice of the term. The term must not be longer than expected, and after its last
    /// slice not shorter.
    fn run<S: Sink>(self, mut writer: Writer<S>, decoded: &Decoded) -> Result<Writer<S>, PullError> {
        let actual = writer.count_term(decoded.raw.len() as u64, self.is_last);
        if actual > self.expected || (self.is_last && actual < self.expected) {
            return Err(PullError::WrongLen { xorb: self.xorb, expected: self.expected, actual });
        }
        Ok(writer)
    }
}
