//! Cuts the body of a xorb into frames, each a chunk header with its payload, as the bytes arrive.
//!
//! The splitter takes pieces of any size, as a socket or a file delivers them. A frame inside one
//! piece is returned without a copy. A frame that spans pieces is assembled in a buffer, which is
//! all the memory of the splitter: at most one frame, [256 KiB](MAX_CHUNK_PAYLOAD_LEN) and 8 bytes.
//! A header and the limits of a xorb are checked before the payload is read. The splitter does not
//! check payloads: [`Verifier`](super::Verifier) does.

use std::fmt;

use super::error::{XorbError, XorbErrorKind};
use super::footer;
use crate::chunk::{ChunkHeader, HeaderError};
#[cfg(doc)]
use crate::limits::MAX_CHUNK_PAYLOAD_LEN;
use crate::limits::{MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN};

/// Bytes of a chunk header.
const HEADER_LEN: usize = 8;

/// A parser that takes pieces of a body and returns frames.
///
/// ```
/// use xet_format::xorb::Splitter;
///
/// let body = b"\0\x05\0\0\0\x05\0\0hello\0\x05\0\0\0\x05\0\0world";
/// let mut splitter = Splitter::new(1_000);
/// let mut payloads = Vec::new();
/// for mut piece in body.chunks(7) {
///     while let Some(frame) = splitter.next_frame(&mut piece)? {
///         payloads.push(frame.payload().to_vec());
///     }
/// }
/// splitter.finish()?;
/// assert_eq!(payloads, [b"hello", b"world"]);
/// # Ok::<(), xet_format::xorb::XorbError>(())
/// ```
pub struct Splitter {
    max_len: u64,
    /// Whether a payload may be longer than its chunk.
    allows_expanded: bool,
    /// The frame that is being assembled, or the one that was returned last.
    buffer: Vec<u8>,
    /// Whether the frame in `buffer` was returned, so that the buffer can be cleared.
    is_given: bool,
    /// Offset of the next header, or of the one in `buffer`.
    offset: u64,
    /// Index of the next frame.
    index: u32,
    /// Raw bytes of the frames returned, as their headers declare them.
    raw_len: u64,
    footer: Option<FooterStart>,
}

/// One chunk of a xorb as it is serialized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The header of the chunk; within the limits.
    pub header: ChunkHeader,
    /// Offset of the header in the body.
    pub offset: u64,
    /// Index of the chunk.
    pub index: u32,
    /// Header and payload.
    pub bytes: &'a [u8],
}

/// The start of the footer, after the last chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterStart {
    /// Offset of the footer in the body.
    pub offset: u64,
    /// The version byte of the footer, unchecked.
    pub version: u8,
}

/// The frame that [`Splitter::advance`] found. It does not borrow the splitter.
pub(super) struct Cut<'a> {
    header: ChunkHeader,
    offset: u64,
    index: u32,
    /// The bytes of the frame if they are in one piece; `None` if they are in the buffer.
    in_piece: Option<&'a [u8]>,
}

/// The meaning of the eight bytes after a frame: the header of the next chunk, or the start of a
/// footer.
enum Head {
    Chunk(ChunkHeader),
    Footer { version: u8 },
}

impl Splitter {
    /// A splitter for a body of `max_len` bytes at most.
    #[must_use]
    pub const fn new(max_len: u64) -> Self {
        Self {
            max_len,
            allows_expanded: true,
            buffer: Vec::new(),
            is_given: false,
            offset: 0,
            index: 0,
            raw_len: 0,
            footer: None,
        }
    }

    /// A splitter for the body of an upload: it refuses a payload that is longer than its chunk.
    /// Every known writer stores such a chunk uncompressed. Without this rule, all repositories
    /// that use the xorb later would pay for the extra bytes.
    #[must_use]
    pub const fn for_upload(max_len: u64) -> Self {
        let mut splitter = Self::new(max_len);
        splitter.allows_expanded = false;
        splitter
    }

    /// The next frame of the body; `input` is moved past the consumed bytes.
    ///
    /// `None` if all of `input` was consumed and no frame ends in it. Also `None` after the last
    /// chunk: then [`Splitter::footer`] is set, and `input` begins with the ninth byte of the
    /// footer, after its version.
    ///
    /// # Errors
    ///
    /// A header is invalid, or the frame exceeds a limit. The splitter is unusable afterwards.
    pub fn next_frame<'a, 'p: 'a>(&'a mut self, input: &mut &'p [u8]) -> Result<Option<Frame<'a>>, XorbError> {
        let cut = self.advance(input)?;
        Ok(cut.map(|cut| self.frame(cut)))
    }

    /// Where the footer starts; `None` until the splitter has reached it.
    #[must_use]
    pub const fn footer(&self) -> Option<FooterStart> {
        self.footer
    }

    /// Ends the body. If a footer has begun, this succeeds: the caller checks the footer, and
    /// whether a frame was before it.
    ///
    /// # Errors
    ///
    /// The body ends within a frame, or is empty. The error for an empty body is of the class
    /// [`Incomplete`](super::XorbErrorClass::Incomplete), too: the sender has stopped before the
    /// first byte.
    pub fn finish(self) -> Result<(), XorbError> {
        if self.footer.is_some() {
            return Ok(());
        }
        let have = if self.is_given { 0 } else { self.buffer.len() };
        if have == 0 && self.index > 0 {
            return Ok(());
        }
        let offset = self.offset.saturating_add(have as u64);
        if have == 0 {
            return Err(XorbError { offset, chunk: None, kind: XorbErrorKind::Empty });
        }
        let have = u32::try_from(have).unwrap_or(u32::MAX);
        // A complete header was checked when its last byte arrived, so one that does not parse now
        // is incomplete.
        let header = self.buffer.first_chunk().and_then(|bytes| ChunkHeader::parse(bytes).ok());
        let kind = match header {
            None => XorbErrorKind::HeaderIncomplete { have },
            Some(header) => XorbErrorKind::PayloadIncomplete {
                have: have.saturating_sub(header.record_len().saturating_sub(header.payload_len)),
                expected: header.payload_len,
            },
        };
        Err(XorbError { offset, chunk: Some(self.index), kind })
    }

    /// Does the work of [`Splitter::next_frame`], except that [`Splitter::frame`] returns the
    /// frame.
    pub(super) fn advance<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Cut<'a>>, XorbError> {
        if self.is_given {
            self.buffer.clear();
            self.is_given = false;
        }
        if self.footer.is_some() {
            return Ok(None);
        }
        if self.buffer.is_empty()
            && let Some((bytes, after_header)) = input.split_first_chunk()
        {
            match self.parse_head(bytes)? {
                Head::Footer { version } => {
                    *input = after_header;
                    self.footer = Some(FooterStart { offset: self.offset, version });
                    return Ok(None);
                }
                Head::Chunk(header) => {
                    if let Some((frame, rest)) = input.split_at_checked(header.record_len() as usize) {
                        *input = rest;
                        return Ok(Some(self.cut(header, Some(frame))));
                    }
                }
            }
        }
        self.advance_in_buffer(input)
    }

    /// Assembles a frame that spans pieces in the buffer: first the header, then the payload.
    fn advance_in_buffer<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Cut<'a>>, XorbError> {
        self.fill(HEADER_LEN, input);
        let Some(bytes) = self.buffer.first_chunk() else { return Ok(None) };
        match self.parse_head(bytes)? {
            Head::Footer { version } => {
                self.buffer.clear();
                self.footer = Some(FooterStart { offset: self.offset, version });
                Ok(None)
            }
            Head::Chunk(header) => {
                let record_len = header.record_len() as usize;
                self.fill(record_len, input);
                if self.buffer.len() < record_len {
                    return Ok(None);
                }
                self.is_given = true;
                Ok(Some(self.cut(header, None)))
            }
        }
    }

    /// Moves bytes from `input` until the buffer has `len`, or there are no more.
    fn fill(&mut self, len: usize, input: &mut &[u8]) {
        let missing = len.saturating_sub(self.buffer.len());
        let (taken, rest) = input.split_at(missing.min(input.len()));
        self.buffer.reserve_exact(missing);
        self.buffer.extend_from_slice(taken);
        *input = rest;
    }

    /// Parses the eight bytes at the place of the next header, a chunk header or the start of a
    /// footer, and checks the limits.
    fn parse_head(&self, bytes: &[u8; HEADER_LEN]) -> Result<Head, XorbError> {
        let Self { offset, index, .. } = *self;
        if let [ident @ .., version] = bytes
            && *ident == footer::IDENT
        {
            return Ok(Head::Footer { version: *version });
        }
        let error = |offset, kind| XorbError { offset, chunk: Some(index), kind };
        let header = ChunkHeader::parse(bytes)
            .map_err(|kind| error(offset.saturating_add(kind.field_offset().into()), XorbErrorKind::Header(kind)))?;
        let ChunkHeader { payload_len, raw_len, .. } = header;
        if !self.allows_expanded && payload_len > raw_len {
            let kind = HeaderError::Expanded { payload_len, raw_len };
            return Err(error(offset.saturating_add(kind.field_offset().into()), XorbErrorKind::Header(kind)));
        }
        if index >= MAX_XORB_CHUNK_COUNT {
            return Err(error(offset, XorbErrorKind::TooManyChunks));
        }
        if self.raw_len.saturating_add(header.raw_len.into()) > MAX_XORB_RAW_LEN {
            return Err(error(offset, XorbErrorKind::RawTooLong));
        }
        if offset.saturating_add(header.record_len().into()) > self.max_len {
            return Err(error(offset, XorbErrorKind::BodyTooLong { limit: self.max_len }));
        }
        Ok(Head::Chunk(header))
    }

    /// Moves the counters past a complete frame, and returns the frame.
    fn cut<'a>(&mut self, header: ChunkHeader, in_piece: Option<&'a [u8]>) -> Cut<'a> {
        let cut = Cut { header, offset: self.offset, index: self.index, in_piece };
        self.offset = self.offset.saturating_add(header.record_len().into());
        self.raw_len = self.raw_len.saturating_add(header.raw_len.into());
        self.index = self.index.saturating_add(1);
        cut
    }

    /// The frame that [`Splitter::advance`] has just found.
    pub(super) fn frame<'a>(&'a self, cut: Cut<'a>) -> Frame<'a> {
        let Cut { header, offset, index, in_piece } = cut;
        Frame { header, offset, index, bytes: in_piece.unwrap_or(&self.buffer) }
    }
}

impl fmt::Debug for Splitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Splitter")
            .field("offset", &self.offset)
            .field("index", &self.index)
            .field("buffered", &self.buffer.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Frame<'a> {
    /// The bytes after the header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or_default()
    }
}
