//! Errors of backups and restores that callers branch on.

use thiserror::Error;

use crate::format::{FileHash, XorbHash};
use crate::rca::Error as RcaError;
use crate::service::StoreError;

/// Why an archive cannot be used. It was not changed.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// It is a file of another kind.
    #[error("not a zorb backup: {reason}")]
    NotABackup {
        /// The evidence.
        reason: &'static str,
    },
    /// Its version is unknown to this program.
    #[error("it is a backup of another format version ({found}); use a newer zorb")]
    OtherVersion {
        /// The name of its first blob.
        found: String,
    },
    /// Another process is writing to it.
    #[error("another process is writing to it, perhaps another backup; retry when it is done")]
    Locked,
    /// It is in a dialect of the archive format that zorb does not write.
    #[error("it is in the dialect of the format's README, which zorb backups never are")]
    Dialect,
    /// Its bytes are not what was written.
    #[error("damaged")]
    Damaged(#[source] RcaError),
    /// Its bytes are intact, but malformed.
    #[error("its blob {blob} is malformed: {reason}")]
    Malformed {
        /// Name of the blob.
        blob: String,
        /// The fault.
        reason: String,
    },
    /// It cannot be read or written.
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

/// Why a backup ended early. Data committed to the archive stays, and the next run continues after
/// it.
#[derive(Debug, Error)]
pub enum BackupError {
    /// The archive cannot be appended to.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The store failed.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
}

/// Why a restore failed. The target is to be discarded.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The archive is damaged.
    #[error("the archive is damaged; {xorb_count} xorbs and {file_count} files before the damage are valid")]
    Archive {
        /// Xorbs that were read and proven before.
        xorb_count: u64,
        /// Files that were read and proven before.
        file_count: u64,
        /// The damage.
        #[source]
        source: ArchiveError,
    },
    /// The chunks under the name of a xorb are those of another one.
    #[error("the chunks of xorb {named} in the archive are those of {actual}")]
    OtherXorb {
        /// The name that they have.
        named: XorbHash,
        /// The xorb that they are.
        actual: XorbHash,
    },
    /// A file's terms are not chunks of the xorbs before it.
    #[error("term {term} of file {file} is not chunks of a xorb that the archive has")]
    Term {
        /// Which file.
        file: FileHash,
        /// Which of its terms, from 0.
        term: usize,
    },
    /// A file's terms hash to another file.
    #[error("the contents of file {named} in the archive are those of {actual}")]
    OtherFile {
        /// The name that they have.
        named: FileHash,
        /// The file that they are.
        actual: FileHash,
    },
    /// The new store failed.
    #[error("the restored store cannot be written")]
    Store(#[from] StoreError),
}

impl RestoreError {
    /// Whether the archive is at fault, and not the new store.
    pub(super) fn blames_archive(&self) -> bool {
        !matches!(self, Self::Store(_))
    }
}
