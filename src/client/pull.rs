//! From a server to the bytes of a file, proven by the file's hash.
//!
//! The server says which chunks of which xorbs make the file; that is only a plan. Every chunk that comes is
//! decompressed and hashed here, and all of them together have to give the hash that was asked for. Parts are fetched
//! several at once and ahead of what is written, in windows of the file, so that memory is bounded whatever its length.
//! A part of a file is proven in the same way, with summaries from the server for the rest of it.

mod decode;
mod fetch;
mod plan;
mod proof;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use reqwest::header::CONTENT_LENGTH;
use thiserror::Error;

use self::decode::{Decoded, Hasher, Writer, decode, slices};
use self::fetch::Fetcher;
use self::plan::{Plan, plan};
use self::proof::surroundings;
use super::activity::Activity;
use super::error::RequestError;
use super::get::Sink;
use super::retry::Retries;
use super::server::{Server, Watch};
use crate::format::merkle::Aggregator;
use crate::format::merkle::subtree::SubtreeBuilder;
use crate::format::xorb::XorbError;
use crate::format::{ByteRange, ByteRangeSpec, ChunkHash, FileHash, XorbHash};
use crate::runtime::blocking::{Pool, Running};

/// Bytes of a file that are planned at once.
const WINDOW_LEN: u64 = 256 << 20;

/// Slices that are decompressed before they are written: 16 MiB each at most.
const DECODING_COUNT: usize = 3;

/// What is wanted of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Which file.
    pub file: FileHash,
    /// Which bytes; `None` for all.
    pub range: Option<ByteRangeSpec>,
    /// Parts of xorbs that are fetched at once, at least one.
    pub job_count: usize,
}

/// What was got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Which bytes of the file; `None` for those of the empty file.
    pub bytes: Option<ByteRange>,
    /// Whether the file's hash proves them. If not, the server gave no means for that.
    pub is_proven: bool,
}

/// Why nothing was got. Whatever the sink has taken is to be thrown away.
#[derive(Debug, Error)]
pub enum PullError {
    /// There is no such file.
    #[error("the server has no file {file}, or does not show it to whoever asks")]
    NotFound {
        /// Which file.
        file: FileHash,
    },
    /// There are no such bytes.
    #[error("file {file} has {len} bytes; the range {range} goes past them")]
    PastEnd {
        /// Which file.
        file: FileHash,
        /// Its bytes.
        len: u64,
        /// What was asked for.
        range: ByteRangeSpec,
    },
    /// The server did not give it.
    #[error("cannot get file {file}")]
    Request {
        /// Which file.
        file: FileHash,
        /// What happened.
        source: Box<RequestError>,
    },
    /// The bytes are no chunks.
    #[error("what the server sends of xorb {xorb} is damaged")]
    Damaged {
        /// Which xorb.
        xorb: XorbHash,
        /// What is wrong, and where.
        source: XorbError,
    },
    /// The chunks are longer or shorter than the server says.
    #[error("the server sends {actual} bytes of xorb {xorb} where its plan has {expected}")]
    WrongLen {
        /// Which xorb.
        xorb: XorbHash,
        /// Bytes in the plan.
        expected: u64,
        /// Bytes that came.
        actual: u64,
    },
    /// The bytes are another file.
    #[error("what the server sends is not the file {file} but {actual}")]
    WrongFile {
        /// Which file was asked for.
        file: FileHash,
        /// Which one came.
        actual: FileHash,
    },
    /// The bytes are not these bytes of the file, or the summary of the rest is false.
    #[error("what the server sends does not prove to be bytes {bytes} of file {file}")]
    WrongPart {
        /// Which file.
        file: FileHash,
        /// Which bytes were asked for.
        bytes: ByteRange,
    },
    /// The bytes cannot be kept.
    #[error("cannot write what was received")]
    Write(#[source] io::Error),
}

impl PullError {
    fn request(file: FileHash, error: RequestError) -> Self {
        Self::Request { file, source: Box::new(error) }
    }
}

impl Server {
    /// Gets a file, or a part of it, and writes it to the sink in order; the sink is given back when everything is
    /// proven, as far as [`Pulled::is_proven`] says.
    ///
    /// The sink never has to start over. Until it is given back nothing in it is proven. Memory holds 256 MiB of what
    /// was fetched ahead, or one part of up to 64 MiB for each job if that is more, and some 64 MiB that are decompressed.
    ///
    /// # Errors
    ///
    /// See [`PullError`].
    pub async fn pull<S: Sink>(
        &self,
        pull: &Pull,
        sink: S,
        pool: &Pool,
        watch: Arc<dyn Watch>,
    ) -> Result<(Pulled, S), PullError> {
        let transfer = Transfer { server: self, pull: *pull, pool, watch };
        match pull.range {
            None if pull.file == FileHash::EMPTY => Ok((Pulled { bytes: None, is_proven: true }, sink)),
            None => transfer.whole(sink).await,
            Some(range) => transfer.part(range, sink).await,
        }
    }
}

/// A pull that is under way.
struct Transfer<'a> {
    server: &'a Server,
    pull: Pull,
    pool: &'a Pool,
    watch: Arc<dyn Watch>,
}

impl Transfer<'_> {
    async fn whole<S: Sink>(&self, sink: S) -> Result<(Pulled, S), PullError> {
        let file = self.pull.file;
        let len = self.file_len().await?;
        self.watch.total(len);
        let mut writer = Writer::new(sink, Hasher::File(Aggregator::new()), 0, u64::MAX);
        let mut offset = 0;
        // Whatever the server says about the length, the hash tells whether it was all.
        while let Some(window) = ByteRange::new(offset, len.min(offset.saturating_add(WINDOW_LEN))) {
            let plan = self.plan(window).await?;
            if plan.skipped_len != 0 {
                return Err(self.strange("it plans from the middle of a chunk where one begins"));
            }
            offset += plan.raw_len();
            writer = self.take(window, &plan, writer).await?;
        }
        match writer.finish() {
            (sink, Hasher::File(aggregator), written_len) => {
                let actual = aggregator.file_hash();
                if actual != file {
                    return Err(PullError::WrongFile { file, actual });
                }
                Ok((Pulled { bytes: ByteRange::new(0, written_len), is_proven: true }, sink))
            }
            _ => unreachable!("a whole file is hashed as one"),
        }
    }

    async fn part<S: Sink>(&self, range: ByteRangeSpec, sink: S) -> Result<(Pulled, S), PullError> {
        let file = self.pull.file;
        let len = if file == FileHash::EMPTY { 0 } else { self.file_len().await? };
        let bytes = range.resolve(len).ok_or(PullError::PastEnd { file, len, range })?;
        self.watch.total(bytes.byte_len());
        let Some(around) = surroundings(self.server, file, len, bytes, &self.watch).await? else {
            let writer = Writer::new(sink, Hasher::Nothing, 0, bytes.byte_len());
            let (sink, _, _) = self.range(bytes, writer).await?.finish();
            return Ok((Pulled { bytes: Some(bytes), is_proven: false }, sink));
        };
        let hasher = Hasher::Part(SubtreeBuilder::new(around.window.start() == 0));
        let writer = self.range(bytes, Writer::new(sink, hasher, 0, bytes.byte_len())).await?;
        // The window begins with the first of these chunks, and goes on behind the last one to the end of a term.
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
        Ok((Pulled { bytes: Some(bytes), is_proven: true }, sink))
    }

    /// Takes the hashes of the chunks in these bytes: from the lists of their xorbs, where the server shows them, since
    /// that is a thousandth of the chunks themselves. What is in a list need not be believed; the file's hash decides.
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

    /// Hashes and lengths of the chunks of a plan; `None` where the server does not show them.
    async fn listed(&self, plan: &Plan) -> Result<Option<Vec<(ChunkHash, u64)>>, PullError> {
        let mut lists: HashMap<XorbHash, Vec<(ChunkHash, u64)>> = HashMap::new();
        let mut chunks = Vec::new();
        for term in &plan.terms {
            let part = plan.parts.get(term.part).expect("terms name parts of their plan");
            let list = match lists.entry(part.xorb) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => match self.server.chunk_list(part.xorb, &self.watch).await {
                    Ok(list) => entry.insert(list),
                    Err(RequestError::Refused { .. } | RequestError::Strange { .. }) => return Ok(None),
                    Err(error) => return Err(PullError::request(self.pull.file, error)),
                },
            };
            let Some(run) = list.get(term.chunks.start() as usize..term.chunks.end() as usize) else { return Ok(None) };
            chunks.extend_from_slice(run);
        }
        Ok(Some(chunks))
    }

    /// All chunks that these bytes are in. What is before the first byte is skipped.
    async fn range<S: Sink>(&self, bytes: ByteRange, writer: Writer<S>) -> Result<Writer<S>, PullError> {
        let (mut writer, mut offset) = (writer, bytes.start());
        while let Some(window) = ByteRange::new(offset, bytes.end().min(offset.saturating_add(WINDOW_LEN))) {
            let plan = self.plan(window).await?;
            if offset == bytes.start() {
                writer.skip(plan.skipped_len);
            } else if plan.skipped_len != 0 {
                return Err(self.strange("it plans from the middle of a chunk where one begins"));
            }
            offset += plan.raw_len() - plan.skipped_len;
            writer = self.take(window, &plan, writer).await?;
        }
        Ok(writer)
    }

    /// The plan of a window that begins within the file.
    async fn plan(&self, window: ByteRange) -> Result<Plan, PullError> {
        let plan = plan(self.server, self.pull.file, window, &self.watch).await?;
        let plan = plan.ok_or_else(|| self.strange("the file has become shorter"))?;
        if plan.raw_len() - plan.skipped_len < window.byte_len() {
            return Err(self.strange("it plans less than was asked for"));
        }
        Ok(plan)
    }

    /// Fetches what a plan says and writes it.
    async fn take<S: Sink>(&self, window: ByteRange, plan: &Plan, writer: Writer<S>) -> Result<Writer<S>, PullError> {
        let (file, job_count) = (self.pull.file, self.pull.job_count);
        let mut fetcher = Fetcher::new(self.server, file, window, plan, job_count, &self.watch);
        let mut writer = writer;
        let mut decoding = VecDeque::new();
        for term in &plan.terms {
            let part = plan.parts.get(term.part).expect("terms name parts of their plan");
            let mut check = TermCheck { xorb: part.xorb, expected: term.raw_len, is_last: false };
            let bytes = fetcher.part(term.part).await?;
            for chunks in slices(term.chunks) {
                check.is_last = chunks.end() == term.chunks.end();
                let (bytes, first) = (bytes.clone(), part.chunks.start());
                let start = Box::pin(self.pool.start(move || decode(&bytes, first, chunks)));
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

    /// Writes the slice that is first in the file.
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
        let write = Box::pin(self.pool.run(move || writer.take(&decoded)));
        let writer = fetcher.alongside(write).await??;
        self.watch.position(writer.written_len());
        Ok(writer)
    }

    /// Length of the file, as the server says it.
    async fn file_len(&self) -> Result<u64, PullError> {
        let file = self.pull.file;
        let mut retries = Retries::new(self.server.retry, Arc::clone(&self.watch));
        loop {
            let request = self.server.head_request(&format!("v1/files/{file}"));
            let error = match self.server.send(request, &Activity::new()).await {
                Ok(response) => {
                    let len = response.headers().get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
                    return len.ok_or_else(|| self.strange("it does not say how long the file is"));
                }
                Err(error) => error,
            };
            if matches!(&error, RequestError::Refused { refusal, .. } if refusal.status == 404) {
                return Err(PullError::NotFound { file });
            }
            retries.after(error).await.map_err(|error| PullError::request(file, error))?;
        }
    }

    fn strange(&self, what: &'static str) -> PullError {
        PullError::request(self.pull.file, self.server.strange(what))
    }
}

/// A slice that is being decompressed.
type Decoding = Running<Result<Decoded, XorbError>>;

/// What a term has to be like.
#[derive(Clone, Copy, Debug)]
struct TermCheck {
    xorb: XorbHash,
    /// Bytes in the plan.
    expected: u64,
    /// Whether this is the last slice of the term.
    is_last: bool,
}

impl TermCheck {
    /// Compares the length of a term when its last slice is there.
    fn run<S: Sink>(self, mut writer: Writer<S>, decoded: &Decoded) -> Result<Writer<S>, PullError> {
        let actual = writer.count_term(decoded.raw.len() as u64, self.is_last);
        if actual > self.expected || (self.is_last && actual < self.expected) {
            return Err(PullError::WrongLen { xorb: self.xorb, expected: self.expected, actual });
        }
        Ok(writer)
    }
}
