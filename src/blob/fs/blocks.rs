//! Blocks: aligned buffers in which drafts collect bytes before they write them to their files. The
//! number of blocks of all drafts together is limited.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::buffers::{Buffer, FreeList};
use crate::runtime::durable::DIRECT_ALIGNMENT;

/// Bytes of a large block. A block is large if fewer than [`MAX_LARGE_COUNT`] others are in use.
/// With direct writes and one client, 1 MiB was 12 % faster than 512 KiB; 2 MiB gained less.
pub(super) const LARGE_BLOCK_LEN: usize = 1 << 20;

/// Bytes of the other blocks, so short that 64 uploads take less than 1 MiB each. With 512 KiB, 16
/// uploads were at most 5 % faster. Without direct writes, 64 KiB were 10 % slower, and more than
/// 256 KiB gained nothing.
pub(super) const BLOCK_LEN: usize = 256 << 10;

/// Maximum number of large blocks of all drafts. A draft gets a second block only if it is large,
/// so only with few uploads. With more uploads a second block is of little use, because the other
/// uploads use the CPU while one waits for the disk.
pub(super) const MAX_LARGE_COUNT: usize = 4;

/// Maximum number of blocks of all drafts. With unused large ones they take at most 8.5 MiB.
/// Further drafts write to their files without a block. 16 drafts get a block each, because at most
/// two drafts have a second one.
pub(super) const MAX_BLOCK_COUNT: usize = 18;

/// Counts the blocks of all drafts, and reuses their memory. When different threads freed and
/// allocated it each time instead, 64 uploads took some 3 MiB more.
#[derive(Clone, Debug)]
pub(super) struct Blocks(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The number of blocks that are in use by drafts.
    count: AtomicUsize,
    free: FreeList,
}

impl Default for Blocks {
    fn default() -> Self {
        // At most this many buffers of both lengths exist.
        let free = FreeList::new(MAX_LARGE_COUNT + MAX_BLOCK_COUNT);
        Self(Arc::new(Shared { count: AtomicUsize::new(0), free }))
    }
}

impl Blocks {
    /// A block, unless the maximum number is in use; a large one if few blocks are in use.
    pub(super) fn take(&self) -> Option<Block> {
        self.take_below(MAX_BLOCK_COUNT)
    }

    /// A large block, if few blocks are in use.
    pub(super) fn take_large(&self) -> Option<Block> {
        self.take_below(MAX_LARGE_COUNT)
    }

    fn take_below(&self, max_count: usize) -> Option<Block> {
        let taken = |count| (count < max_count).then_some(count + 1);
        let count = self.0.count.fetch_update(Ordering::Acquire, Ordering::Acquire, taken).ok()?;
        let capacity = if count < MAX_LARGE_COUNT { LARGE_BLOCK_LEN } else { BLOCK_LEN };
        Some(Block { memory: Buffer::default(), start: 0, len: 0, capacity, blocks: self.clone() })
    }
}

/// Bytes that are written to a file together. They are at a memory address that is aligned for
/// direct writes.
pub(super) struct Block {
    /// The memory. It is longer than the block, so that the block can begin at an aligned address.
    /// Empty until the first byte is copied.
    memory: Buffer,
    /// Where the block begins in `memory`.
    start: usize,
    /// The number of bytes in the block.
    len: usize,
    /// Length of a full block. It is aligned, as direct writes require.
    capacity: usize,
    blocks: Blocks,
}

impl Block {
    /// Copies as many of these bytes as fit, and returns the rest.
    pub(super) fn fill<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        if self.memory.is_empty() {
            self.memory = self.blocks.0.free.take(self.capacity + DIRECT_ALIGNMENT);
            // If `align_offset` fails, it returns `usize::MAX`, and the block is unaligned. That is
            // still correct, because a refused direct write is repeated through the page cache.
            self.start = self.memory.as_ptr().align_offset(DIRECT_ALIGNMENT).min(DIRECT_ALIGNMENT);
        }
        let (part, rest) = bytes.split_at(bytes.len().min(self.capacity - self.len));
        self.memory[self.start + self.len..][..part.len()].copy_from_slice(part);
        self.len += part.len();
        rest
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Empties the block.
    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

/// Omits the contents, which are bytes of a blob.
impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("len", &self.len).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.memory.is_empty() {
            self.blocks.0.free.give_back(mem::take(&mut self.memory));
        }
        // The count decreases after the memory was returned, with `Release` ordering. So the thread
        // that takes the next block finds this memory.
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
