//! Why bytes are not a xorb: an offset and a kind, formatted only when displayed.

use std::fmt;

use thiserror::Error;

use super::footer::FooterError;
use crate::chunk::HeaderError;
use crate::compression::{DecodeError, FrameErrorKind};
use crate::limits::{CHUNK_HEADER_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN};

/// Why a body is not an acceptable xorb, and where.
///
/// Printed it reads `chunk 17 at byte 1204312: compressed length 300000 exceeds the limit of
/// 262144`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XorbError {
    /// The byte of the body where the error is: the wrong field, the header of the first chunk
    /// beyond a limit, the LZ4 block that does not decode, or the end of an incomplete body.
    pub offset: u64,
    /// Index of the chunk with the error; `None` if the error is not in a chunk.
    pub chunk: Option<u32>,
    /// What is wrong.
    pub kind: XorbErrorKind,
}

/// What is wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum XorbErrorKind {
    /// The body has no bytes.
    #[error("the body is empty")]
    Empty,
    /// The body ends within the first eight bytes of a chunk header or a footer.
    #[error("the body ends after {have} of the {CHUNK_HEADER_LEN} bytes of a chunk header")]
    HeaderIncomplete {
        /// Bytes of the header that are there, at least 1.
        have: u32,
    },
    /// The body ends within the payload of a chunk.
    #[error("the body ends after {have} of the {expected} bytes of the chunk's payload")]
    PayloadIncomplete {
        /// Bytes of the payload that are there.
        have: u32,
        /// Bytes that the chunk's header declares.
        expected: u32,
    },
    /// The body ends within the footer.
    #[error("the body ends after {have} of the {expected} bytes of the footer")]
    FooterIncomplete {
        /// Bytes of the footer that are there.
        have: u64,
        /// Bytes that the footer of these chunks must have.
        expected: u64,
    },
    /// The body has a footer and no chunk.
    #[error("the xorb has no chunks")]
    NoChunks,
    /// An invalid chunk header.
    #[error("{0}")]
    Header(HeaderError),
    /// A payload that does not give the chunk that the header describes.
    #[error("{0}")]
    Payload(DecodeError),
    /// With this chunk or footer the body is longer than the limit.
    #[error("the body is longer than the limit of {limit} bytes")]
    BodyTooLong {
        /// The limit that was given.
        limit: u64,
    },
    /// The chunks have more raw bytes than a xorb may have.
    #[error("the chunks have more than {MAX_XORB_RAW_LEN} raw bytes")]
    RawTooLong,
    /// There are more chunks than a xorb may have.
    #[error("the xorb has more than {MAX_XORB_CHUNK_COUNT} chunks")]
    TooManyChunks,
    /// An invalid footer.
    #[error("{0}")]
    Footer(FooterError),
}

/// Classes of errors by what the sender of the body can do about them. Each class has one code in
/// the responses of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XorbErrorClass {
    /// The bytes contradict the format or themselves.
    Malformed,
    /// A chunk header or footer of another version.
    UnsupportedVersion,
    /// A compression scheme or a kind of LZ4 frame that this crate does not support.
    UnsupportedCompression,
    /// More bytes, serialized or raw, than a xorb may have.
    TooLarge,
    /// More chunks than a xorb may have.
    TooManyChunks,
    /// The body ends before the xorb does. To send it again may succeed.
    Incomplete,
}

impl XorbError {
    /// The class of the error.
    #[must_use]
    pub const fn class(&self) -> XorbErrorClass {
        self.kind.class()
    }
}

impl fmt::Display for XorbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.chunk {
            write!(f, "chunk {index} at ")?;
        }
        write!(f, "byte {}: {}", self.offset, self.kind)
    }
}

impl std::error::Error for XorbError {}

impl XorbErrorKind {
    /// The class of the error.
    #[must_use]
    pub const fn class(&self) -> XorbErrorClass {
        match self {
            Self::Empty
            | Self::HeaderIncomplete { .. }
            | Self::PayloadIncomplete { .. }
            | Self::FooterIncomplete { .. } => XorbErrorClass::Incomplete,
            Self::Header(HeaderError::Version { .. })
            | Self::Footer(FooterError::Version { .. } | FooterError::SectionVersion { .. }) => {
                XorbErrorClass::UnsupportedVersion
            }
            Self::Header(HeaderError::Scheme { .. }) => XorbErrorClass::UnsupportedCompression,
            Self::Payload(DecodeError::Lz4(error)) => class_of_frame(error.kind),
            Self::BodyTooLong { .. } | Self::RawTooLong => XorbErrorClass::TooLarge,
            Self::TooManyChunks => XorbErrorClass::TooManyChunks,
            Self::NoChunks | Self::Header(_) | Self::Payload(_) | Self::Footer(_) => XorbErrorClass::Malformed,
        }
    }
}

impl XorbErrorClass {
    /// The stable name of the class, which is also its code in responses of the server.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Malformed => "malformed_xorb",
            Self::UnsupportedVersion => "unsupported_version",
            Self::UnsupportedCompression => "unsupported_compression",
            Self::TooLarge => "too_large",
            Self::TooManyChunks => "too_many_chunks",
            Self::Incomplete => "incomplete_body",
        }
    }
}

/// Kinds of LZ4 frames that are valid but not accepted are unsupported compression; every other
/// error is malformed data.
const fn class_of_frame(kind: FrameErrorKind) -> XorbErrorClass {
    match kind {
        FrameErrorKind::Legacy
        | FrameErrorKind::Skippable
        | FrameErrorKind::Version { .. }
        | FrameErrorKind::Dictionary => XorbErrorClass::UnsupportedCompression,
        _ => XorbErrorClass::Malformed,
    }
}
