//! Decodes a range of chunks of a blob, piece by piece.

use std::collections::VecDeque;
use std::fmt;

use bytes::{Buf, Bytes};
use futures_util::stream::{StreamExt, TryStreamExt, try_unfold};
use sha2::Digest;

use super::ReadStream;
use crate::blob::BlobStream;
use crate::format::compression::Decoder;
use crate::format::limits::MAX_CHUNK_RAW_LEN;
use crate::format::xorb::{Splitter, XorbError, XorbErrorKind};
use crate::format::{ChunkHash, XorbHash};
use crate::runtime::blocking::Pool;
use crate::service::error::{ReadError, StoreError};

/// One task of the worker pool stops decoding after about this number of raw bytes. The limit is
/// needed because a small input may decode to much more.
const RAW_PIECE_LEN: usize = 256 << 10;

/// One task of the worker pool decodes and hashes about this number of stored bytes. More tasks
/// cost more, as each wakes two threads. A longer task would delay uploads in the same pool.
const HASHED_INPUT_LEN: usize = 1 << 20;

/// Such a task stops after about this number of raw bytes, even if stored bytes are left.
const HASHED_RAW_LEN: usize = 4 << 20;

/// A range of chunks of a xorb that is being decoded.
pub(super) struct Decoding {
    pub(super) hash: XorbHash,
    /// The index of the first chunk of the range in the xorb.
    pub(super) first_chunk: u32,
    /// The expected hashes of these chunks; `None` if the caller checks the bytes.
    pub(super) chunk_hashes: Option<Vec<ChunkHash>>,
    pub(super) blob: BlobStream,
    /// Stored bytes that were read and not yet passed to the splitter.
    pub(super) input: Bytes,
    /// Divides the stored bytes into frames. A frame is a chunk with its header.
    pub(super) splitter: Splitter,
    pub(super) decoder: Decoder,
    /// Raw bytes before the requested range that are still to be skipped.
    pub(super) skip: u64,
    /// Raw bytes that are still to be returned.
    pub(super) left: u64,
}

impl fmt::Debug for Decoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoding").field("hash", &self.hash).field("left", &self.left).finish_non_exhaustive()
    }
}

impl Decoding {
    /// Streams all requested bytes.
    pub(super) fn stream(self, pool: Pool) -> ReadStream {
        try_unfold((self, pool), |(mut decoding, pool)| async move {
            while decoding.left > 0 {
                if decoding.input.is_empty() {
                    // According to the layout, these chunks contain the requested bytes. If the
                    // blob ends earlier, it is damaged.
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

    /// Hashes all requested bytes.
    pub(super) async fn hash<H: Digest + Send + 'static>(mut self, pool: &Pool, mut hasher: H) -> Result<H, ReadError> {
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

    /// Decodes and hashes the pieces, up to about `HASHED_RAW_LEN` raw bytes. Blocks.
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

    /// Decodes about `RAW_PIECE_LEN` raw bytes of the input. Empty if the input has no whole frame.
    /// Blocks.
    fn next_piece(&mut self) -> Result<Bytes, ReadError> {
        // A vector that grows by itself ends with up to twice its length. What is not written of
        // this capacity takes no memory.
        let longest = RAW_PIECE_LEN + MAX_CHUNK_RAW_LEN as usize;
        let mut output = Vec::with_capacity(usize::try_from(self.left).map_or(longest, |left| left.min(longest)));
        self.decode(RAW_PIECE_LEN, |raw| output.extend_from_slice(raw))?;
        Ok(output.into())
    }

    /// Decodes frames and passes the requested bytes to `give`, until `enough` were passed or the
    /// input has no whole frame. Returns how many bytes were passed. Blocks.
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
        if self.input.is_empty() {
            // Even without bytes it would hold its buffer until the client wants the next piece.
            self.input = Bytes::new();
        }
        Ok(given)
    }
}
