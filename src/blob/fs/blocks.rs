//! Blocks that bytes of drafts are collected in: how many there are, how long they are, and where
//! they begin.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::buffers::{Buffer, FreeList};
use crate::runtime::durable::DIRECT_ALIGNMENT;

/// Bytes of a block of the first drafts. 1 MiB: 12 % faster past the page cache than 512 KiB with
/// one client, and 2 MiB gains less.
pub(super) const LARGE_BLOCK_LEN: usize = 1 << 20;

/// Bytes of a block of the next ones, so that sixty-four uploads stay below a MiB for each of them.
/// Twice as much made sixteen uploads 5 % faster at best. (By the page cache they were 10 % slower
/// with 64 KiB, and more than this gained nothing.)
pub(super) const BLOCK_LEN: usize = 256 << 10;

/// Large blocks of all drafts, at most, and what a draft may have a second one of: of more uploads
/// than two, others verify while one waits for the disk.
pub(super) const MAX_LARGE_COUNT: usize = 4;

/// Maximum number of blocks of all drafts: 8.5 MiB of memory. Allocated first come, first served;
/// further drafts write to the file without a block. Sixteen drafts have at least one, if none has
/// more than two.
pub(super) const MAX_BLOCK_COUNT: usize = 18;

/// The blocks that there are. Their memory is used again: freed and taken anew by one thread and
/// another, it was some 3 MiB more for sixty-four uploads.
#[derive(Clone, Debug)]
pub(super) struct Blocks(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Blocks that drafts have.
    count: AtomicUsize,
    free: FreeList,
}

impl Default for Blocks {
    fn default() -> Self {
        // As many as there may be at a time of each length.
        let free = FreeList::new(MAX_LARGE_COUNT + MAX_BLOCK_COUNT);
        Self(Arc::new(Shared { count: AtomicUsize::new(0), free }))
    }
}

impl Blocks {
    /// One more, large as long as there are few.
    pub(super) fn take(&self) -> Option<Block> {
        self.take_below(MAX_BLOCK_COUNT)
    }

    /// One more if it is a large one.
    pub(super) fn take_large(&self) -> Option<Block> {
        self.take_below(MAX_LARGE_COUNT)
    }

    fn take_below(&self, max_count: usize) -> Option<Block> {
        let taken = |count| (count < max_count).then_some(count + 1);
        let count = self.0.count.fetch_update(Ordering::Acquire, Ordering::Acquire, taken).ok()?;
        let capacity = if count < MAX_LARGE_COUNT { LARGE_BLOCK_LEN } else { BLOCK_LEN };
        Some(Block { room: Buffer::default(), start: 0, len: 0, capacity, blocks: self.clone() })
    }
}

/// Bytes that go to the file together, at an address that may go past the page cache.
pub(super) struct Block {
    /// Longer than the block by what it takes to begin at such an address; empty until something
    /// comes.
    room: Buffer,
    start: usize,
    len: usize,
    /// Bytes that it is written with; those that go past the page cache have to be so many.
    capacity: usize,
    blocks: Blocks,
}

impl Block {
    /// Takes as many of these bytes as fit; returns the others.
    pub(super) fn fill<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        if self.room.is_empty() {
            self.room = self.blocks.0.free.take(self.capacity + DIRECT_ALIGNMENT);
            // Anything is right but for what goes past the page cache, and that is written another
            // way then.
            self.start = self.room.as_ptr().align_offset(DIRECT_ALIGNMENT).min(DIRECT_ALIGNMENT);
        }
        let (part, rest) = bytes.split_at(bytes.len().min(self.capacity - self.len));
        self.room[self.start + self.len..][..part.len()].copy_from_slice(part);
        self.len += part.len();
        rest
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Forgets what was filled in.
    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.room[self.start..][..self.len]
    }
}

/// Without what is in it, which is of a blob.
impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("len", &self.len).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.room.is_empty() {
            self.blocks.0.free.give_back(mem::take(&mut self.room));
        }
        // Last, and released in this order: the next allocation then finds the memory of this
        // block.
        self.blocks.0.count.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
impl Blocks {
    pub(super) fn count(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }

    pub(super) fn free_count(&self) -> usize {
        self.0.free.count()
    }
}

#[cfg(test)]
impl Block {
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }
}
