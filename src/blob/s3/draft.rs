//! Drafts of blobs as files of the scratch directory.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::bucket::Source;
use super::{S3BlobStore, name, of_blob};
use crate::blob::{BlobError, BlobKey, Draft};
use crate::runtime::blocking::Pool;
use crate::runtime::durable::TempFile;

/// Small writes are collected to this length.
const BUFFER_LEN: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct S3Draft {
    store: S3BlobStore,
    file: TempFile,
    /// Bytes that are not in the file yet.
    buffer: Vec<u8>,
    /// Length of the file.
    len: u64,
    /// A write has failed, and nothing is known about the file.
    is_broken: bool,
}

impl S3Draft {
    pub(super) fn new(file: TempFile, store: S3BlobStore) -> Self {
        Self { store, file, buffer: Vec::new(), len: 0, is_broken: false }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        let failed = |error| BlobError::io("write a draft", None, error);
        if self.is_broken {
            return Err(failed(io::Error::other("an earlier write failed")));
        }
        let written = self.file.write(bytes);
        self.is_broken = written.is_err();
        self.len += bytes.len() as u64;
        written.map_err(failed)
    }

    fn write_buffer(&mut self) -> Result<(), BlobError> {
        let buffer = std::mem::take(&mut self.buffer);
        if buffer.is_empty() {
            return Ok(());
        }
        self.append(&buffer)?;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    async fn publish_to(mut self: Box<Self>, key: BlobKey) -> Result<(), BlobError> {
        let (store, pool) = (self.store.clone(), self.store.pool.clone());
        let flush = move || self.flush().map(|()| self);
        let draft = pool.run(flush).await.map_err(of_blob(key))?;
        let source = DraftFile { file: Arc::new(Mutex::new(draft.file)), len: draft.len, pool: pool.clone() };
        let stored = store.bucket.put("publish", &name(key), &source).await;
        // Removes the file, which can block.
        pool.run(move || drop(source)).await;
        stored.map_err(of_blob(key))
    }
}

impl Draft for S3Draft {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        if self.buffer.len() + bytes.len() > BUFFER_LEN {
            self.write_buffer()?;
        }
        if bytes.len() >= BUFFER_LEN {
            return self.append(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BlobError> {
        self.write_buffer()?;
        self.buffer = Vec::new();
        // After a failed write every later call fails.
        self.append(&[])
    }

    fn into_bytes(mut self: Box<Self>) -> Result<Vec<u8>, BlobError> {
        self.flush()?;
        self.file.read_part(0..self.len).map_err(|error| BlobError::io("read a draft", None, error))
    }

    fn publish(self: Box<Self>, key: BlobKey) -> BoxFuture<'static, Result<(), BlobError>> {
        self.publish_to(key).boxed()
    }
}

/// The file of a complete draft.
struct DraftFile {
    file: Arc<Mutex<TempFile>>,
    len: u64,
    pool: Pool,
}

impl Source for DraftFile {
    fn total_len(&self) -> u64 {
        self.len
    }

    fn part(&self, range: Range<u64>) -> BoxFuture<'_, io::Result<Bytes>> {
        let file = Arc::clone(&self.file);
        let read = move || {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.read_part(range).map(Bytes::from)
        };
        self.pool.run(read).boxed()
    }
}
