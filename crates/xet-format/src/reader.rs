//! A reader over untrusted bytes.
//!
//! It returns slices of its input and never allocates. It checks every length before use. Every
//! error contains the offset *in the whole input*, even if a reader made by [`Reader::sub`] returns
//! it. [`Reader::finish`] returns an error if bytes are unread.

#[cfg(test)]
mod tests;

use thiserror::Error;

/// The unread rest of a slice, and its offset in the whole input.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    offset: u64,
}

/// Fewer bytes are left than were asked for; the reader has not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{wanted} bytes expected at byte {offset}, {left} left")]
pub struct OutOfBytes {
    /// Where the reader stood, in bytes from the start of the whole input.
    pub offset: u64,
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes that were left.
    pub left: u64,
}

/// Bytes are left where the input should have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{count} bytes too many at byte {offset}")]
pub struct TrailingBytes {
    /// Where the first of them is, in bytes from the start of the whole input.
    pub offset: u64,
    /// How many bytes are left.
    pub count: u64,
}

impl<'a> Reader<'a> {
    /// A reader at the start of the input.
    #[must_use]
    pub const fn new(input: &'a [u8]) -> Self {
        Self { rest: input, offset: 0 }
    }

    /// Where the next byte is, from the start of the whole input.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes that are left.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.rest.len() as u64
    }

    /// Whether no byte is left.
    #[must_use]
    pub const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes the next `len` bytes.
    ///
    /// # Errors
    ///
    /// Fewer are left.
    pub fn take(&mut self, len: u64) -> Result<&'a [u8], OutOfBytes> {
        let split = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let Some((taken, rest)) = split else {
            return Err(OutOfBytes { offset: self.offset, wanted: len, left: self.left() });
        };
        self.rest = rest;
        self.offset = self.offset.saturating_add(len);
        Ok(taken)
    }

    /// Takes the next `len` bytes as a reader of their own, which knows where they are in the whole
    /// input.
    ///
    /// # Errors
    ///
    /// Fewer are left.
    pub fn sub(&mut self, len: u64) -> Result<Self, OutOfBytes> {
        let offset = self.offset;
        Ok(Self { rest: self.take(len)?, offset })
    }

    /// Takes the next `N` bytes.
    ///
    /// # Errors
    ///
    /// Fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], OutOfBytes> {
        let Some((taken, rest)) = self.rest.split_first_chunk() else {
            return Err(OutOfBytes { offset: self.offset, wanted: N as u64, left: self.left() });
        };
        self.rest = rest;
        self.offset = self.offset.saturating_add(N as u64);
        Ok(*taken)
    }

    /// Takes one byte.
    ///
    /// # Errors
    ///
    /// None is left.
    pub fn u8(&mut self) -> Result<u8, OutOfBytes> {
        self.array().map(u8::from_le_bytes)
    }

    /// Takes a little-endian number of two bytes.
    ///
    /// # Errors
    ///
    /// Fewer are left.
    pub fn u16(&mut self) -> Result<u16, OutOfBytes> {
        self.array().map(u16::from_le_bytes)
    }

    /// Takes a little-endian number of four bytes.
    ///
    /// # Errors
    ///
    /// Fewer are left.
    pub fn u32(&mut self) -> Result<u32, OutOfBytes> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes a little-endian number of eight bytes.
    ///
    /// # Errors
    ///
    /// Fewer are left.
    pub fn u64(&mut self) -> Result<u64, OutOfBytes> {
        self.array().map(u64::from_le_bytes)
    }

    /// Ends reading.
    ///
    /// # Errors
    ///
    /// Bytes are left.
    pub const fn finish(self) -> Result<(), TrailingBytes> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(TrailingBytes { offset: self.offset, count: self.rest.len() as u64 })
        }
    }
}
