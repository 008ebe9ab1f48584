//! LZ4 frames (spec 3.3): our own strict frame decoder, which uses the block decoder of `lz4_flex`,
//! and the frame encoder of `lz4_flex`.
//!
//! The decoder takes any one standard frame: blocks of 64 KiB to 4 MiB, independent or linked,
//! compressed or stored, with or without block checksums, content checksum and content size. It
//! allocates nothing. The caller's buffer has exactly the raw length of the chunk's header, and the
//! frame must fill it exactly.
//!
//! `lz4_flex::frame::FrameDecoder` is not used. For every chunk it allocates the block size that
//! the frame claims, up to 4 MiB for a chunk of at most 128 KiB. It accepts a frame without its end
//! mark. It does not report bytes after the frame, and it takes an empty block for the end of the
//! data.
//!
//! Stock clients decode with `FrameDecoder`, so every frame accepted here must give the same bytes
//! there. Therefore this decoder refuses empty blocks, although the LZ4 specification allows them.
//! Otherwise a chunk with an empty block would verify on the server, and fail or be truncated on
//! the client.
//!
//! Legacy and skippable frames, dictionaries and reserved bits are refused.

use std::io::Write as _;

use lz4_flex::block::DecompressError;
use lz4_flex::frame::FrameEncoder;
use thiserror::Error;
use twox_hash::XxHash32;

use super::cursor::Cursor;

const MAGIC: u32 = 0x184D_2204;
const LEGACY_MAGIC: u32 = 0x184C_2102;
/// Its last hex digit may have any value: [`check_magic`] ignores that digit.
const SKIPPABLE_MAGIC: u32 = 0x184D_2A50;

/// The bit of a block's length word which says that the block is stored uncompressed.
const STORED_BIT: u32 = 1 << 31;

/// How far back a match in a linked block may reach: 64 KiB (the offset is 16 bits wide).
const WINDOW_LEN: usize = 1 << 16;

/// Why a payload is not the LZ4 frame of its chunk, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{kind}")]
pub struct FrameError {
    /// Offset from the start of the frame: of the field in question, or of the block that does not
    /// decode.
    pub offset: u32,
    /// What is wrong there.
    pub kind: FrameErrorKind,
}

/// What is wrong with an LZ4 frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameErrorKind {
    /// The payload ends before the frame does.
    #[error("the LZ4 frame continues after the end of the chunk")]
    Truncated,
    /// The payload does not begin like an LZ4 frame.
    #[error("{found:#010x} is not the magic number of an LZ4 frame")]
    Magic {
        /// The first four bytes, as a little-endian number.
        found: u32,
    },
    /// A frame of the format before version 1.
    #[error("legacy LZ4 frames are not supported")]
    Legacy,
    /// A frame without data, for other programs.
    #[error("skippable LZ4 frames are not supported")]
    Skippable,
    /// A frame version other than 1.
    #[error("LZ4 frame version {found} is not supported, only 1")]
    Version {
        /// The version that is there.
        found: u8,
    },
    /// A frame that needs a dictionary.
    #[error("LZ4 dictionaries are not supported")]
    Dictionary,
    /// A bit that has no meaning yet is set.
    #[error("a reserved bit of the LZ4 frame header is set")]
    ReservedBits,
    /// The code of the block size is not 4, 5, 6 or 7.
    #[error("LZ4 block size code {code} does not exist")]
    BlockSize {
        /// The code that is there.
        code: u8,
    },
    /// The frame states its content size, and it is not that of the chunk.
    #[error("the LZ4 frame declares {declared} bytes of content, the chunk has {expected}")]
    ContentSize {
        /// What the frame declares.
        declared: u64,
        /// What the chunk's header declares.
        expected: u32,
    },
    /// The header does not match its checksum.
    #[error("the checksum of the LZ4 frame header is wrong")]
    HeaderChecksum,
    /// A block has more bytes in the payload than the frame's block size.
    #[error("an LZ4 block of {len} bytes exceeds the frame's block size of {limit}")]
    BlockTooLong {
        /// The length that is declared.
        len: u32,
        /// The block size of the frame.
        limit: u32,
    },
    /// A block does not match its checksum.
    #[error("the checksum of an LZ4 block is wrong")]
    BlockChecksum,
    /// A block is not LZ4 data.
    #[error("an LZ4 block is corrupt")]
    CorruptBlock,
    /// A block has no contents; the module documentation says why this is refused.
    #[error("an LZ4 block is empty")]
    EmptyBlock,
    /// A block decompresses to more than the frame's block size.
    #[error("an LZ4 block decompresses to more than the frame's block size of {limit}")]
    BlockOverflow {
        /// The block size of the frame.
        limit: u32,
    },
    /// The frame decompresses to more bytes than the chunk has.
    #[error("the LZ4 frame decompresses to more than the {expected} bytes of the chunk")]
    RawTooLong {
        /// What the chunk's header declares.
        expected: u32,
    },
    /// The frame decompresses to fewer bytes than the chunk has.
    #[error("the LZ4 frame decompresses to {actual} bytes, the chunk has {expected}")]
    RawTooShort {
        /// What came out.
        actual: u32,
        /// What the chunk's header declares.
        expected: u32,
    },
    /// The contents do not match their checksum.
    #[error("the checksum of the LZ4 frame's contents is wrong")]
    ContentChecksum,
    /// The payload goes on after the frame.
    #[error("{len} bytes follow the LZ4 frame")]
    TrailingBytes {
        /// How many.
        len: u32,
    },
}

/// Decompresses `frame`, which must be exactly one LZ4 frame, into `raw`, which it must fill
/// exactly.
pub(super) fn decode(frame: &[u8], raw: &mut [u8]) -> Result<(), FrameError> {
    let mut cursor = Cursor::new(frame);
    let header = FrameHeader::parse(&mut cursor, raw.len())?;
    let mut filled = 0;
    loop {
        let offset = cursor.offset();
        let Some(word) = cursor.u32_le() else { return Err(at(offset, FrameErrorKind::Truncated)) };
        // The end mark.
        if word == 0 {
            break;
        }
        let block = Block::take(&mut cursor, word, &header, offset)?;
        let len = block.decode(raw, filled, &header).map_err(|kind| at(offset, kind))?;
        filled = filled.saturating_add(len);
    }
    if filled != raw.len() {
        let kind = FrameErrorKind::RawTooShort { actual: to_u32(filled), expected: to_u32(raw.len()) };
        return Err(at(cursor.offset(), kind));
    }
    if header.has_content_checksum {
        check_sum(&mut cursor, raw, FrameErrorKind::ContentChecksum)?;
    }
    if cursor.is_empty() {
        return Ok(());
    }
    let len = to_u32(frame.len().saturating_sub(cursor.offset()));
    Err(at(cursor.offset(), FrameErrorKind::TrailingBytes { len }))
}

/// The fields of a frame descriptor that decoding needs.
struct FrameHeader {
    is_linked: bool,
    has_block_checksums: bool,
    has_content_checksum: bool,
    /// Bytes of a block, at most, compressed or not.
    block_len: usize,
}

impl FrameHeader {
    fn parse(cursor: &mut Cursor<'_>, raw_len: usize) -> Result<Self, FrameError> {
        let truncated = |cursor: &Cursor<'_>| at(cursor.offset(), FrameErrorKind::Truncated);
        let magic = cursor.u32_le().ok_or_else(|| truncated(cursor))?;
        check_magic(magic).map_err(|kind| at(0, kind))?;

        // A copy that stays at the start of the descriptor, for the checksum at its end.
        let mut descriptor = *cursor;
        let descriptor_offset = cursor.offset();
        let flags = cursor.byte().ok_or_else(|| truncated(cursor))?;
        let bit = |index: u8| flags >> index & 1 == 1;
        let wrong_flags = |kind| Err(at(descriptor_offset, kind));
        if flags >> 6 != 1 {
            return wrong_flags(FrameErrorKind::Version { found: flags >> 6 });
        }
        if bit(1) {
            return wrong_flags(FrameErrorKind::ReservedBits);
        }
        if bit(0) {
            return wrong_flags(FrameErrorKind::Dictionary);
        }
        let size_offset = cursor.offset();
        let size_byte = cursor.byte().ok_or_else(|| truncated(cursor))?;
        let block_len = block_len(size_byte).map_err(|kind| at(size_offset, kind))?;
        if bit(3) {
            let offset = cursor.offset();
            let declared = cursor.array().map(u64::from_le_bytes).ok_or_else(|| truncated(cursor))?;
            let expected = to_u32(raw_len);
            if declared != u64::from(expected) {
                return Err(at(offset, FrameErrorKind::ContentSize { declared, expected }));
            }
        }
        let offset = cursor.offset();
        let checked = descriptor.take(offset.saturating_sub(descriptor_offset)).unwrap_or_default();
        // The header checksum is the second byte of this hash.
        let [_, expected, _, _] = XxHash32::oneshot(0, checked).to_le_bytes();
        if cursor.byte().ok_or_else(|| truncated(cursor))? != expected {
            return Err(at(offset, FrameErrorKind::HeaderChecksum));
        }
        Ok(Self { is_linked: !bit(5), has_block_checksums: bit(4), has_content_checksum: bit(2), block_len })
    }
}

fn check_magic(magic: u32) -> Result<(), FrameErrorKind> {
    match magic {
        MAGIC => Ok(()),
        LEGACY_MAGIC => Err(FrameErrorKind::Legacy),
        other if other & !0xF == SKIPPABLE_MAGIC => Err(FrameErrorKind::Skippable),
        found => Err(FrameErrorKind::Magic { found }),
    }
}

/// The block size that the second byte of the descriptor stands for.
fn block_len(byte: u8) -> Result<usize, FrameErrorKind> {
    if byte & 0x8F != 0 {
        return Err(FrameErrorKind::ReservedBits);
    }
    match byte >> 4 {
        4 => Ok(1 << 16),
        5 => Ok(1 << 18),
        6 => Ok(1 << 20),
        7 => Ok(1 << 22),
        code => Err(FrameErrorKind::BlockSize { code }),
    }
}

/// One block of a frame, its checksum verified.
struct Block<'a> {
    bytes: &'a [u8],
    is_stored: bool,
}

impl<'a> Block<'a> {
    /// Takes the block whose length word was read at `offset`.
    fn take(cursor: &mut Cursor<'a>, word: u32, header: &FrameHeader, offset: usize) -> Result<Self, FrameError> {
        let len = word & !STORED_BIT;
        if len == 0 {
            return Err(at(offset, FrameErrorKind::EmptyBlock));
        }
        if len > to_u32(header.block_len) {
            return Err(at(offset, FrameErrorKind::BlockTooLong { len, limit: to_u32(header.block_len) }));
        }
        let bytes = cursor.take(len as usize).ok_or(at(cursor.offset(), FrameErrorKind::Truncated))?;
        if header.has_block_checksums {
            check_sum(cursor, bytes, FrameErrorKind::BlockChecksum)?;
        }
        Ok(Self { bytes, is_stored: word & STORED_BIT != 0 })
    }

    /// Writes the contents to `raw` after the bytes already filled; returns how many there were, at
    /// least 1.
    fn decode(&self, raw: &mut [u8], filled: usize, header: &FrameHeader) -> Result<usize, FrameErrorKind> {
        let too_long = FrameErrorKind::RawTooLong { expected: to_u32(raw.len()) };
        let (history, rest) = raw.split_at_mut_checked(filled).ok_or(too_long)?;
        if self.is_stored {
            rest.get_mut(..self.bytes.len()).ok_or(too_long)?.copy_from_slice(self.bytes);
            return Ok(self.bytes.len());
        }
        // A block may fill neither more than the rest of the chunk nor more than the block size.
        // The smaller of the two bounds decides which error a longer block gives.
        let cap = rest.len().min(header.block_len);
        let overflow =
            if cap < rest.len() { FrameErrorKind::BlockOverflow { limit: to_u32(header.block_len) } } else { too_long };
        let target = rest.get_mut(..cap).ok_or(too_long)?;
        let result = if header.is_linked && !history.is_empty() {
            let window = history.get(history.len().saturating_sub(WINDOW_LEN)..).unwrap_or_default();
            lz4_flex::block::decompress_into_with_dict(self.bytes, target, window)
        } else {
            lz4_flex::block::decompress_into(self.bytes, target)
        };
        match result {
            Ok(0) => Err(FrameErrorKind::EmptyBlock),
            Ok(len) => Ok(len),
            Err(DecompressError::OutputTooSmall { .. }) => Err(overflow),
            Err(_) => Err(FrameErrorKind::CorruptBlock),
        }
    }
}

/// Reads the stored checksum of `bytes` and compares it with the computed one.
fn check_sum(cursor: &mut Cursor<'_>, bytes: &[u8], wrong: FrameErrorKind) -> Result<(), FrameError> {
    let offset = cursor.offset();
    match cursor.u32_le() {
        None => Err(at(offset, FrameErrorKind::Truncated)),
        Some(expected) if expected == XxHash32::oneshot(0, bytes) => Ok(()),
        Some(_) => Err(at(offset, wrong)),
    }
}

fn at(offset: usize, kind: FrameErrorKind) -> FrameError {
    FrameError { offset: to_u32(offset), kind }
}

/// Lengths in this module are at most that of a payload, so this never saturates.
fn to_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Compresses `raw` to one frame at the end of `out`, exactly as the reference does: default
/// settings, one write.
///
/// Returns the length of the frame. If the encoder fails, returns `None` and leaves `out`
/// unchanged; writing to memory does not fail.
pub(super) fn encode(raw: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let before = out.len();
    let mut encoder = FrameEncoder::new(&mut *out);
    let result = encoder.write_all(raw).is_ok() && encoder.finish().is_ok();
    if !result {
        out.truncate(before);
        return None;
    }
    out.len().checked_sub(before)
}
