//! The outer layer: a file as a sequence of chunks that can grow by committed appends.
//!
//! ```text
//! chunk := size      big-endian, ceil(bits / 8) bytes, counts the whole chunk with this header
//!          metadata  fixed length, opaque here; that of the last chunk is the metadata of the file
//!          payload
//! ```
//!
//! The width of the size field, in bits, doubles from chunk to chunk (in an archive: 16, 32, 64). A
//! chunk whose size is at the limit `1 << (bits - 1)` is full, and another may follow. A smaller
//! chunk is the last. Hence the chunks of an archive begin at 0, 0x8000 and 0x8000_8000 and never
//! move.
//!
//! Bytes after the last chunk are garbage: they belong to an append that was not committed. A chunk
//! of size 0 was begun and never committed, so it is garbage, too.
//!
//! Sizes above the limit are reserved by the format description. Like the reference, this crate
//! reads such a chunk as a full one of that length, and never writes one.

mod chunker;
mod scan;
mod spans;
mod unchunker;

pub use chunker::Chunker;
pub(super) use chunker::{Append, Patch};
pub(super) use scan::{Scan, Tail, scan};
pub(super) use spans::{Payload, SpanReader};
pub(super) use unchunker::Mark;
pub use unchunker::Unchunker;

use super::error::Error;
use super::hash::DIGEST_LEN;
use super::limits::{MAX_FIELD_BITS, MAX_METADATA_LEN};

/// The two numbers that a reader must know in advance, because the file does not contain them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    first_bits: u32,
    metadata_len: usize,
}

impl Layout {
    /// The layout of an archive: 16 bits and a digest.
    pub const ARCHIVE: Layout = Layout { first_bits: 16, metadata_len: DIGEST_LEN };

    /// A layout whose first size field has `first_bits` bits and whose metadata `metadata_len`
    /// bytes.
    ///
    /// # Errors
    /// [`Error::BadOptions`] for 0 bits and beyond [`MAX_FIELD_BITS`] or [`MAX_METADATA_LEN`].
    pub fn new(first_bits: u32, metadata_len: usize) -> Result<Layout, Error> {
        if first_bits == 0 || first_bits > MAX_FIELD_BITS {
            return Err(Error::BadOptions("the first size field must have 1 to 1024 bits"));
        }
        if metadata_len > MAX_METADATA_LEN {
            return Err(Error::BadOptions("the metadata must have at most 65536 bytes"));
        }
        Ok(Layout { first_bits, metadata_len })
    }

    pub(crate) fn first_field(self) -> Field {
        Field { bits: self.first_bits, metadata_len: self.metadata_len }
    }
}

/// The lengths of the two fields of one chunk's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    bits: u32,
    metadata_len: usize,
}

impl Field {
    /// Bytes of the size field.
    pub(crate) fn size_len(self) -> usize {
        usize::try_from(self.bits.div_ceil(8)).expect("at most 2048 bits, see `next`")
    }

    /// Bytes of the whole header: size field and metadata.
    pub(crate) fn header_len(self) -> usize {
        self.size_len() + self.metadata_len
    }

    pub(crate) fn header_len_u64(self) -> u64 {
        u64::try_from(self.header_len()).expect("a usize fits 64 bits")
    }

    /// Size of a full chunk; `None` if no file can hold one.
    pub(crate) fn limit(self) -> Option<u64> {
        (self.bits <= 64).then(|| 1 << (self.bits - 1))
    }

    /// The field of the next chunk, which is twice as wide.
    pub(crate) fn next(self) -> Field {
        // Only a full chunk has a successor, so `bits` is at most 64 here.
        Field { bits: self.bits.min(MAX_FIELD_BITS) * 2, ..self }
    }

    /// Parses the bytes of a header. A size beyond 64 bits becomes `u64::MAX`, which is longer than
    /// any file.
    pub(crate) fn parse(self, offset: u64, header: &[u8]) -> Chunk {
        let (size, metadata) = header.split_at(self.size_len().min(header.len()));
        let size = size.iter().try_fold(0_u64, |size, byte| Some(size.checked_mul(256)? | u64::from(*byte)));
        Chunk { offset, field: self, size: size.unwrap_or(u64::MAX), metadata: metadata.to_vec() }
    }
}

/// A chunk's header and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Offset in the file of the first header byte.
    pub(crate) offset: u64,
    pub(crate) field: Field,
    /// Bytes of the whole chunk, header included.
    pub(crate) size: u64,
    pub(crate) metadata: Vec<u8>,
}

impl Chunk {
    /// Offset in the file of the first payload byte.
    pub(crate) fn payload_start(&self) -> u64 {
        self.offset.saturating_add(self.field.header_len_u64())
    }

    /// Offset in the file after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }

    /// Whether another chunk may follow.
    pub(crate) fn is_full(&self) -> bool {
        self.field.limit().is_some_and(|limit| self.size >= limit)
    }

    /// The error for a size below the length of the header. Size 0 is not an error: it marks an
    /// uncommitted chunk.
    pub(crate) fn bad_size(&self) -> Option<Error> {
        let (offset, size, header_len) = (self.offset, self.size, self.field.header_len_u64());
        (0 < size && size < header_len).then_some(Error::BadChunkSize { offset, size, header_len })
    }

    /// The error for a file that ends before this chunk does.
    pub(crate) fn truncated(&self) -> Error {
        Error::TruncatedChunk { offset: self.offset, size: self.size }
    }

    /// The bytes of the size field, high bytes first.
    pub(crate) fn size_bytes(&self) -> Vec<u8> {
        let (len, value) = (self.field.size_len(), self.size.to_be_bytes());
        let mut out = vec![0; len.saturating_sub(value.len())];
        out.extend_from_slice(&value[value.len().saturating_sub(len)..]);
        out
    }

    /// The bytes of the header.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = self.size_bytes();
        out.extend_from_slice(&self.metadata);
        out
    }
}
