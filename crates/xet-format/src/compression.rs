//! The compression schemes of a chunk (spec 3.2): from a payload to raw bytes and back.
//!
//! Decoding does not trust the input. It checks that the length that the chunk's header declares is
//! within [the limits](super::limits) before it allocates anything. The output never exceeds this
//! length, and a shorter output is an error.

use std::fmt;

use thiserror::Error;

use super::chunk::ChunkHeader;
pub use super::lz4_frame::{FrameError, FrameErrorKind};
pub use super::scheme::Scheme;
use super::{bg4, lz4_frame};

/// Why a payload is not the chunk that its header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The payload given does not have the length that the header declares.
    #[error("the payload has {actual} bytes, its header declares {declared}")]
    PayloadLen {
        /// Bytes that were given.
        actual: u64,
        /// Bytes that the header declares.
        declared: u32,
    },
    /// The chunk is not compressed, but the payload is not as long as the chunk.
    #[error("an uncompressed chunk has compressed length {payload_len} but raw length {raw_len}")]
    StoredLen {
        /// Bytes of the payload.
        payload_len: u32,
        /// Bytes that the header declares for the chunk.
        raw_len: u32,
    },
    /// The chunk would be empty or longer than a chunk may be. A parsed header never gives this
    /// error.
    #[error("raw length {raw_len} is outside the limits")]
    RawLen {
        /// Bytes that the header declares for the chunk.
        raw_len: u32,
    },
    /// The payload is not a valid LZ4 frame, or it does not have the declared raw length.
    #[error(transparent)]
    Lz4(#[from] FrameError),
}

/// Decompresses chunks sequentially, reusing its memory.
///
/// Holds at most two buffers of the largest chunk, 256 KiB in all, and allocates them at the first
/// compressed chunk. Uncompressed chunks are not copied.
#[derive(Clone, Default)]
pub struct Decoder {
    raw: Vec<u8>,
    grouped: Vec<u8>,
}

impl Decoder {
    /// A decoder without buffers.
    #[must_use]
    pub const fn new() -> Self {
        Self { raw: Vec::new(), grouped: Vec::new() }
    }

    /// The raw bytes of a chunk: exactly as many as its header declares.
    ///
    /// # Errors
    ///
    /// The payload does not decompress, decompresses to another length, or has bytes after the
    /// compressed data. The decoder can be used again.
    pub fn decode<'a>(&'a mut self, header: &ChunkHeader, payload: &'a [u8]) -> Result<&'a [u8], DecodeError> {
        let ChunkHeader { payload_len, scheme, raw_len } = *header;
        // The fields are public, so a header that was not parsed may hold anything. The scheme and
        // the payload length given here are always valid, so this checks only `raw_len`.
        if ChunkHeader::new(Scheme::Lz4, 1, raw_len).is_err() {
            return Err(DecodeError::RawLen { raw_len });
        }
        if payload.len() != payload_len as usize {
            return Err(DecodeError::PayloadLen { actual: payload.len() as u64, declared: payload_len });
        }
        match scheme {
            Scheme::None if payload_len == raw_len => Ok(payload),
            Scheme::None => Err(DecodeError::StoredLen { payload_len, raw_len }),
            Scheme::Lz4 => {
                let raw = scratch(&mut self.raw, raw_len);
                lz4_frame::decode(payload, raw)?;
                Ok(raw)
            }
            Scheme::ByteGroupedLz4 => {
                let grouped = scratch(&mut self.grouped, raw_len);
                lz4_frame::decode(payload, grouped)?;
                let raw = scratch(&mut self.raw, raw_len);
                bg4::join(grouped, raw);
                Ok(raw)
            }
        }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl DecodeError {
    /// Offset of the error from the start of the payload; 0 if the whole payload is wrong.
    #[must_use]
    pub const fn payload_offset(self) -> u32 {
        match self {
            Self::PayloadLen { .. } | Self::StoredLen { .. } | Self::RawLen { .. } => 0,
            Self::Lz4(error) => error.offset,
        }
    }
}

/// Which schemes to try for a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// No compression.
    None,
    /// LZ4.
    Lz4,
    /// Byte grouping, then LZ4.
    ByteGroupedLz4,
    /// Tries LZ4 with and without byte grouping and uses the shorter result. If both are equally
    /// long, uses LZ4 without grouping.
    BruteForce,
    /// Predicts from the bytes whether grouping helps, then compresses once, as stock clients do
    /// (spec 3.2).
    ///
    /// Stock clients predict once per 32 chunks to save time; this encoder does it for every chunk.
    #[default]
    Predict,
}

/// Compresses chunks sequentially, reusing its memory.
#[derive(Clone, Default)]
pub struct Encoder {
    grouped: Vec<u8>,
    candidate: Vec<u8>,
}

impl Encoder {
    /// An encoder without buffers.
    #[must_use]
    pub const fn new() -> Self {
        Self { grouped: Vec::new(), candidate: Vec::new() }
    }

    /// Appends the payload of a chunk to `out` and returns the scheme that was used.
    ///
    /// A payload is never longer than the chunk: a chunk that compression does not make *smaller*
    /// is stored uncompressed, with scheme [`Scheme::None`].
    pub fn encode(&mut self, policy: Policy, raw: &[u8], out: &mut Vec<u8>) -> Scheme {
        match policy {
            Policy::None => store(raw, out),
            Policy::Lz4 => self.encode_as(&[Scheme::Lz4], raw, out),
            Policy::ByteGroupedLz4 => self.encode_as(&[Scheme::ByteGroupedLz4], raw, out),
            Policy::BruteForce => self.encode_as(&[Scheme::Lz4, Scheme::ByteGroupedLz4], raw, out),
            Policy::Predict if bg4::is_recommended(raw) => self.encode_as(&[Scheme::ByteGroupedLz4], raw, out),
            Policy::Predict => self.encode_as(&[Scheme::Lz4], raw, out),
        }
    }

    /// Appends the shortest payload that one of these schemes gives, or the raw bytes if no payload
    /// is shorter than they are.
    fn encode_as(&mut self, candidates: &[Scheme], raw: &[u8], out: &mut Vec<u8>) -> Scheme {
        let before = out.len();
        let mut best = Scheme::None;
        let mut best_len = raw.len();
        for scheme in candidates {
            self.candidate.clear();
            let source = match scheme {
                Scheme::None | Scheme::Lz4 => raw,
                Scheme::ByteGroupedLz4 => {
                    self.grouped.resize(raw.len(), 0);
                    bg4::split(raw, &mut self.grouped);
                    &self.grouped
                }
            };
            match lz4_frame::encode(source, &mut self.candidate) {
                Some(len) if len < best_len => {
                    out.truncate(before);
                    out.extend_from_slice(&self.candidate);
                    (best, best_len) = (*scheme, len);
                }
                _ => {}
            }
        }
        if best == Scheme::None { store(raw, out) } else { best }
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

fn store(raw: &[u8], out: &mut Vec<u8>) -> Scheme {
    out.extend_from_slice(raw);
    Scheme::None
}

/// The first `len` bytes of a buffer that only grows. They still hold bytes of earlier chunks; the
/// caller overwrites them.
fn scratch(buffer: &mut Vec<u8>, len: u32) -> &mut [u8] {
    let len = len as usize;
    if buffer.len() < len {
        buffer.reserve_exact(len.saturating_sub(buffer.len()));
        buffer.resize(len, 0);
    }
    buffer.get_mut(..len).unwrap_or_default()
}
