//! Reads the blocks of the inner layer, for the reader, for the survey before an append, and for
//! the repair; writes reset blocks.

use super::chunk_layer::Payload;
use super::error::Error;
use super::hash::{DIGEST_LEN, Digest};
use super::varint::{self, Varint};

/// The value of the varint of a reset block with a hash only, as the reference writes it: `81 04`.
const RESET: u64 = 1 | (8 << 6);

/// The value of the varint of a reset block in the README's example: `81 02`. In the README's prose
/// and in the reference it means a reset with four bytes of payload, which is always damage. So no
/// valid archive has two meanings.
const README_RESET: u128 = 1 | (8 << 5);

/// The start of a block: the kind and the length, which its varint states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Offset in the file of the varint's first byte.
    pub(crate) offset: u64,
    pub(crate) kind: Kind,
    /// Payload bytes; `u64::MAX` stands for every length beyond 64 bits. A [`Kind::ReadmeReset`]
    /// has the 4 that its varint states, although the payload that follows has 8.
    pub(crate) len: u64,
}

impl Head {
    /// Payload bytes of a reset block after its hash. For other blocks the result has no meaning.
    pub(crate) fn extra_len(self) -> u64 {
        if self.kind == Kind::ReadmeReset { 0 } else { self.len.saturating_sub(8) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Blob,
    Reset,
    /// `81 02`: for the README a reset with a hash, for the reference a damaged reset.
    ReadmeReset,
    /// A control block to be skipped.
    Unknown,
}

/// Reads the varint of the next block and passes its bytes to `see`; `None` at the end.
pub(crate) fn read_head<P: Payload>(source: &mut P, mut see: impl FnMut(&[u8])) -> Result<Option<Head>, Error> {
    let (mut value, mut first) = (Varint::default(), true);
    let mut offset = source.offset();
    loop {
        let bytes = source.fill(1)?;
        let Some(byte) = bytes.first().copied() else {
            return if first { Ok(None) } else { Err(Error::TruncatedVarint { offset }) };
        };
        see(&[byte]);
        if first {
            // The offset is right only after `fill`, which may have skipped a chunk header.
            offset = source.offset();
            first = false;
        }
        source.consume(1);
        if value.push(byte) {
            break;
        }
    }
    let value = value.value();
    // Bit 0 marks a control block, bits 1 to 5 are its type, and the bits above are the length.
    let (kind, len) = match (value & 1, value >> 1 & 31) {
        (0, _) => (Kind::Blob, value >> 1),
        (_, 0) if value == README_RESET => (Kind::ReadmeReset, 4),
        (_, 0) => (Kind::Reset, value >> 6),
        _ => (Kind::Unknown, value >> 6),
    };
    Ok(Some(Head { offset, kind, len: u64::try_from(len).unwrap_or(u64::MAX) }))
}

/// Passes `len` bytes of the block's payload to `see`.
pub(crate) fn read_payload<P: Payload>(
    source: &mut P,
    head: Head,
    mut len: u64,
    mut see: impl FnMut(&[u8]),
) -> Result<(), Error> {
    while len > 0 {
        let bytes = source.fill(len)?;
        let step = bytes.len();
        if step == 0 {
            return Err(Error::TruncatedBlock { offset: head.offset });
        }
        see(bytes);
        source.consume(step);
        len = len.saturating_sub(u64::try_from(step).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// Reads the hash of a reset block, the first 8 bytes of its payload.
///
/// The errors are those of the reference. It reads the whole payload before it checks the length.
/// For `81 02`, which announces four bytes, it finds a short reset if at least four bytes follow.
pub(crate) fn read_stored_hash<P: Payload>(source: &mut P, head: Head) -> Result<Digest, Error> {
    let offset = head.offset;
    let mut stored = Vec::with_capacity(DIGEST_LEN);
    let want = if head.kind == Kind::ReadmeReset { 8 } else { head.len.min(8) };
    let outcome = read_payload(source, head, want, |bytes| stored.extend_from_slice(bytes));
    match (outcome, <[u8; DIGEST_LEN]>::try_from(stored.as_slice())) {
        (Ok(()), Ok(stored)) => Ok(Digest(stored)),
        (Err(e @ Error::Io { .. }), _) => Err(e),
        (Err(_), _) if head.kind == Kind::ReadmeReset && stored.len() >= 4 => Err(Error::ShortReset { offset }),
        (Err(e), _) => Err(e),
        (Ok(()), Err(_)) => Err(Error::ShortReset { offset }),
    }
}

/// A reset block that stores `digest`, as the reference writes it.
pub(crate) fn reset_block(digest: Digest) -> Vec<u8> {
    let mut out = Vec::new();
    varint::encode(RESET, &mut out);
    out.extend_from_slice(&digest.0);
    out
}
