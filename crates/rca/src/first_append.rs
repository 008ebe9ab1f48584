//! Tells two kinds of files apart: the remains of an interrupted first append, and files that never
//! were archives.
//!
//! Nothing is committed in either, and to a reader both are empty archives with garbage. But an
//! append truncates the garbage, which may be a user's data if the path was mistyped: many formats
//! and disk images begin with two zero bytes, and any file of less than ten bytes is "garbage",
//! too.
//!
//! A first append writes a header of size 0, then a blob's block, front to back. So the file has
//! these bytes, up to its end:
//!
//! ```text
//! 00 00  metadata(8)  varint of a blob, or 6 zeros until it is filled in  28 b5 2f fd (zstd)  …
//! ```
//!
//! Or all bytes after the header are zeros, if the file system stored the length before the bytes.
//!
//! A file shorter than a header needs only one zero byte: it may also be the truncated copy of a
//! small committed archive, whose size field begins with `00`. Text does not begin with a zero
//! byte.

use std::io::{Read, Seek};

use super::error::Error;
use super::limits::STEP_LEN;
use super::varint::PADDED_LEN;

/// Bytes of the first chunk's header.
const HEADER_LEN: usize = 10;

/// The first bytes of every zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The length of the prefix that is checked: a header and 16 bytes of the block. Every writer's
/// varint is so short that the zstd magic number is among them. If these 16 bytes are all zero, the
/// rest of the file is checked, too.
const CHECKED_LEN: usize = HEADER_LEN + 16;

/// Whether a file without a committed chunk can be the remains of an interrupted first append.
pub(crate) fn is_interrupted_first_append<S: Read + Seek>(source: &mut S) -> Result<bool, Error> {
    let io = |source| Error::Io { op: "read", offset: 0, source };
    source.rewind().map_err(io)?;
    let mut begin = Vec::new();
    Read::by_ref(source).take(CHECKED_LEN as u64).read_to_end(&mut begin).map_err(io)?;
    if begin.len() < HEADER_LEN {
        return Ok(begin.starts_with(&[0]));
    }
    if !begin.starts_with(&[0, 0]) {
        return Ok(false);
    }
    let block = begin.get(HEADER_LEN..).unwrap_or_default();
    if begins_blob(block) {
        return Ok(true);
    }
    Ok(block.iter().all(|byte| *byte == 0) && only_zeros(source).map_err(io)?)
}

/// Whether `bytes` can be the first bytes of a blob's block. Compares as many bytes as there are.
fn begins_blob(bytes: &[u8]) -> bool {
    let is_padded = bytes.iter().take(PADDED_LEN).all(|byte| *byte == 0);
    if is_padded && agree(bytes.get(PADDED_LEN..).unwrap_or_default(), &ZSTD_MAGIC) {
        return true;
    }
    // The lowest bit is 0 for a blob and 1 for a control block.
    let is_blob = bytes.first().is_none_or(|byte| byte & 1 == 0);
    let varint_len = bytes.iter().position(|byte| byte & 0x80 == 0).map_or(bytes.len(), |last| last + 1);
    is_blob && varint_len < CHECKED_LEN - HEADER_LEN && agree(&bytes[varint_len..], &ZSTD_MAGIC)
}

/// Whether both are equal up to the length of the shorter one.
fn agree(bytes: &[u8], expected: &[u8]) -> bool {
    bytes.iter().zip(expected).all(|(byte, expected)| byte == expected)
}

fn only_zeros(source: &mut impl Read) -> std::io::Result<bool> {
    let mut buffer = vec![0; STEP_LEN];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(len) if buffer[..len].iter().any(|byte| *byte != 0) => return Ok(false),
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
}
