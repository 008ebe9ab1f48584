//! Downloads: ranges of a stored xorb, as uploaded or decoded.
//!
//! Stored bytes stream through in pieces of a few 100 KiB and are never in memory as a whole. A
//! stream gives exactly the requested bytes or ends in an error.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt, try_unfold};
use sha2::Digest;

use super::Cas;
use super::error::{ReadError, StoreError};
use crate::blob::BlobStream;
use crate::format::compression::{Decoder, Scheme};
use crate::format::xorb::{ChunkPlace, Layout, Splitter, XorbError, XorbErrorKind};
use crate::format::{ByteRange, ChunkHash, XorbHash};
use crate::index::{ChunkColumns, XorbRow};
use crate::runtime::blocking::Pool;
use crate::runtime::incarnation::Incarnation;

/// Raw bytes of one hop to the workers, about: a small input may decode to much more.
const RAW_PIECE_LEN: usize = 256 << 10;

/// Stored bytes that are hashed in one hop to the workers, and the raw bytes of these at most,
/// about. A hop wakes two threads, so one for each piece is expensive. Uploads wait for it.
const HASHED_INPUT_LEN: usize = 1 << 20;
const HASHED_RAW_LEN: usize = 4 << 20;

/// Bytes of a xorb, in order.
pub type ReadStream = BoxStream<'static, Result<Bytes, ReadError>>;

/// The requested form of bytes; byte ranges count in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As uploaded: chunk headers and payloads.
    Serialized,
    /// The contents of the chunks, decompressed.
    Raw,
}

/// Whether decoded chunks are compared with their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Chunks other than the uploaded ones are an error.
    Chunks,
    /// The caller has another proof of the bytes.
    Elsewhere,
}

/// A xorb that can be read.
#[derive(Debug)]
pub struct StoredXorb {
    row: XorbRow,
    /// When the row was read: see [`heal`](super::heal).
    pub(super) epoch: u64,
}

/// The data of one chunk.
#[derive(Clone, Copy, Debug)]
pub struct ChunkInfo {
    /// Where it is.
    pub place: ChunkPlace,
    /// Its hash.
    pub hash: ChunkHash,
    /// How it is compressed.
    pub scheme: Scheme,
}

impl StoredXorb {
    pub(super) const fn new(row: XorbRow, epoch: u64) -> Self {
        Self { row, epoch }
    }

    /// Which of its blobs this describes.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.row.incarnation
    }

    /// Which one.
    #[must_use]
    pub const fn hash(&self) -> XorbHash {
        self.row.hash
    }

    /// CRC-64/NVME of the serialized bytes: differs between two serializations of one xorb.
    #[must_use]
    pub const fn crc64(&self) -> u64 {
        self.row.crc64
    }

    /// Whether its blob is known to be damaged: reading it is refused.
    #[must_use]
    pub const fn is_damaged(&self) -> bool {
        self.row.is_damaged
    }

    /// Whether the chunks of this blob had other offsets at this time, in seconds since 1970, or
    /// may have had. The index was wrong about them then.
    #[must_use]
    pub fn has_moved_since(&self, unix_secs: u64) -> bool {
        self.row.replaced_at.is_some_and(|replaced| replaced.as_secs() >= unix_secs)
    }

    /// The places of its chunks.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.row.layout
    }

    /// Bytes that it takes in memory.
    pub(super) fn weight(&self) -> u32 {
        self.row.layout.chunk_count().saturating_mul(8).saturating_add(128)
    }
}

impl Cas {
    /// The xorb, if there is one.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn find(&self, hash: XorbHash) -> Result<Option<Arc<StoredXorb>>, StoreError> {
        // A row from an earlier epoch is read once more, here, and not again with each read of its
        // blob.
        if let Some(xorb) = self.xorbs.get(&hash).filter(|xorb| xorb.epoch == self.epoch.now()) {
            self.metrics.layout_hits.inc();
            return Ok(Some(xorb));
        }
        self.metrics.layout_misses.inc();
        let epoch = self.epoch.now();
        let Some(row) = self.index.find_xorb(hash).await? else { return Ok(None) };
        let xorb = Arc::new(StoredXorb::new(row, epoch));
        self.xorbs.insert(hash, Arc::clone(&xorb));
        if self.epoch.now() != epoch {
            // It may have been replaced after the row was read, and invalidated before it was
            // cached.
            self.xorbs.invalidate(&hash);
        }
        Ok(Some(xorb))
    }

    /// Every chunk of a xorb, in order; `None` where there is no such xorb.
    ///
    /// # Errors
    ///
    /// The index does not respond, or contradicts itself.
    pub async fn chunks(&self, hash: XorbHash) -> Result<Option<Vec<ChunkInfo>>, StoreError> {
        let Some(xorb) = self.find(hash).await? else { return Ok(None) };
        let Some(ChunkColumns { hashes, schemes }) = self.index.find_chunks(hash).await? else { return Ok(None) };
        let chunks = xorb.layout().chunks().zip(hashes).zip(schemes);
        Ok(Some(chunks.map(|((place, hash), scheme)| ChunkInfo { place, hash, scheme }).collect()))
    }

    /// Streams bytes of a xorb. The range counts bytes of the form, and must lie within it.
    ///
    /// # Errors
    ///
    /// The blob cannot be opened; later failures end the stream.
    pub async fn read(&self, xorb: &StoredXorb, form: Form, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        let opened = match form {
            Form::Serialized => {
                let blob = self.open(xorb, bytes).await;
                blob.map(|blob| blob.map_err(|error| ReadError::Store(error.into())).boxed())
            }
            // A reader of raw bytes cannot detect altered ones. The store can.
            Form::Raw => {
                let decoding = self.decoding(xorb, bytes, Proof::Chunks).await;
                decoding.map(|decoding| decoding.stream(self.verify_pool.clone()))
            }
        };
        self.reporting(xorb.hash(), opened)
    }

    /// Streams raw bytes of a xorb, for a caller that checks their digest. The range is within it.
    ///
    /// # Errors
    ///
    /// As with [`read`](Self::read).
    pub(super) async fn read_unproven(&self, xorb: &StoredXorb, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        let decoding = self.decoding(xorb, bytes, Proof::Elsewhere).await;
        self.reporting(xorb.hash(), decoding.map(|decoding| decoding.stream(self.verify_pool.clone())))
    }

    /// Streams raw bytes of a xorb, whose chunks from `first_chunk` on have these hashes. The range
    /// must lie within them.
    ///
    /// # Errors
    ///
    /// As with [`read`](Self::read).
    pub(super) async fn read_proven(
        &self,
        xorb: &StoredXorb,
        bytes: ByteRange,
        (first_chunk, hashes): (u32, &[ChunkHash]),
    ) -> Result<ReadStream, ReadError> {
        let opened = async {
            let mut decoding = self.decoding(xorb, bytes, Proof::Elsewhere).await?;
            let skipped = decoding.first_chunk.saturating_sub(first_chunk) as usize;
            decoding.chunk_hashes = Some(hashes.get(skipped..).unwrap_or_default().to_vec());
            Ok(decoding.stream(self.verify_pool.clone()))
        };
        self.reporting(xorb.hash(), opened.await)
    }

    /// Reports xorbs whose reads fail.
    fn reporting(&self, hash: XorbHash, opened: Result<ReadStream, ReadError>) -> Result<ReadStream, ReadError> {
        let suspects = Arc::clone(&self.suspects);
        let stream = opened.inspect_err(|error| suspects.report(hash, error))?;
        Ok(stream.inspect_err(move |error| suspects.report(hash, error)).boxed())
    }

    /// Hashes raw bytes of a xorb, after what was hashed before. The range must lie within it.
    ///
    /// # Errors
    ///
    /// As with [`read`](Self::read). Without a proof of its chunks a damaged blob may as well make
    /// another digest.
    pub(super) async fn hash_raw<H: Digest + Send + 'static>(
        &self,
        xorb: &StoredXorb,
        bytes: ByteRange,
        proof: Proof,
        hasher: H,
    ) -> Result<H, ReadError> {
        let hashed = async {
            let decoding = self.decoding(xorb, bytes, proof).await?;
            decoding.hash(&self.verify_pool, hasher).await
        };
        // Boxed, so that a decoder and two hashers do not lie in every future that waits for this.
        Box::pin(hashed).await.inspect_err(|error| self.suspects.report(xorb.hash(), error))
    }

    async fn decoding(&self, xorb: &StoredXorb, bytes: ByteRange, proof: Proof) -> Result<Decoding, ReadError> {
        let layout = xorb.layout();
        let chunks = layout.chunks_of_raw(bytes).expect("callers take their ranges from the layout");
        let (serialized, raw) = (layout.serialized_range(chunks), layout.raw_range(chunks));
        let (serialized, raw) = serialized.zip(raw).expect("a range from the layout is within the layout");
        let mut chunk_hashes = None;
        if proof == Proof::Chunks {
            let columns = self.index.find_chunks(xorb.hash()).await.map_err(StoreError::from)?;
            let Some(ChunkColumns { mut hashes, .. }) = columns else { return Err(self.missing(xorb.hash()).await) };
            hashes.truncate(chunks.end() as usize);
            chunk_hashes = Some(hashes.split_off(chunks.start() as usize));
        }
        Ok(Decoding {
            hash: xorb.hash(),
            first_chunk: chunks.start(),
            chunk_hashes,
            blob: self.open(xorb, serialized).await?,
            input: Bytes::new(),
            splitter: Splitter::new(serialized.byte_len()),
            decoder: Decoder::new(),
            skip: bytes.start() - raw.start(),
            left: bytes.byte_len(),
        })
    }
}

/// A run of stored chunks that is being decoded.
struct Decoding {
    hash: XorbHash,
    first_chunk: u32,
    /// The expected hashes, from the first chunk on; `None` where the caller has another proof.
    chunk_hashes: Option<Vec<ChunkHash>>,
    blob: BlobStream,
    /// Stored bytes that were read and not yet decoded.
    input: Bytes,
    splitter: Splitter,
    decoder: Decoder,
    /// Raw bytes of the first chunks that were not requested.
    skip: u64,
    /// Raw bytes that are still to be returned.
    left: u64,
}

impl fmt::Debug for Decoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoding").field("hash", &self.hash).field("left", &self.left).finish_non_exhaustive()
    }
}

impl Decoding {
    fn stream(self, pool: Pool) -> ReadStream {
        try_unfold((self, pool), |(mut decoding, pool)| async move {
            while decoding.left > 0 {
                if decoding.input.is_empty() {
                    // By the layout, the chunks of these bytes make up the requested range. If they
                    // do not, the blob ends first.
                    let piece = decoding.blob.try_next().await.map_err(StoreError::from)?;
                    decoding.input = piece.ok_or(ReadError::Missing { hash: decoding.hash })?;
                }
                let (piece, same) = pool.run(move || (decoding.next_piece(), decoding)).await;
                decoding = same;
                let piece = piece?;
                if !piece.is_empty() {
                    return Ok(Some((piece, (decoding, pool))));
                }
            }
            Ok(None)
        })
        .boxed()
    }

    /// Hashes everything that was requested.
    async fn hash<H: Digest + Send + 'static>(mut self, pool: &Pool, mut hasher: H) -> Result<H, ReadError> {
        let mut pieces = VecDeque::new();
        while self.left > 0 {
            if self.input.is_empty() && pieces.is_empty() {
                let mut len = 0;
                while len < HASHED_INPUT_LEN
                    && let Some(piece) = self.blob.try_next().await.map_err(StoreError::from)?
                {
                    len += piece.len();
                    pieces.push_back(piece);
                }
                if pieces.is_empty() {
                    return Err(ReadError::Missing { hash: self.hash });
                }
            }
            let hash = move || {
                let done = self.hash_pieces(&mut pieces, &mut hasher);
                (done, self, pieces, hasher)
            };
            let done;
            (done, self, pieces, hasher) = pool.run(hash).await;
            done?;
        }
        Ok(hasher)
    }

    /// Hashes the pieces, or as much as one hop may take. Blocks.
    fn hash_pieces(&mut self, pieces: &mut VecDeque<Bytes>, hasher: &mut impl Digest) -> Result<(), ReadError> {
        let mut len = 0;
        while len < HASHED_RAW_LEN && self.left > 0 {
            if self.input.is_empty() {
                let Some(piece) = pieces.pop_front() else { break };
                self.input = piece;
            }
            len += self.decode(HASHED_RAW_LEN - len, |raw| hasher.update(raw))?;
        }
        Ok(())
    }

    /// Decodes frames until the output is long enough or no whole frame is left. Blocks.
    fn next_piece(&mut self) -> Result<Bytes, ReadError> {
        let mut output = Vec::new();
        self.decode(RAW_PIECE_LEN, |raw| output.extend_from_slice(raw))?;
        Ok(output.into())
    }

    /// Decodes frames and passes on the requested bytes, until enough or no whole frame is left.
    /// Returns how many bytes were passed. Blocks.
    fn decode(&mut self, enough: usize, mut give: impl FnMut(&[u8])) -> Result<usize, ReadError> {
        let damaged = |source| ReadError::Damaged { hash: self.hash, source };
        let (mut rest, mut given) = (&self.input[..], 0);
        while given < enough && self.left > 0 {
            let Some(frame) = self.splitter.next_frame(&mut rest).map_err(damaged)? else { break };
            let raw = self.decoder.decode(&frame.header, frame.payload()).map_err(|kind| {
                let (offset, chunk) = (frame.offset, Some(frame.index));
                damaged(XorbError { offset, chunk, kind: XorbErrorKind::Payload(kind) })
            })?;
            let is_other = |hashes: &Vec<ChunkHash>| {
                hashes.get(frame.index as usize).is_none_or(|hash| *hash != ChunkHash::of(raw))
            };
            if self.chunk_hashes.as_ref().is_some_and(is_other) {
                return Err(ReadError::Altered { hash: self.hash, chunk: self.first_chunk + frame.index });
            }
            let skipped = self.skip.min(raw.len() as u64);
            let taken = self.left.min(raw.len() as u64 - skipped);
            let start = usize::try_from(skipped).expect("at most a chunk");
            let end = usize::try_from(skipped + taken).expect("at most a chunk");
            give(&raw[start..end]);
            given += end - start;
            self.skip -= skipped;
            self.left -= taken;
        }
        let used = self.input.len() - rest.len();
        self.input.advance(used);
        Ok(given)
    }
}
