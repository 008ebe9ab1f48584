//! Errors of a pull.

use std::io;

use thiserror::Error;
use xet_format::xorb::XorbError;
use xet_format::{ByteRange, ByteRangeSpec, FileHash, XorbHash};

use crate::error::RequestError;

/// Why a pull failed. The bytes written to the sink must be discarded, unless
/// [`is_resumable`](PullError::is_resumable) says otherwise.
#[derive(Debug, Error)]
pub enum PullError {
    /// The server does not have the file, or the token may not read it.
    #[error("the server has no file {file}, or this token cannot read it")]
    NotFound {
        /// Which file.
        file: FileHash,
    },
    /// The file does not have all requested bytes.
    #[error("file {file} has {len} bytes; the range {range} exceeds them")]
    PastEnd {
        /// Which file.
        file: FileHash,
        /// Its bytes.
        len: u64,
        /// The requested range.
        range: ByteRangeSpec,
    },
    /// A request for the file failed.
    #[error("cannot get file {file}")]
    Request {
        /// Which file.
        file: FileHash,
        /// The error of the last attempt.
        source: Box<RequestError>,
    },
    /// A request for several files failed.
    #[error("cannot get {count} files at once")]
    Batch {
        /// How many files were requested.
        count: usize,
        /// The error of the last attempt.
        source: Box<RequestError>,
    },
    /// The bytes are not valid chunks.
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
        /// Bytes that the server sent, at least.
        actual: u64,
    },
    /// The bytes are another file.
    #[error("the received data is file {actual}, not {file}")]
    WrongFile {
        /// Which file was requested.
        file: FileHash,
        /// Which file the received bytes are.
        actual: FileHash,
    },
    /// The received bytes are not the requested bytes of the file, or the server's summary of the
    /// rest is false.
    #[error("the received data is not provably bytes {bytes} of file {file}")]
    WrongPart {
        /// Which file.
        file: FileHash,
        /// Which bytes were requested.
        bytes: ByteRange,
    },
    /// The sink cannot store the bytes.
    #[error("cannot write the received data")]
    Write(#[source] io::Error),
}

impl PullError {
    /// Whether only the transfer or a write failed, so that the bytes received before may be used
    /// to resume.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        match self {
            Self::Request { source, .. } | Self::Batch { source, .. } => {
                !matches!(**source, RequestError::InvalidResponse { .. })
            }
            Self::Write(_) => true,
            _ => false,
        }
    }

    /// Whether pulls of other files would fail now, too, because the server is unreachable or
    /// overloaded, or requires a token.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        let (Self::Request { source, .. } | Self::Batch { source, .. }) = self else { return false };
        match &**source {
            RequestError::Unreachable { .. } | RequestError::BrokenOff { .. } | RequestError::Silent { .. } => true,
            RequestError::Refused { refusal, .. } => matches!(refusal.status, 401 | 429 | 503),
            _ => false,
        }
    }

    /// Whether a batch failed because the server lacks one of its files or has no route for
    /// batches.
    #[must_use]
    pub fn is_file_missing(&self) -> bool {
        let Self::Batch { source, .. } = self else { return false };
        matches!(&**source, RequestError::Refused { refusal, .. } if refusal.status == 404)
    }

    pub(super) fn request(file: FileHash, error: RequestError) -> Self {
        Self::Request { file, source: Box::new(error) }
    }
}
