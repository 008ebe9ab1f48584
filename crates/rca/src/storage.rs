//! The storage of an archive: what a writer needs beyond `Read + Write + Seek`.

use std::fs::{File, TryLockError};
use std::io::{self, Cursor, Read, Seek, Write};

/// A random-access store of one archive.
///
/// Appends are crash-safe if the storage fulfils this contract: after [`sync`](Storage::sync) has
/// returned `Ok`, every earlier write and `set_len` survives a power loss. Before that, any subset
/// of them may be lost, and a write may be lost in part. The writer's single header write at a
/// multiple of 0x8000 should be atomic; if it is torn, the next [`Writer`](super::Writer) repairs
/// it.
pub trait Storage: Read + Write + Seek {
    /// Sets the length in bytes: truncates, or extends with zeros.
    ///
    /// # Errors
    /// Whatever the store reports.
    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// Makes everything written so far durable.
    ///
    /// After an error it is unknown what is durable. A second call may succeed although the kernel
    /// has dropped the dirty pages, so a writer does not retry: it refuses further appends.
    ///
    /// # Errors
    /// Whatever the store reports.
    fn sync(&mut self) -> io::Result<()>;

    /// Takes the exclusive lock of a writer, without waiting; `None` if another writer has it.
    ///
    /// The lock lasts until it is dropped. A storage that only one owner can reach needs no lock.
    ///
    /// # Errors
    /// Whatever the store reports. If the store does not support locks, that is not an error.
    fn try_lock(&mut self) -> io::Result<Option<Lock>> {
        Ok(Some(Lock::none()))
    }
}

/// The right to write to a store; released when it is dropped.
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
            // Closing the file is not enough: if another thread forks, the child holds the file
            // open, and with it the lock, until its exec. An error is ignored, because closing then
            // still releases the lock, only later.
            let _ = file.unlock();
        }
    }
}

/// The file must be opened for reading and writing, *not* for appending.
///
/// A file does not know its directory, so this does not sync the directory entry of a new file: the
/// creator of the file does.
impl Storage for File {
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    // `sync_data` flushes the data and the length. Unlike `sync_all` it need not flush the times.
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn try_lock(&mut self) -> io::Result<Option<Lock>> {
        // A second descriptor of the same open file description. The lock belongs to the open file
        // description, so it also holds for the first descriptor.
        let lock = self.try_clone()?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(Lock(Some(lock)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            // Some file systems have no locks. A backup on them is still useful.
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => Ok(Some(Lock::none())),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }
}

/// For archives in memory; nothing is durable.
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
