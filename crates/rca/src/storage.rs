//! What the writer needs from the thing it writes to, beyond `Read + Write + Seek`.

use std::fs::{File, TryLockError};
use std::io::{self, Cursor, Read, Seek, Write};

/// A random-access store of one archive.
///
/// The contract that makes appends crash-safe: when [`sync`](Storage::sync) has returned `Ok`,
/// every earlier write and `set_len` survives a power loss; before that, any subset of them may be
/// lost. Writes may be split anywhere. Only the writer's single header write at a multiple of
/// 0x8000 is hoped to be whole, and a torn one is repaired (see [`Writer`](super::Writer)).
pub trait Storage: Read + Write + Seek {
    /// Sets the length in bytes: cuts, or extends with zeros.
    ///
    /// # Errors
    /// Whatever the store reports.
    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// Makes everything written so far durable.
    ///
    /// After an error nothing is known about what is durable, and a second call that succeeds
    /// proves nothing (the kernel may have dropped the dirty pages), so the writer gives up.
    ///
    /// # Errors
    /// Whatever the store reports.
    fn sync(&mut self) -> io::Result<()>;

    /// Takes the exclusive lock of a writer, without waiting; `None` if someone else has it.
    ///
    /// The lock lasts until it is dropped. A store that only one owner can reach has none to take.
    ///
    /// # Errors
    /// Whatever the store reports, except that it cannot lock at all.
    fn try_lock(&mut self) -> io::Result<Option<Lock>> {
        Ok(Some(Lock::none()))
    }
}

/// The right to write to a store; given back when it is dropped.
#[derive(Debug)]
pub struct Lock(Option<File>);

impl Lock {
    /// For storage that no other process can reach, or that cannot be locked.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // Closing the file is not enough: a process that another thread has forked keeps it
            // open, and locked, until its exec. A failure is ignored: closing is the fallback.
            let _ = file.unlock();
        }
    }
}

/// Must be opened for reading and writing, *not* for appending.
///
/// The directory entry of a new file is not synced here: a store of one file does not know its
/// directory, so the creator of the file syncs the directory.
impl Storage for File {
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    // Not sync_all: the length is flushed too, since reading back needs it; only times are not.
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn try_lock(&mut self) -> io::Result<Option<Lock>> {
        // Another descriptor of the same opening, which is what is locked.
        let lock = self.try_clone()?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Lock(Some(lock)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            // File systems without locks exist; a backup onto them is still useful.
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => Ok(Some(Lock::none())),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }
}

/// For archives in memory; nothing survives anything.
impl Storage for Cursor<Vec<u8>> {
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.get_mut().resize(len, 0);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Storage + ?Sized> Storage for &mut S {
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        (**self).set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        (**self).sync()
    }

    fn try_lock(&mut self) -> io::Result<Option<Lock>> {
        (**self).try_lock()
    }
}
