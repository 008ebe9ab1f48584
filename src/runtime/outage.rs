//! Failures of the machine that may be temporary, and advice for the operator.
//!
//! None of them is a fault of the request or of the stored data. When the cause is fixed, the
//! server continues without a restart.

use std::io;

/// Why files cannot be written or opened at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The file system is read-only.
    ReadOnly,
    /// The process, or the machine, has reached its limit of open files.
    TooManyFiles,
    /// An existing file cannot be opened.
    CannotOpen,
    /// The disk reports errors.
    Failing,
    /// There is not enough memory.
    OutOfMemory,
    /// The S3 store of the blobs does not respond, or refuses requests.
    ObjectStore,
    /// The database of the index does not respond.
    Database,
}

impl Outage {
    /// The outage that causes this error, if it is one.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        // Compares error numbers, because `io::ErrorKind` has no name for most of them.
        match rustix::io::Errno::from_io_error(error)? {
            rustix::io::Errno::ROFS => Some(Self::ReadOnly),
            rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => Some(Self::TooManyFiles),
            rustix::io::Errno::IO => Some(Self::Failing),
            rustix::io::Errno::NOMEM => Some(Self::OutOfMemory),
            _ => None,
        }
    }

    /// What to do, for the log.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::ReadOnly => {
                "the file system of the data directory is read-only: see the kernel log, and remount it for writing"
            }
            Self::TooManyFiles => "too many files are open: raise LimitNOFILE (ulimit -n), or lower max_connections",
            Self::CannotOpen => {
                "a file of the index cannot be opened: check the mount and the permissions of the data directory, \
                 and the open file limit (ulimit -n)"
            }
            Self::Failing => "the disk fails: see the kernel log, and make a backup while it can be read",
            Self::OutOfMemory => "out of memory",
            Self::ObjectStore => {
                "the S3 store does not respond, or refuses requests: check that it runs, that its bucket exists, and \
                 that its key is valid"
            }
            Self::Database => "the database does not respond: check that it runs, and the network",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_and_missing_file_are_no_outage() {
        let of = |errno: rustix::io::Errno| Outage::of(&io::Error::from(errno));
        assert_eq!(of(rustix::io::Errno::ROFS), Some(Outage::ReadOnly));
        assert_eq!(of(rustix::io::Errno::MFILE), Some(Outage::TooManyFiles));
        assert_eq!(of(rustix::io::Errno::NFILE), Some(Outage::TooManyFiles));
        assert_eq!(of(rustix::io::Errno::IO), Some(Outage::Failing));
        // A full disk has a separate error kind, and a missing file is damage of the store.
        assert_eq!(of(rustix::io::Errno::NOSPC), None);
        assert_eq!(of(rustix::io::Errno::NOENT), None);
        assert_eq!(Outage::of(&io::Error::other("no number")), None);
    }
}
