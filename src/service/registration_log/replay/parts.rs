//! Types of a replay: problems, waiting registrations, and results of proofs.

use thiserror::Error;

use crate::blob::records::Seq;
use crate::format::shard::FileInfo;
use crate::format::{FileHash, XorbHash};
use crate::index::{Allowance, NewFile, Registration};
use crate::runtime::clock::Timestamp;
use crate::service::error::RegisterError;
use crate::service::register::{FirstChunk, distinct};

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
    /// Its record.
    pub(super) seq: Seq,
    pub(super) file: NewFile,
    pub(super) repo: String,
    pub(super) at: Timestamp,
    pub(super) missing: XorbHash,
}

/// A file that was proven.
pub(super) struct Proven {
    pub(super) file: NewFile,
    /// Its first chunk, and the xorb that has it.
    pub(super) first: FirstChunk,
    /// Its index in the record.
    pub(super) place: u32,
    pub(super) at: Timestamp,
    /// Whether its terms differ from those of its registration.
    pub(super) is_switched: bool,
}

/// Why a file was not proven.
pub(super) enum Unproven {
    /// A xorb is missing.
    Missing(XorbHash),
    /// Its record states something wrong about it.
    False(RegisterError),
}

/// A file of a record without its terms.
pub(super) fn claim_of(file: &FileInfo) -> NewFile {
    NewFile { hash: file.hash, raw_len: file.raw_len(), terms: Vec::new(), sha256: file.sha256 }
}

impl Waiting {
    /// The registration, with the terms of `file`: the same file, which was proven since with other
    /// terms.
    pub(super) fn with_terms_of(self, file: &NewFile) -> Registration {
        Registration {
            repo: self.repo,
            files: vec![NewFile { sha256: self.file.sha256, ..file.clone() }],
            xorbs: distinct(file.terms.iter().map(|term| term.xorb), &[]),
            dedup: Vec::new(),
            now: self.at,
            allowance: Allowance::default(),
        }
    }
}
