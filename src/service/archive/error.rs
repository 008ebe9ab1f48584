//! Errors of backups and restores.

use thiserror::Error;

use crate::format::{FileHash, XorbHash};
use crate::rca::Error as RcaError;
use crate::service::StoreError;

/// Why an archive cannot be used.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// The file is not a backup of zorb.
    #[error("not a zorb backup: {reason}")]
    NotABackup {
        /// What shows it.
        reason: &'static str,
    },
    /// The backup has a version that this program does not support.
    #[error("it is a backup of another format version ({found}); use a newer zorb")]
    OtherVersion {
        /// The name of the first blob, which contains the version.
        found: String,
    },
    /// Another process is writing to the archive.
    #[error("another process is writing to it, perhaps another backup; retry when it is done")]
    Locked,
    /// The archive is in the dialect of the RCA format that zorb does not write.
    #[error("it is in the dialect of the format's README, which zorb backups never are")]
    Dialect,
    /// The archive is not valid RCA, or one of its hashes is wrong.
    #[error("damaged")]
    Damaged(#[source] RcaError),
    /// A blob of the archive is not a sequence of valid records.
    #[error("its blob {blob} is malformed: {reason}")]
    Malformed {
        /// The name of the blob.
        blob: String,
        /// What is malformed.
        reason: String,
    },
    /// The archive cannot be read or written.
    #[error("it cannot be read or written")]
    Io(#[source] RcaError),
}

impl From<RcaError> for ArchiveError {
    fn from(error: RcaError) -> Self {
        match error {
            RcaError::Locked => Self::Locked,
            RcaError::ReadmeDialect { .. } => Self::Dialect,
            error if error.is_damage() => Self::Damaged(error),
            error => Self::Io(error),
        }
    }
}

/// Why a backup ended early. The blobs that were already appended stay in the archive, and the next
/// run appends the rest.
#[derive(Debug, Error)]
pub enum BackupError {
    /// The archive cannot be appended to.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The store failed.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
}

/// Why a restore failed, or a repair from an archive. After a failed restore, the caller must
/// discard the new store.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The archive is damaged, malformed or cannot be read.
    #[error("the archive is damaged; {xorb_count} xorbs and {file_count} files before the damage are valid")]
    Archive {
        /// Xorbs before the damage that were read and proven.
        xorb_count: u64,
        /// Files before the damage that were read and proven.
        file_count: u64,
        /// Why reading ended.
        #[source]
        source: ArchiveError,
    },
    /// The chunks in the record of a xorb do not have the hash of the xorb.
    #[error("the chunks of xorb {named} in the archive are those of {actual}")]
    OtherXorb {
        /// The hash in the head of the record.
        named: XorbHash,
        /// The hash of the chunks.
        actual: XorbHash,
    },
    /// A term of a file is not a range of chunks of a xorb that precedes the file in the archive,
    /// or its length is wrong.
    #[error("term {term} of file {file} is not chunks of a xorb that the archive has")]
    Term {
        /// Which file.
        file: FileHash,
        /// Which of its terms, from 0.
        term: usize,
    },
    /// The terms in the record of a file do not have the hash or the length of the file.
    #[error("the contents of file {named} in the archive are those of {actual}")]
    OtherFile {
        /// The hash in the head of the record.
        named: FileHash,
        /// The hash of the terms.
        actual: FileHash,
    },
    /// The store that is restored or repaired failed.
    #[error("the restored store cannot be written")]
    Store(#[from] StoreError),
}

impl RestoreError {
    /// Whether the archive is the cause, and not the store.
    pub(super) fn blames_archive(&self) -> bool {
        !matches!(self, Self::Store(_))
    }
}
