//! Temporary failures of the machine, and advice for the operator.
//!
//! None of these is a fault of the request or of the stored data, and all of them end without a
//! restart.

use std::io;

/// Why files cannot be written, or not opened, for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The file system takes no changes.
    ReadOnly,
    /// The process, or the machine, has as many files open as it may.
    TooManyFiles,
    /// A file that was there cannot be opened.
    CannotOpen,
    /// The disk fails.
    Failing,
    /// There is not enough memory.
    OutOfMemory,
}

impl Outage {
    /// The outage that this error is a sign of.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        // Not by `kind`: it has no name for most of these.
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_by_itself_or_by_its_operator_is_an_outage() {
        let of = |errno: rustix::io::Errno| Outage::of(&io::Error::from(errno));
        assert_eq!(of(rustix::io::Errno::ROFS), Some(Outage::ReadOnly));
        assert_eq!(of(rustix::io::Errno::MFILE), Some(Outage::TooManyFiles));
        assert_eq!(of(rustix::io::Errno::NFILE), Some(Outage::TooManyFiles));
        assert_eq!(of(rustix::io::Errno::IO), Some(Outage::Failing));
        // A full disk has a code of its own, and a missing file is our own corruption.
        assert_eq!(of(rustix::io::Errno::NOSPC), None);
        assert_eq!(of(rustix::io::Errno::NOENT), None);
        assert_eq!(Outage::of(&io::Error::other("no number")), None);
    }
}
