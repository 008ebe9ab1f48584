//! Drafts of blobs as temporary files.
//!
//! What is written is collected to blocks that begin and end where blocks of the file do: a write of an odd length leaves
//! a page half written, and the next one has to find it again. Where the store is told so they go past the page cache: pages
//! that nobody has used yet cost more than everything else that is done for an upload. Every few blocks the kernel is asked to begin
//! with what it has of the others, so that the sync at the end finds most of it done.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::FsBlobStore;
use crate::blob::{BlobError, BlobKey, Draft};
use crate::runtime::durable::{DIRECT_ALIGNMENT, TempFile};

/// Bytes of a block. By the page cache uploads were 10 % slower with 64 KiB, and more than 256 KiB gained nothing; past it a GiB took
/// 0.18 s of the processor with 256 KiB, 0.13 with this, and 0.10 with twice as much (`dd oflag=direct`).
const BLOCK_LEN: usize = 512 << 10;

/// Drafts that have a block, at most, so that a hundred uploads do not hold a hundred of them. They go to those who come
/// first; what others write goes to the file as it comes.
const MAX_BLOCK_COUNT: usize = 16;

/// Bytes after which the kernel is asked to write them out: half of it or twice as much made no difference.
const WRITEBACK_LEN: u64 = 8 << 20;

/// Counts the blocks that there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks(Arc<AtomicUsize>);

impl Blocks {
    fn take(&self) -> Option<Block> {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        let block = Block { room: Vec::new(), start: 0, len: 0, blocks: self.clone() };
        // Where it is one too many it is dropped, and that takes it off the count again.
        Some(block).filter(|_| count < MAX_BLOCK_COUNT)
    }
}

/// Bytes that go to the file together, at an address that may go past the page cache.
#[derive(Debug)]
struct Block {
    /// Longer than a block by what it takes to begin at such an address; empty until something comes.
    room: Vec<u8>,
    start: usize,
    len: usize,
    blocks: Blocks,
}

impl Block {
    /// Takes as much of these bytes as it has room for; returns the others.
    fn fill<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        if self.room.is_empty() {
            self.room = vec![0; BLOCK_LEN + DIRECT_ALIGNMENT];
            // Anything is right but for what goes past the page cache, and that is written another way then.
            self.start = self.room.as_ptr().align_offset(DIRECT_ALIGNMENT).min(DIRECT_ALIGNMENT);
        }
        let (part, rest) = bytes.split_at(bytes.len().min(BLOCK_LEN - self.len));
        self.room[self.start + self.len..][..part.len()].copy_from_slice(part);
        self.len += part.len();
        rest
    }

    fn bytes(&self) -> &[u8] {
        &self.room[self.start..][..self.len]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.blocks.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct FsDraft {
    file: TempFile,
    store: FsBlobStore,
    block: Option<Block>,
    /// Bytes that the file has.
    len: u64,
    /// Those of them that the kernel was asked to write out.
    asked_len: u64,
}

impl FsDraft {
    pub(super) fn new(file: TempFile, store: FsBlobStore) -> Self {
        let block = store.blocks.take();
        Self { file, store, block, len: 0, asked_len: 0 }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.append_by(TempFile::write, bytes)
    }

    fn append_by(&mut self, write: fn(&mut TempFile, &[u8]) -> io::Result<()>, bytes: &[u8]) -> Result<(), BlobError> {
        write(&mut self.file, bytes).map_err(|error| BlobError::io("write a draft", None, error))?;
        self.len += bytes.len() as u64;
        if self.len - self.asked_len >= WRITEBACK_LEN {
            self.file.begin_writeback(self.asked_len..self.len);
            self.asked_len = self.len;
        }
        Ok(())
    }

    /// Writes what there is, and gives the file its name in this way: the inner result is that of this.
    async fn publish_by(
        mut self: Box<Self>,
        key: BlobKey,
        publish: fn(TempFile, &Path) -> io::Result<()>,
    ) -> Result<io::Result<()>, BlobError> {
        let (path, pool, kept) = (self.store.path(key), self.store.pool.clone(), self.store.kept.clone());
        let work = move || {
            self.flush()?;
            let published = publish(self.file, &path);
            kept.forget(key);
            Ok(published)
        };
        pool.run(work).await
    }
}

impl Draft for FsDraft {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), BlobError> {
        // Taken out, so that the file can be written meanwhile.
        let Some(mut block) = self.block.take() else { return self.append(bytes) };
        let write = if self.store.is_direct { TempFile::write_direct } else { TempFile::write };
        while !bytes.is_empty() {
            bytes = block.fill(bytes);
            if block.len == BLOCK_LEN {
                self.append_by(write, block.bytes())?;
                block.len = 0;
            }
        }
        self.block = Some(block);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BlobError> {
        match self.block.take() {
            Some(block) => self.append(block.bytes()),
            None => Ok(()),
        }
    }

    fn publish(self: Box<Self>, key: BlobKey) -> BoxFuture<'static, Result<(), BlobError>> {
        async move {
            let published = self.publish_by(key, TempFile::publish).await?;
            published.map_err(|error| failed(key, error))
        }
        .boxed()
    }

    fn publish_new(self: Box<Self>, key: BlobKey) -> BoxFuture<'static, Result<bool, BlobError>> {
        async move {
            match self.publish_by(key, TempFile::publish_new).await? {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(failed(key, error)),
            }
        }
        .boxed()
    }
}

fn failed(key: BlobKey, error: io::Error) -> BlobError {
    BlobError::io("publish", Some(key), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::XorbHash;
    use crate::runtime::blocking::Pool;

    fn store() -> (tempfile::TempDir, FsBlobStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = FsBlobStore::open(folder.path(), Pool::new(1)).unwrap();
        (folder, store)
    }

    fn draft(store: &FsBlobStore) -> FsDraft {
        FsDraft::new(TempFile::create(&store.tmp).unwrap(), store.clone())
    }

    #[tokio::test]
    async fn whatever_the_pieces_are_and_with_or_without_a_block_the_file_has_all_of_them_in_order() {
        let (_folder, store) = store();
        let bytes: Vec<u8> = (0..3 * BLOCK_LEN + 5).map(|at| u8::try_from(at % 251).unwrap()).collect();
        for len in [1000, BLOCK_LEN - 1, BLOCK_LEN, BLOCK_LEN + 1, 2 * BLOCK_LEN + 1, bytes.len()] {
            for (has_block, is_direct) in [(false, false), (true, false), (true, true)] {
                let mut draft = draft(&store.clone().writing_directly(is_direct));
                draft.block = draft.block.take().filter(|_| has_block);
                bytes.chunks(len).for_each(|piece| draft.write(piece).unwrap());
                let key = BlobKey::xorb(XorbHash::from_bytes([1; 32]));
                Box::new(draft).publish(key).await.unwrap();
                assert!(std::fs::read(store.path(key)).unwrap() == bytes, "pieces of {len}, {has_block}, {is_direct}");
            }
        }
    }

    #[test]
    fn there_are_no_more_blocks_than_the_constant_says_and_they_come_back() {
        let (_folder, store) = store();
        let drafts: Vec<FsDraft> = (0..2 * MAX_BLOCK_COUNT).map(|_| draft(&store)).collect();
        assert_eq!(drafts.iter().filter(|draft| draft.block.is_some()).count(), MAX_BLOCK_COUNT);
        drop(drafts);
        assert!(draft(&store).block.is_some());
        assert_eq!(store.blocks.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_kernel_is_asked_to_write_what_there_is_every_few_blocks_and_each_byte_once() {
        let (_folder, store) = store();
        let mut draft = draft(&store);
        let piece = vec![1; 3 << 20];
        let asked: Vec<u64> = (0..6).map(|_| draft.write(&piece).map(|()| draft.asked_len).unwrap()).collect();
        assert_eq!(asked, [0, 0, 8 << 20, 8 << 20, 8 << 20, 16 << 20]);
    }
}
