//! The blocks of the inner layer, as reader and survey both meet them.

use super::chunk_layer::Payload;
use super::error::Error;
use super::hash::{DIGEST_LEN, Digest};
use super::varint::{self, Varint};

/// The varint of a reset block with nothing but a hash, as the reference writes it: `81 04`.
const RESET: u64 = 1 | (8 << 6);

/// The varint of a reset block in the README's example, `81 02`. Read as the README's prose and
/// the reference say it would be a reset with four bytes of payload, which no reset can have: so
/// nothing sound has two meanings.
const README_RESET: u128 = 1 | (8 << 5);

/// What a block's varint says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Of the varint's first byte in the file.
    pub(crate) offset: u64,
    pub(crate) kind: Kind,
    /// Payload bytes; `u64::MAX` stands for everything that does not fit.
    pub(crate) len: u64,
}

impl Head {
    /// Payload bytes of a reset block behind its hash.
    pub(crate) fn extra_len(self) -> u64 {
        if self.kind == Kind::ReadmeReset { 0 } else { self.len.saturating_sub(8) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Blob,
    Reset,
    /// `81 02`: a reset of 8 bytes for the README, a damaged one for the reference.
    ReadmeReset,
    /// A control block to be skipped.
    Unknown,
}

/// Reads the varint of the next block, passing its bytes to `see`; `None` at the end.
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
            // Only now: before `fill` a header may have been in between.
            offset = source.offset();
            first = false;
        }
        source.consume(1);
        if value.push(byte) {
            break;
        }
    }
    let value = value.value();
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
/// The errors are those that the reference's order of looking gives: all of the payload is asked
/// for before its length is judged, and `81 02` asks for four bytes.
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
