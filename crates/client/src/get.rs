//! Downloads a xorb or a part of it, and proves the bytes by the hash of the xorb.
//!
//! The server always sends serialized chunks. The client decompresses and hashes every chunk as it
//! arrives. The hashes are proven as follows:
//!
//! * For a whole xorb, they aggregate to its hash.
//! * For a part, they are compared with the list of `GET /xorbs/{hash}/chunks`. The list itself is
//!   proven, because it aggregates to the hash of the xorb. A list with another hash, length, order
//!   or number of chunks would not aggregate to it.
//!
//! So the server and the network are trusted only for availability.
//!
//! A transfer that breaks continues from the first missing byte, if the server confirms that it
//! would send the same bytes. The client asks for this with `If-Range`. Otherwise the transfer
//! restarts.

mod intake;
mod transfer;

use std::io;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;
use xet_format::limits::MAX_XORB_CHUNK_COUNT;
use xet_format::merkle::xorb_hash;
use xet_format::xorb::XorbError;
use xet_format::{ChunkHash, ChunkRange, ChunkRangeSpec, ParseHashError, XorbHash};

use self::intake::{Expected, Intake};
use self::transfer::{Event, Transfer};
use super::error::RequestError;
use super::server::Server;
use super::watch::Watch;
use super::wire::ChunksJson;
use crate::machine::Workers;

/// Bytes that are verified and written at once.
const BATCH_LEN: usize = 256 << 10;

/// Where verified bytes go. Its methods may block.
pub trait Sink: Send + 'static {
    /// Takes the next bytes.
    ///
    /// # Errors
    ///
    /// They cannot be written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Discards all bytes, because the transfer restarts at the first byte.
    ///
    /// # Errors
    ///
    /// They cannot be discarded.
    fn restart(&mut self) -> io::Result<()>;

    /// Called after each write when a whole file is pulled, with the hashes and lengths of the
    /// written chunks. The sink can record them for [`resume`](Self::resume) in a later run.
    ///
    /// # Errors
    ///
    /// They cannot be recorded.
    fn written(&mut self, _chunks: &[(ChunkHash, u64)]) -> io::Result<()> {
        Ok(())
    }

    /// The first chunks of the file, if an earlier run has left their bytes in the sink. The sink
    /// hashes the bytes again, and later writes append to them.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    fn resume(&mut self) -> io::Result<Vec<(ChunkHash, u64)>> {
        Ok(Vec::new())
    }
}

/// Collects the bytes in memory.
impl Sink for Vec<u8> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }

    fn restart(&mut self) -> io::Result<()> {
        self.clear();
        Ok(())
    }
}

/// A request for a xorb or for a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which xorb.
    pub hash: XorbHash,
    /// Which chunks; `None` for all.
    pub range: Option<ChunkRangeSpec>,
    /// Whether the sink gets the decompressed bytes instead of the serialized chunks.
    pub raw: bool,
}

/// What was downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// The chunks.
    pub chunks: ChunkRange,
    /// Bytes of the serialized chunks, with their headers.
    pub serialized_len: u64,
    /// Bytes of the chunks when they are decompressed.
    pub raw_len: u64,
}

/// Why the download failed. The bytes written to the sink must be discarded.
#[derive(Debug, Error)]
pub enum GetError {
    /// A request for the xorb or for its list of chunks failed.
    #[error("cannot get xorb {hash}")]
    Request {
        /// Which xorb.
        hash: XorbHash,
        /// The error of the last attempt.
        source: Box<RequestError>,
    },
    /// The xorb does not have all requested chunks.
    #[error("xorb {hash} has {count} chunks, numbered from 0; the range {range} exceeds them")]
    PastEnd {
        /// Which xorb.
        hash: XorbHash,
        /// Chunks that it has.
        count: u32,
        /// The requested range.
        range: ChunkRangeSpec,
    },
    /// The bytes are not valid chunks.
    #[error("the server sent damaged data for xorb {hash}")]
    Damaged {
        /// Which xorb.
        hash: XorbHash,
        /// What is wrong, and where.
        source: XorbError,
    },
    /// The bytes are another xorb.
    #[error("the server sent xorb {actual} for xorb {hash}")]
    WrongXorb {
        /// Which xorb was requested.
        hash: XorbHash,
        /// Which xorb the server sent.
        actual: XorbHash,
    },
    /// A chunk is another one than the list says.
    #[error("the server sent chunk {actual} as chunk {index} of xorb {hash}; expected {expected}")]
    WrongChunk {
        /// Which xorb.
        hash: XorbHash,
        /// Which chunk was requested.
        index: u32,
        /// Its hash.
        expected: ChunkHash,
        /// The hash of what came.
        actual: ChunkHash,
    },
    /// There are more or fewer chunks than were requested.
    #[error("the server sent {actual} chunks of xorb {hash}; requested {expected}")]
    WrongCount {
        /// Which xorb.
        hash: XorbHash,
        /// Chunks that were requested.
        expected: u32,
        /// Chunks that the server sent, at least.
        actual: u32,
    },
    /// The list of chunks does not aggregate to the xorb's hash.
    #[error("the server's list of the chunks of xorb {hash} is that of another xorb")]
    WrongList {
        /// Which xorb.
        hash: XorbHash,
    },
    /// The sink cannot store the bytes.
    #[error("cannot write the received data")]
    Write(#[source] io::Error),
}

impl GetError {
    fn request(hash: XorbHash, error: RequestError) -> Self {
        Self::Request { hash, source: Box::new(error) }
    }
}

impl Server {
    /// Gets chunks of a xorb, verifies them, and writes them to the sink. Returns the sink when all
    /// bytes are proven. Until then the bytes in the sink are not proven.
    ///
    /// # Errors
    ///
    /// See [`GetError`].
    pub async fn get<S: Sink>(
        &self,
        wanted: Wanted,
        sink: S,
        workers: &Workers,
        watch: Arc<dyn Watch>,
    ) -> Result<(Got, S), GetError> {
        let hash = wanted.hash;
        let expected = match wanted.range {
            None => Expected::Whole,
            Some(range) => self.expected_part(hash, range, &watch).await?,
        };
        let path = match &expected {
            Expected::Whole => format!("xorbs/{hash}"),
            Expected::Part(chunks, _) => format!("xorbs/{hash}?range={chunks}"),
        };
        let mut transfer = Transfer::new(self, path, watch);
        let mut intake = Intake::new(hash, expected, wanted.raw, sink);
        let mut batch = Batch::default();
        while let Some(event) = transfer.next().await.map_err(|error| GetError::request(hash, error))? {
            match event {
                Event::Piece(piece) => {
                    if batch.add(piece) {
                        let pieces = batch.empty();
                        intake = workers.run(move || intake.take(pieces)).await?;
                    }
                }
                Event::Restart => {
                    batch.empty();
                    intake = workers.run(move || intake.restart()).await?;
                }
            }
        }
        let pieces = batch.empty();
        workers.run(move || intake.take(pieces)?.finish()).await
    }

    /// The chunks that a range names and their hashes, proven by the xorb's hash.
    async fn expected_part(
        &self,
        hash: XorbHash,
        range: ChunkRangeSpec,
        watch: &Arc<dyn Watch>,
    ) -> Result<Expected, GetError> {
        let list = self.chunks_json(hash, watch).await.map_err(|error| GetError::request(hash, error))?;
        let hashes = verify_list(hash, &list).ok_or(GetError::WrongList { hash })?;
        let count = u32::try_from(hashes.len()).unwrap_or(u32::MAX);
        let chunks = range.resolve(count).ok_or(GetError::PastEnd { hash, count, range })?;
        let part = chunks.start() as usize..chunks.end() as usize;
        Ok(Expected::Part(chunks, hashes[part].to_vec()))
    }
}

impl Server {
    /// Hashes and raw lengths of the chunks of a xorb, proven by its hash.
    pub(super) async fn chunk_list(
        &self,
        hash: XorbHash,
        watch: &Arc<dyn Watch>,
    ) -> Result<Vec<(ChunkHash, u64)>, RequestError> {
        let list = self.chunks_json(hash, watch).await?;
        let hashes =
            verify_list(hash, &list).ok_or_else(|| self.invalid_response("its chunk list is that of another xorb"))?;
        Ok(hashes.into_iter().zip(list.chunks.iter().map(|chunk| chunk.raw_len)).collect())
    }

    /// The list of the chunks of a xorb, not proven yet.
    async fn chunks_json(&self, hash: XorbHash, watch: &Arc<dyn Watch>) -> Result<ChunksJson, RequestError> {
        self.get_json(&format!("xorbs/{hash}/chunks"), watch).await
    }
}

/// The hashes of a list; `None` if the list does not aggregate to the hash of the xorb.
fn verify_list(hash: XorbHash, list: &ChunksJson) -> Option<Vec<ChunkHash>> {
    if list.chunks.len() > MAX_XORB_CHUNK_COUNT as usize {
        return None;
    }
    let hashes: Result<Vec<ChunkHash>, ParseHashError> = list.chunks.iter().map(|chunk| chunk.hash.parse()).collect();
    let hashes = hashes.ok()?;
    let lens = list.chunks.iter().map(|chunk| chunk.raw_len);
    (xorb_hash(hashes.iter().zip(lens)) == hash).then_some(hashes)
}

/// Received pieces that wait for verification.
#[derive(Default)]
struct Batch {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Batch {
    /// Adds a piece; returns whether there are enough bytes for a batch.
    fn add(&mut self, piece: Bytes) -> bool {
        self.len += piece.len();
        self.pieces.push(piece);
        self.len >= BATCH_LEN
    }

    /// Takes all pieces out.
    fn empty(&mut self) -> Vec<Bytes> {
        self.len = 0;
        mem::take(&mut self.pieces)
    }
}

#[cfg(test)]
mod tests;
