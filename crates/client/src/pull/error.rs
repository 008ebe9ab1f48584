//! Why a file was not got.

use std::io;

use thiserror::Error;
use xet_format::xorb::XorbError;
use xet_format::{ByteRange, ByteRangeSpec, FileHash, XorbHash};

use crate::error::RequestError;

/// Why nothing was got. Whatever the sink has taken is to be thrown away.
#[derive(Debug, Error)]
pub enum PullError {
    /// There is no such file.
    #[error("the server has no file {file}, or this token cannot read it")]
    NotFound {
        /// Which file.
        file: FileHash,
    },
    /// There are no such bytes.
    #[error("file {file} has {len} bytes; the range {range} exceeds them")]
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
    /// The server did not give these files at once.
    #[error("cannot get {count} files at once")]
    Batch {
        /// How many.
        count: usize,
        /// What happened.
        source: Box<RequestError>,
    },
    /// The bytes are no chunks.
    #[error("the server sent damaged data for xorb {xorb}")]
    Damaged {
        /// Which xorb.
        xorb: XorbHash,
        /// What is wrong, and where.
        source: XorbError,
    },
    /// The chunks are longer or shorter than the server says.
    #[error("the server sent {actual} bytes of xorb {xorb}; its plan has {expected}")]
    WrongLen {
        /// Which xorb.
        xorb: XorbHash,
        /// Bytes in the plan.
        expected: u64,
        /// Bytes that came.
        actual: u64,
    },
    /// The bytes are another file.
    #[error("the received data is file {actual}, not {file}")]
    WrongFile {
        /// Which file was asked for.
        file: FileHash,
        /// Which one came.
        actual: FileHash,
    },
    /// The bytes are not these bytes of the file, or the summary of the rest is false.
    #[error("the received data is not provably bytes {bytes} of file {file}")]
    WrongPart {
        /// Which file.
        file: FileHash,
        /// Which bytes were asked for.
        bytes: ByteRange,
    },
    /// The bytes cannot be kept.
    #[error("cannot write the received data")]
    Write(#[source] io::Error),
}

impl PullError {
    /// Whether what was received before this happened is as good as ever.
    #[must_use]
    pub fn is_about_transfer(&self) -> bool {
        match self {
            Self::Request { source, .. } | Self::Batch { source, .. } => {
                !matches!(**source, RequestError::Strange { .. })
            }
            Self::Write(_) => true,
            _ => false,
        }
    }

    /// Whether no other file would come either at this moment: the server is not reached, is
    /// overloaded, or asks for a token.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        let (Self::Request { source, .. } | Self::Batch { source, .. }) = self else { return false };
        match &**source {
            RequestError::Unreachable { .. } | RequestError::BrokenOff { .. } | RequestError::Silent { .. } => true,
            RequestError::Refused { refusal, .. } => matches!(refusal.status, 401 | 429 | 503),
            _ => false,
        }
    }

    /// Whether the server lacks one of several files, or has no route for several.
    #[must_use]
    pub fn is_one_missing(&self) -> bool {
        let Self::Batch { source, .. } = self else { return false };
        matches!(&**source, RequestError::Refused { refusal, .. } if refusal.status == 404)
    }

    pub(super) fn request(file: FileHash, error: RequestError) -> Self {
        Self::Request { file, source: Box::new(error) }
    }
}
