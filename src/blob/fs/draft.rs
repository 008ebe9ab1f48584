//! Drafts of blobs as temporary files.
//!
//! Bytes are collected into blocks, which are written at aligned offsets of the file. After an
//! unaligned write a page would be partly written, and the next write would have to read it back.
//!
//! If the store is configured so, full blocks are written past the page cache (*direct writes*).
//! This saves the allocation of new page cache, which costs more than the rest of an upload. A
//! direct write waits for the disk. So another thread does it, while a second block is filled.
//!
//! A draft has at most one write in progress, so its bytes are written in order. Every later
//! operation on the draft waits for this write and returns its error. A drop waits for it, too.
//!
//! Every few blocks the kernel is asked to write buffered bytes to the disk, so that the sync in
//! `publish` is short. If a draft is dropped without `publish`, its file is removed. A crash leaves
//! the file until the next start.

use std::io;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::FsBlobStore;
use super::blocks::Block;
use crate::blob::{BlobError, BlobKey, Draft};
use crate::runtime::blocking::Beside;
use crate::runtime::durable::TempFile;

/// After each 8 MiB the kernel is asked to write them to the disk. Half or twice as much was
/// equally fast.
const WRITEBACK_LEN: u64 = 8 << 20;

/// The file of a draft.
#[derive(Debug)]
struct Output {
    file: TempFile,
    /// Length of the file.
    len: u64,
    /// The kernel was asked to write the bytes before this offset to the disk.
    asked_len: u64,
}

impl Output {
    fn append(&mut self, write: fn(&mut TempFile, &[u8]) -> io::Result<()>, bytes: &[u8]) -> Result<(), BlobError> {
        write(&mut self.file, bytes).map_err(|error| BlobError::io("write a draft", None, error))?;
        self.len += bytes.len() as u64;
        if self.len - self.asked_len >= WRITEBACK_LEN {
            self.file.begin_writeback(self.asked_len..self.len);
            self.asked_len = self.len;
        }
        Ok(())
    }
}

/// The result of a write on another thread: the file, and the emptied block.
type Written = Result<(Output, Block), BlobError>;

#[derive(Debug)]
pub(super) struct FsDraft {
    store: FsBlobStore,
    /// The file. It is `None` while another thread writes to the file, and after an error.
    output: Option<Output>,
    /// The write on another thread, if one is in progress.
    writing: Option<Beside<Written>>,
    /// The block that is being filled; `None` if no block was free, or after `flush`.
    block: Option<Block>,
    /// An empty second block, which was written before and is filled next.
    spare: Option<Block>,
}

impl FsDraft {
    pub(super) fn new(file: TempFile, store: FsBlobStore) -> Self {
        let block = store.blocks.take();
        Self { store, output: Some(Output { file, len: 0, asked_len: 0 }), writing: None, block, spare: None }
    }

    /// Takes the file out of the draft, after waiting for the write in progress. The caller puts it
    /// back after its own write. If the write fails, the file stays away, so that every later call
    /// fails, too.
    fn take_output(&mut self) -> Result<Output, BlobError> {
        let lost = || BlobError::io("write a draft", None, io::Error::other("an earlier write failed"));
        match self.writing.take() {
            Some(writing) => {
                let (output, block) = writing.wait().ok_or_else(lost)??;
                self.spare = Some(block);
                Ok(output)
            }
            None => self.output.take().ok_or_else(lost),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        let mut output = self.take_output()?;
        output.append(TempFile::write, bytes)?;
        self.output = Some(output);
        Ok(())
    }

    /// Writes a full block and returns an empty one. With direct writes, the returned block is a
    /// second one if it is available, and another thread writes the full block.
    fn write_block(&mut self, mut block: Block) -> Result<Block, BlobError> {
        let mut output = self.take_output()?;
        let is_direct = self.store.is_direct;
        let write = move || {
            output.append(if is_direct { TempFile::write_direct } else { TempFile::write }, block.bytes())?;
            block.clear();
            Ok((output, block))
        };
        let next = if is_direct { self.spare.take().or_else(|| self.store.blocks.take_large()) } else { None };
        if let Some(next) = next {
            self.writing = Some(self.store.pool.beside(write));
            return Ok(next);
        }
        let (output, block) = write()?;
        self.output = Some(output);
        Ok(block)
    }

    /// Writes the buffered bytes, syncs the file, and gives it its final name.
    async fn publish_to(mut self: Box<Self>, key: BlobKey) -> Result<(), BlobError> {
        let (path, pool, kept) = (self.store.path(key), self.store.pool.clone(), self.store.kept.clone());
        let work = move || {
            self.flush()?;
            let published = self.take_output()?.file.publish(&path);
            kept.forget(key);
            published.map_err(|error| BlobError::io("publish", Some(key), error))
        };
        pool.run(work).await
    }
}

impl Draft for FsDraft {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), BlobError> {
        // The block is taken out of `self`, because `write_block` borrows `self`.
        let Some(mut block) = self.block.take() else { return self.append(bytes) };
        while !bytes.is_empty() {
            bytes = block.fill(bytes);
            if block.is_full() {
                block = self.write_block(block)?;
            }
        }
        self.block = Some(block);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BlobError> {
        let block = self.block.take();
        self.append(block.as_ref().map_or(&[], Block::bytes))?;
        // Both blocks are given up here, because a complete draft may wait for long, for example
        // for the commit of an upload by grant. Other drafts need the blocks meanwhile.
        self.spare = None;
        Ok(())
    }

    fn into_bytes(mut self: Box<Self>) -> Result<Vec<u8>, BlobError> {
        self.flush()?;
        let Output { file, len, .. } = self.take_output()?;
        let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
        file.copy_to(&mut bytes).map_err(|error| BlobError::io("read a draft", None, error))?;
        Ok(bytes)
    }

    fn publish(self: Box<Self>, key: BlobKey) -> BoxFuture<'static, Result<(), BlobError>> {
        self.publish_to(key).boxed()
    }
}

impl Drop for FsDraft {
    /// Waits for the write in progress, so that the file no longer exists after the drop.
    fn drop(&mut self) {
        drop(self.writing.take().map(Beside::wait));
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::{BLOCK_LEN, LARGE_BLOCK_LEN, MAX_BLOCK_COUNT, MAX_LARGE_COUNT};
    use super::*;
    use crate::blob::BlobStore;
    use crate::format::XorbHash;
    use crate::runtime::blocking::Pool;
    use crate::runtime::incarnation::Incarnation;

    fn store() -> (tempfile::TempDir, FsBlobStore) {
        let directory = tempfile::tempdir().unwrap();
        let store = FsBlobStore::open(directory.path(), Pool::new(1)).unwrap();
        (directory, store)
    }

    fn draft(store: &FsBlobStore) -> FsDraft {
        FsDraft::new(TempFile::create(&store.tmp).unwrap(), store.clone())
    }

    #[tokio::test]
    async fn file_has_all_pieces_in_order_with_or_without_a_block() {
        let (_directory, store) = store();
        let bytes: Vec<u8> = (0..3 * LARGE_BLOCK_LEN + 5).map(|at| u8::try_from(at % 251).unwrap()).collect();
        for len in
            [1000, LARGE_BLOCK_LEN - 1, LARGE_BLOCK_LEN, LARGE_BLOCK_LEN + 1, 2 * LARGE_BLOCK_LEN + 1, bytes.len()]
        {
            for (has_block, is_direct) in [(false, false), (true, false), (true, true)] {
                let mut draft = draft(&store.clone().writing_directly(is_direct));
                draft.block = draft.block.take().filter(|_| has_block);
                bytes.chunks(len).for_each(|piece| draft.write(piece).unwrap());
                let key = BlobKey::new(XorbHash::from_bytes([1; 32]), Incarnation::from_number(7));
                Box::new(draft).publish(key).await.unwrap();
                assert!(std::fs::read(store.path(key)).unwrap() == bytes, "pieces of {len}, {has_block}, {is_direct}");
            }
        }
    }

    #[test]
    fn block_count_stays_below_the_maximum_and_blocks_return() {
        let (_directory, store) = store();
        let drafts: Vec<FsDraft> = (0..2 * MAX_BLOCK_COUNT).map(|_| draft(&store)).collect();
        assert_eq!(drafts.iter().filter(|draft| draft.block.is_some()).count(), MAX_BLOCK_COUNT);
        drop(drafts);
        assert!(draft(&store).block.is_some());
        // The memory is reused, too: consecutive drafts use the same block.
        for _ in 0..3 {
            draft(&store).write(b"something").unwrap();
        }
        assert_eq!(store.blocks.free_count(), 1);
        assert_eq!(store.blocks.count(), 0);
    }

    /// A draft takes its second block when the first one is full.
    #[tokio::test]
    async fn second_block_is_taken_for_direct_writes_only() {
        let (_directory, store) = store();
        for (is_direct, counts) in [(true, [1, 2, 2, 2]), (false, [1, 1, 1, 1])] {
            let mut draft = draft(&store.clone().writing_directly(is_direct));
            let counted: Vec<usize> = [LARGE_BLOCK_LEN - 1, 1, LARGE_BLOCK_LEN, 3 * LARGE_BLOCK_LEN]
                .into_iter()
                .map(|len| draft.write(&vec![1; len]).map(|()| store.blocks.count()).unwrap())
                .collect();
            assert_eq!(counted, counts, "{is_direct}");
            draft.flush().unwrap();
            assert_eq!(store.blocks.count(), 0, "a complete draft has no block");
        }
    }

    #[tokio::test]
    async fn blocks_of_both_lengths_are_written_in_order() {
        let (_directory, store) = store();
        let store = store.writing_directly(true);
        let held: Vec<Block> = (0..MAX_LARGE_COUNT).map(|_| store.blocks.take().unwrap()).collect();
        let mut draft = draft(&store);
        drop(held);
        let bytes: Vec<u8> = (0..6 * LARGE_BLOCK_LEN + 7).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut capacities = Vec::new();
        for piece in bytes.chunks(BLOCK_LEN / 2 + 1) {
            capacities.extend(draft.block.as_ref().map(|block| block.capacity()));
            draft.write(piece).unwrap();
        }
        assert!(capacities.contains(&BLOCK_LEN) && capacities.contains(&LARGE_BLOCK_LEN), "{capacities:?}");
        let key = BlobKey::new(XorbHash::from_bytes([1; 32]), Incarnation::from_number(7));
        Box::new(draft).publish(key).await.unwrap();
        assert!(std::fs::read(store.path(key)).unwrap() == bytes);
    }

    #[tokio::test]
    async fn sixteen_drafts_have_a_block_even_if_the_first_have_two() {
        let (_directory, store) = store();
        let store = store.writing_directly(true);
        let mut drafts: Vec<FsDraft> = Vec::new();
        for _ in 0..16 {
            drafts.push(draft(&store));
            drafts.iter_mut().for_each(|draft| draft.write(&vec![1; LARGE_BLOCK_LEN]).unwrap());
        }
        assert!(drafts.iter().all(|draft| draft.block.is_some()));
        assert_eq!(drafts.iter().filter(|draft| draft.writing.is_some()).count(), MAX_LARGE_COUNT / 2);
    }

    #[tokio::test]
    async fn draft_dropped_during_a_block_write_leaves_no_file() {
        let (_directory, store) = store();
        let store = store.writing_directly(true);
        for _ in 0..100 {
            let mut draft = draft(&store);
            draft.write(&vec![1; 2 * LARGE_BLOCK_LEN]).unwrap();
            assert!(draft.writing.is_some());
            drop(draft);
            assert_eq!(std::fs::read_dir(&store.tmp).unwrap().count(), 0);
        }
    }

    /// After a failed write, every later call fails, too.
    #[tokio::test]
    async fn failed_block_write_is_reported_by_the_next_call() {
        let (_directory, store) = store();
        let store = store.writing_directly(true);
        for len in [1, LARGE_BLOCK_LEN] {
            let mut draft = draft(&store);
            draft.write(&vec![1; LARGE_BLOCK_LEN]).unwrap();
            let written = draft.writing.take().unwrap().wait();
            assert!(written.unwrap().is_ok());
            let full = || BlobError::io("write a draft", None, io::ErrorKind::StorageFull.into());
            draft.writing = Some(store.pool.beside(move || Err(full())));
            let error = draft.write(&vec![1; len]).and_then(|()| draft.flush()).unwrap_err();
            assert_eq!(error.kind, crate::blob::BlobErrorKind::NoSpace);
            assert!(draft.flush().is_err());
            assert!(
                Box::new(draft)
                    .publish(BlobKey::new(XorbHash::from_bytes([1; 32]), Incarnation::from_number(7)))
                    .await
                    .is_err()
            );
            assert_eq!(store.list().await.unwrap(), []);
        }
    }

    #[test]
    fn kernel_is_asked_to_write_back_each_byte_once() {
        let (_directory, store) = store();
        let mut draft = draft(&store);
        let piece = vec![1; 3 << 20];
        let asked: Vec<u64> =
            (0..6).map(|_| draft.write(&piece).map(|()| draft.output.as_ref().unwrap().asked_len).unwrap()).collect();
        assert_eq!(asked, [0, 0, 8 << 20, 8 << 20, 8 << 20, 16 << 20]);
    }

    #[tokio::test]
    async fn written_bytes_are_returned_without_a_blob_or_a_file() {
        let (_directory, store) = store();
        let store = store.writing_directly(true);
        let bytes: Vec<u8> = (0..LARGE_BLOCK_LEN + 5).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut written = Box::new(draft(&store));
        for piece in bytes.chunks(100_000) {
            written.write(piece).unwrap();
        }
        assert!(written.into_bytes().unwrap() == bytes);
        assert_eq!(store.draft_count().await.unwrap(), 0);
    }
}
