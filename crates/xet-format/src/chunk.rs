//! The header in front of every chunk of a xorb (spec 3.1).
//!
//! ```text
//! 0        1                     4        5                     8
//! ┌────────┬─────────────────────┬────────┬─────────────────────┐
//! │version │ payload length      │ scheme │ raw length          │  then the payload
//! │  = 0   │ 24 bit LE           │ 0 1 2  │ 24 bit LE           │
//! └────────┴─────────────────────┴────────┴─────────────────────┘
//! ```
//!
//! A parsed header is within the limits, so a caller may allocate as many bytes as the header
//! declares. Whether the lengths are *true* is known only after the payload is decoded.

use thiserror::Error;

use super::limits::{CHUNK_HEADER_LEN, MAX_CHUNK_PAYLOAD_LEN, MAX_CHUNK_RAW_LEN};
use super::scheme::Scheme;

/// The only version of the header.
const VERSION: u8 = 0;

/// The largest number that a length field holds.
const MAX_FIELD: u32 = (1 << 24) - 1;

/// The header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Bytes of the payload that follows the header.
    pub payload_len: u32,
    /// How the payload is compressed.
    pub scheme: Scheme,
    /// Bytes of the chunk when it is decompressed.
    pub raw_len: u32,
}

/// Why eight bytes are not an acceptable chunk header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The version does not exist yet, or the bytes are not a header at all.
    #[error("chunk header version {found} is not supported, only {VERSION}")]
    Version {
        /// The version that is there.
        found: u8,
    },
    /// The scheme does not exist. 99 does not either: clients use this number for their setting
    /// "auto" and never store it.
    #[error("compression scheme {found} is not supported, only 0, 1 and 2")]
    Scheme {
        /// The scheme that is there.
        found: u8,
    },
    /// The chunk has no payload.
    #[error("compressed length is 0")]
    PayloadEmpty,
    /// The payload is longer than a payload may be.
    #[error("compressed length {len} exceeds the limit of {MAX_CHUNK_PAYLOAD_LEN}")]
    PayloadTooLong {
        /// The length that is declared.
        len: u32,
    },
    /// The payload is longer than the chunk. The format allows this, so [`ChunkHeader::parse`]
    /// does, too. No known writer produces it, and uploads with such a chunk are refused.
    #[error("compressed length {payload_len} exceeds the raw length {raw_len}")]
    Expanded {
        /// The payload length that is declared.
        payload_len: u32,
        /// The raw length that is declared.
        raw_len: u32,
    },
    /// The chunk has no bytes.
    #[error("raw length is 0")]
    RawEmpty,
    /// The chunk is longer than a chunk may be.
    #[error("raw length {len} exceeds the limit of {MAX_CHUNK_RAW_LEN}")]
    RawTooLong {
        /// The length that is declared.
        len: u32,
    },
    /// The chunk is not compressed, but its two lengths differ.
    #[error("an uncompressed chunk has compressed length {payload_len} but raw length {raw_len}")]
    StoredLen {
        /// The payload length that is declared.
        payload_len: u32,
        /// The raw length that is declared.
        raw_len: u32,
    },
}

impl ChunkHeader {
    /// A header with these values.
    ///
    /// # Errors
    ///
    /// A length is 0 or beyond its limit, or the chunk is not compressed and the lengths differ.
    pub fn new(scheme: Scheme, payload_len: u32, raw_len: u32) -> Result<Self, HeaderError> {
        match payload_len {
            0 => return Err(HeaderError::PayloadEmpty),
            1..=MAX_CHUNK_PAYLOAD_LEN => {}
            len => return Err(HeaderError::PayloadTooLong { len }),
        }
        match raw_len {
            0 => return Err(HeaderError::RawEmpty),
            1..=MAX_CHUNK_RAW_LEN => {}
            len => return Err(HeaderError::RawTooLong { len }),
        }
        if scheme == Scheme::None && payload_len != raw_len {
            return Err(HeaderError::StoredLen { payload_len, raw_len });
        }
        Ok(Self { payload_len, scheme, raw_len })
    }

    /// Reads a header. If several fields are wrong, returns the error of the first one in this
    /// order: version, scheme, lengths.
    ///
    /// # Errors
    ///
    /// The header is of another version or scheme, or [`ChunkHeader::new`] refuses its lengths.
    pub fn parse(bytes: &[u8; 8]) -> Result<Self, HeaderError> {
        let [version, c0, c1, c2, scheme, u0, u1, u2] = *bytes;
        if version != VERSION {
            return Err(HeaderError::Version { found: version });
        }
        let payload_len = u32::from_le_bytes([c0, c1, c2, 0]);
        let raw_len = u32::from_le_bytes([u0, u1, u2, 0]);
        let Some(scheme) = Scheme::from_byte(scheme) else {
            return Err(HeaderError::Scheme { found: scheme });
        };
        Self::new(scheme, payload_len, raw_len)
    }

    /// The eight bytes of the header.
    ///
    /// A length that does not fit into 24 bits is written as the largest 24-bit number. This number
    /// is beyond the limits, so readers refuse the header. Truncation to 24 bits could give a valid
    /// length instead.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        let [c0, c1, c2, _] = self.payload_len.min(MAX_FIELD).to_le_bytes();
        let [u0, u1, u2, _] = self.raw_len.min(MAX_FIELD).to_le_bytes();
        [VERSION, c0, c1, c2, self.scheme.as_byte(), u0, u1, u2]
    }

    /// Bytes of the chunk's record (its frame): this header and its payload.
    #[must_use]
    pub const fn record_len(&self) -> u32 {
        self.payload_len.saturating_add(CHUNK_HEADER_LEN)
    }
}

impl HeaderError {
    /// Offset of the offending field from the start of the header.
    #[must_use]
    pub const fn field_offset(self) -> u32 {
        match self {
            Self::Version { .. } => 0,
            Self::PayloadEmpty | Self::PayloadTooLong { .. } | Self::Expanded { .. } => 1,
            Self::Scheme { .. } => 4,
            Self::RawEmpty | Self::RawTooLong { .. } | Self::StoredLen { .. } => 5,
        }
    }
}
