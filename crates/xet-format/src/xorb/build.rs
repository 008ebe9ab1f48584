//! Builds xorbs: takes raw chunks and returns the serialized bytes.

use std::fmt;

use thiserror::Error;

use super::verified::{Seen, VerifiedXorb};
use crate::chunk::ChunkHeader;
use crate::compression::{Encoder, Policy, Scheme};
use crate::hash::ChunkHash;
use crate::limits::{
    CHUNK_HEADER_LEN, MAX_CHUNK_RAW_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN, MAX_XORB_SERIALIZED_LEN,
};

/// Why a chunk was not added. The builder is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    /// The xorb has no space for the chunk. The caller puts it into the next xorb.
    #[error("the xorb is full: it would exceed {limit}")]
    Full {
        /// The limit that the xorb would exceed with this chunk.
        limit: BuildLimit,
    },
    /// The chunk has no bytes.
    #[error("a chunk cannot be empty")]
    EmptyChunk,
    /// The chunk is longer than a chunk may be.
    #[error("a chunk of {len} bytes exceeds the limit of {MAX_CHUNK_RAW_LEN}")]
    ChunkTooLong {
        /// Bytes that it has.
        len: u64,
    },
}

/// What can make a xorb full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildLimit {
    /// [`MAX_XORB_CHUNK_COUNT`].
    ChunkCount,
    /// [`MAX_XORB_RAW_LEN`].
    RawLen,
    /// [`MAX_XORB_SERIALIZED_LEN`]; the builder writes no footer.
    SerializedLen,
}

impl fmt::Display for BuildLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChunkCount => write!(f, "{MAX_XORB_CHUNK_COUNT} chunks"),
            Self::RawLen => write!(f, "{MAX_XORB_RAW_LEN} raw bytes"),
            Self::SerializedLen => write!(f, "{MAX_XORB_SERIALIZED_LEN} serialized bytes"),
        }
    }
}

/// Builds one xorb from chunks.
///
/// ```
/// use xet_format::compression::Policy;
/// use xet_format::xorb::{XorbBuilder, verify};
///
/// let mut builder = XorbBuilder::new(Policy::Predict);
/// builder.push(b"hello world")?;
/// let xorb = builder.finish().expect("it has a chunk");
/// assert_eq!(verify(xorb.bytes()).as_ref(), Ok(xorb.xorb()));
/// # Ok::<(), xet_format::xorb::BuildError>(())
/// ```
pub struct XorbBuilder {
    policy: Policy,
    encoder: Encoder,
    bytes: Vec<u8>,
    raw_len: u64,
    seen: Seen,
}

/// A xorb and its bytes, without a footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltXorb {
    bytes: Vec<u8>,
    xorb: VerifiedXorb,
}

impl XorbBuilder {
    /// A builder without chunks that compresses as the policy says.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, encoder: Encoder::new(), bytes: Vec::new(), raw_len: 0, seen: Seen::default() }
    }

    /// Adds a chunk and returns its hash.
    ///
    /// # Errors
    ///
    /// The chunk is empty or too long, or does not fit; the builder is unchanged.
    pub fn push(&mut self, raw: &[u8]) -> Result<ChunkHash, BuildError> {
        let raw_len = match u32::try_from(raw.len()) {
            Ok(0) => return Err(BuildError::EmptyChunk),
            Ok(len @ 1..=MAX_CHUNK_RAW_LEN) => len,
            _ => return Err(BuildError::ChunkTooLong { len: raw.len() as u64 }),
        };
        if self.chunk_count() >= MAX_XORB_CHUNK_COUNT {
            return Err(BuildError::Full { limit: BuildLimit::ChunkCount });
        }
        let total = self.raw_len.saturating_add(raw_len.into());
        if total > MAX_XORB_RAW_LEN {
            return Err(BuildError::Full { limit: BuildLimit::RawLen });
        }
        let before = self.bytes.len();
        // The header depends on the payload, so these bytes are replaced by it after the payload is
        // written.
        self.bytes.extend_from_slice(&[0; CHUNK_HEADER_LEN as usize]);
        let scheme = self.encoder.encode(self.policy, raw, &mut self.bytes);
        let added = self.close_record(before, scheme, raw_len).and_then(|record_len| {
            let counted = self.seen.push(raw, record_len, scheme);
            counted.map_err(|_| BuildError::Full { limit: BuildLimit::RawLen })
        });
        match added {
            Ok(_) => self.raw_len = total,
            Err(_) => self.bytes.truncate(before),
        }
        added
    }

    /// Whether there is no chunk yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunk_count() == 0
    }

    /// Chunks added so far.
    #[must_use]
    pub fn chunk_count(&self) -> u32 {
        self.seen.chunk_count()
    }

    /// Raw bytes of the chunks added so far.
    #[must_use]
    pub const fn raw_len(&self) -> u64 {
        self.raw_len
    }

    /// Bytes of the xorb so far.
    #[must_use]
    pub fn serialized_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The xorb; `None` without chunks.
    #[must_use]
    pub fn finish(self) -> Option<BuiltXorb> {
        let Self { bytes, seen, .. } = self;
        Some(BuiltXorb { bytes, xorb: seen.seal()? })
    }

    /// Writes the header of the record that begins at `start` and returns the record's length.
    fn close_record(&mut self, start: usize, scheme: Scheme, raw_len: u32) -> Result<u32, BuildError> {
        let full = BuildError::Full { limit: BuildLimit::SerializedLen };
        if self.serialized_len() > MAX_XORB_SERIALIZED_LEN {
            return Err(full);
        }
        let record = self.bytes.get_mut(start..).ok_or(full)?;
        let (header, payload) = record.split_first_chunk_mut().ok_or(full)?;
        let payload_len = u32::try_from(payload.len()).map_err(|_| full)?;
        let value = ChunkHeader { payload_len, scheme, raw_len };
        *header = value.to_bytes();
        Ok(value.record_len())
    }
}

impl fmt::Debug for XorbBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XorbBuilder")
            .field("policy", &self.policy)
            .field("chunk_count", &self.chunk_count())
            .field("raw_len", &self.raw_len)
            .field("serialized_len", &self.serialized_len())
            .finish_non_exhaustive()
    }
}

impl BuiltXorb {
    /// The serialized xorb.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Hash, layout, chunk hashes and schemes of the xorb.
    #[must_use]
    pub const fn xorb(&self) -> &VerifiedXorb {
        &self.xorb
    }

    /// The serialized xorb, and its hash, layout, chunk hashes and schemes.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, VerifiedXorb) {
        (self.bytes, self.xorb)
    }
}
