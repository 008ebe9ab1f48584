//! Reads ranges of a stored xorb: the serialized bytes, or the decoded contents of its chunks.
//!
//! A blob is read in pieces of a few 100 KiB, and is never in memory as a whole. A stream returns
//! exactly the requested bytes or ends with an error. A read that fails because the blob may be
//! damaged reports the xorb to the scrub, which then verifies the blob.

mod decoding;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use sha2::Digest;

use self::decoding::Decoding;
use super::Store;
use super::error::{ReadError, StoreError};
use crate::format::compression::{Decoder, Scheme};
use crate::format::xorb::{ChunkPlace, Layout, Splitter};
use crate::format::{ByteRange, ChunkHash, XorbHash};
use crate::index::{ChunkColumns, XorbRow};
use crate::runtime::incarnation::Incarnation;

/// Bytes of a xorb or file, in order.
pub type ReadStream = BoxStream<'static, Result<Bytes, ReadError>>;

/// The requested form of a xorb's bytes. Byte ranges count bytes of this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As uploaded: chunk headers and payloads.
    Serialized,
    /// The contents of the chunks, decompressed.
    Raw,
}

/// Who checks that the decoded bytes are those that were uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The read itself: each decoded chunk is compared with its hash in the index.
    Chunks,
    /// The caller, for example by a digest of all bytes.
    Elsewhere,
}

/// The row of a xorb, for reading its blob.
#[derive(Debug)]
pub struct StoredXorb {
    row: XorbRow,
    /// The epoch in which the row was read. If the epoch has advanced, the row may be outdated: see
    /// [`heal`](super::heal).
    pub(super) epoch: u64,
}

/// The place, hash and compression of one chunk.
#[derive(Clone, Copy, Debug)]
pub struct ChunkInfo {
    /// The offsets and lengths of the chunk.
    pub place: ChunkPlace,
    /// The hash of the chunk.
    pub hash: ChunkHash,
    /// How the chunk is compressed.
    pub scheme: Scheme,
}

impl StoredXorb {
    pub(super) const fn new(row: XorbRow, epoch: u64) -> Self {
        Self { row, epoch }
    }

    /// The incarnation of the blob that the row describes.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.row.incarnation
    }

    /// The hash of the xorb.
    #[must_use]
    pub const fn hash(&self) -> XorbHash {
        self.row.hash
    }

    /// CRC-64/NVME of the serialized bytes. It differs between two serializations of one xorb,
    /// unless a client has made them so that it does not.
    #[must_use]
    pub const fn crc64(&self) -> u64 {
        self.row.crc64
    }

    /// Whether the row says that the blob is damaged. Then reads of it are refused.
    #[must_use]
    pub const fn is_damaged(&self) -> bool {
        self.row.is_damaged
    }

    /// Whether the index may have described this blob with other offsets at this time, in seconds
    /// since 1970. Then a URL that was made at this time may contain wrong offsets.
    #[must_use]
    pub fn has_moved_since(&self, unix_secs: u64) -> bool {
        self.row.replaced_at.is_some_and(|replaced| replaced.as_secs() >= unix_secs)
    }

    /// The places of the chunks in the blob.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.row.layout
    }

    /// The memory that this takes in the cache of layouts, in bytes, approximately.
    pub(super) fn weight(&self) -> u32 {
        self.row.layout.chunk_count().saturating_mul(8).saturating_add(128)
    }
}

impl Store {
    /// The row of a visible xorb, from memory or from the index.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn find(&self, hash: XorbHash) -> Result<Option<Arc<StoredXorb>>, StoreError> {
        // A cached row of an earlier epoch is replaced, even if it is still right. Otherwise every
        // read of the blob would query the index (`check_current`).
        if let Some(xorb) = self.layouts.xorbs.get(&hash).filter(|xorb| xorb.epoch == self.layouts.epoch.now()) {
            self.metrics.layout_hits.inc();
            return Ok(Some(xorb));
        }
        self.metrics.layout_misses.inc();
        let epoch = self.layouts.epoch.now();
        let Some(row) = self.index.find_xorb(hash).await? else { return Ok(None) };
        let xorb = Arc::new(StoredXorb::new(row, epoch));
        self.layouts.xorbs.insert(hash, Arc::clone(&xorb));
        if self.layouts.epoch.now() != epoch {
            // The row may have become wrong after it was read from the index. If it was invalidated
            // before it was cached, it must be removed from the cache now.
            self.layouts.xorbs.invalidate(&hash);
        }
        Ok(Some(xorb))
    }

    /// Every chunk of a xorb, in order; `None` if the xorb is not stored.
    ///
    /// # Errors
    ///
    /// The index does not respond, or a row cannot be parsed.
    pub async fn chunks(&self, hash: XorbHash) -> Result<Option<Vec<ChunkInfo>>, StoreError> {
        let Some(xorb) = self.find(hash).await? else { return Ok(None) };
        let Some(ChunkColumns { hashes, schemes }) = self.index.find_chunks(hash).await? else { return Ok(None) };
        let chunks = xorb.layout().chunks().zip(hashes).zip(schemes);
        Ok(Some(chunks.map(|((place, hash), scheme)| ChunkInfo { place, hash, scheme }).collect()))
    }

    /// Streams bytes of a xorb. The range must not go past the end of the xorb in this form.
    ///
    /// # Errors
    ///
    /// The blob cannot be opened. Later failures end the stream with an error.
    pub async fn read(&self, xorb: &StoredXorb, form: Form, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        let opened = match form {
            Form::Serialized => {
                let blob = self.open(xorb, bytes).await;
                blob.map(|blob| blob.map_err(|error| ReadError::Store(error.into())).boxed())
            }
            // A client that gets raw bytes cannot detect wrong ones, so the chunks are compared
            // with their hashes here.
            Form::Raw => {
                let decoding = self.decoding(xorb, bytes, Proof::Chunks).await;
                decoding.map(|decoding| decoding.stream(self.pool.clone()))
            }
        };
        self.reporting(xorb.hash(), opened)
    }

    /// Streams raw bytes of a xorb without comparing chunks with their hashes. The caller must
    /// check a digest of the bytes. The range must lie within the xorb.
    ///
    /// # Errors
    ///
    /// As with [`read`](Self::read).
    pub(super) async fn read_unproven(&self, xorb: &StoredXorb, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        let decoding = self.decoding(xorb, bytes, Proof::Elsewhere).await;
        self.reporting(xorb.hash(), decoding.map(|decoding| decoding.stream(self.pool.clone())))
    }

    /// Streams raw bytes of a xorb. Compares the chunks with `hashes`, those of the chunks from
    /// `first_chunk` on, so that the index is not queried for them. The range must lie within these
    /// chunks.
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
            Ok(decoding.stream(self.pool.clone()))
        };
        self.reporting(xorb.hash(), opened.await)
    }

    /// Reports the xorb to the scrub if `opened` is an error, or if the stream fails later.
    fn reporting(&self, hash: XorbHash, opened: Result<ReadStream, ReadError>) -> Result<ReadStream, ReadError> {
        let suspects = Arc::clone(&self.suspects);
        let stream = opened.inspect_err(|error| suspects.report(hash, error))?;
        Ok(stream.inspect_err(move |error| suspects.report(hash, error)).boxed())
    }

    /// Updates the hasher with raw bytes of a xorb. The range must lie within the xorb.
    ///
    /// # Errors
    ///
    /// The bytes cannot be read. With [`Proof::Elsewhere`], a damaged blob may instead result in a
    /// wrong digest without an error.
    pub(super) async fn hash_raw<H: Digest + Send + 'static>(
        &self,
        xorb: &StoredXorb,
        bytes: ByteRange,
        proof: Proof,
        hasher: H,
    ) -> Result<H, ReadError> {
        let hashed = async {
            let decoding = self.decoding(xorb, bytes, proof).await?;
            decoding.hash(&self.pool, hasher).await
        };
        // Boxed: with a decoder and two hashers, it would make every future that awaits it large.
        Box::pin(hashed).await.inspect_err(|error| self.suspects.report(xorb.hash(), error))
    }

    /// Opens the blob of a xorb to decode the chunks that contain these raw bytes.
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
