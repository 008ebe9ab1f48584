//! Values of a replay: what could not be applied, and what waits for a missing xorb.

use thiserror::Error;

use crate::blob::records::Seq;
use crate::format::{FileHash, XorbHash};
use crate::index::NewFile;
use crate::runtime::clock::Timestamp;
use crate::service::register::{FirstChunk, RegisterError};

/// A record or file that could not be replayed.
#[derive(Debug, Error)]
pub(super) enum Problem {
    #[error("record {seq} cannot be used")]
    Record {
        seq: Seq,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("file {file} of {repo} is left out")]
    File {
        file: FileHash,
        repo: String,
        #[source]
        source: RegisterError,
    },
}

/// A registration of one file that waits for a missing xorb.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The record of it.
    pub(super) seq: Seq,
    pub(super) file: NewFile,
    pub(super) repo: String,
    pub(super) at: Timestamp,
    pub(super) missing: XorbHash,
}

/// A file that may be registered.
pub(super) struct Proven {
    pub(super) file: NewFile,
    /// Its first chunk, and the xorb that has it.
    pub(super) first: FirstChunk,
    pub(super) at: Timestamp,
    /// Whether its terms differ from those of its registration.
    pub(super) is_switched: bool,
}

/// Why a file may not be registered.
pub(super) enum Unproven {
    /// A xorb is missing.
    Missing(XorbHash),
    /// Its record is false.
    False(RegisterError),
}
