//! The reader of the LZ4 frame decoder: it reads a slice and remembers its position.
//!
//! Every read is checked: a read past the end returns `None` and never panics. It returns no error,
//! in contrast to [`Reader`](super::reader::Reader), because the decoder has errors of its own.
//! Callers check [`Cursor::is_empty`] at the end, so that trailing bytes are not ignored by
//! accident.

/// Reads from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at the first byte.
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, offset: 0 }
    }

    /// Offset of the next byte from the start of the slice.
    pub(super) const fn offset(&self) -> usize {
        self.offset
    }

    /// Whether nothing is left.
    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `len` bytes. If fewer are left, returns `None` and consumes nothing.
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        self.offset = self.offset.saturating_add(len);
        Some(taken)
    }

    /// The next `N` bytes as an array.
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// The next byte.
    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// The next four bytes as a little-endian number.
    pub(super) fn u32_le(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
}
