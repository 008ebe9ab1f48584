//! A storage that counts the bytes that are read from it, for the progress of a restore and the
//! summary of a backup.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rca::{Lock, Storage};

/// A storage, and the number of bytes that were read from it.
#[derive(Debug)]
pub(super) struct Counted<S> {
    inner: S,
    read_len: Arc<AtomicU64>,
}

impl<S> Counted<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, read_len: Arc::default() }
    }

    /// The counter. It stays valid when the storage is moved into a reader or writer.
    pub(super) fn read_len(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read_len)
    }

    pub(super) fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Read> Read for Counted<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buf)?;
        self.read_len.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
}

impl<S: Write> Write for Counted<S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.inner.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<S: Seek> Seek for Counted<S> {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        self.inner.seek(pos)
    }
}

impl<S: Storage> Storage for Counted<S> {
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.inner.sync()
    }

    fn try_lock(&mut self) -> io::Result<Option<Lock>> {
        self.inner.try_lock()
    }
}
