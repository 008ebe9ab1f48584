//! Cuts the body of a xorb into frames, each a chunk header with its payload, as the bytes arrive.
//!
//! The splitter is pushed pieces of any size, as a socket or a file gives them. A frame that lies
//! inside one piece is handed out without a copy; one that straddles pieces is put together in a
//! buffer, which is all that the splitter ever holds: at most one frame, [256
//! KiB](MAX_CHUNK_PAYLOAD_LEN) and 8 bytes. Headers are judged, and the limits of a xorb enforced,
//! before a payload is awaited. Payloads are not looked at: that is [`Verifier`](super::Verifier).

use std::fmt;

use super::error::{XorbError, XorbErrorKind};
use super::footer;
use crate::chunk::{ChunkHeader, HeaderError};
#[cfg(doc)]
use crate::limits::MAX_CHUNK_PAYLOAD_LEN;
use crate::limits::{MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN};

/// Bytes of a chunk header.
const HEADER_LEN: usize = 8;

/// A push parser from pieces of a body to frames.
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
    takes_expanded: bool,
    /// The frame that is being put together, or the one that was handed out last.
    buffer: Vec<u8>,
    /// Whether `buffer` was handed out and is free.
    is_given: bool,
    /// Offset of the next header, or of the one in `buffer`.
    offset: u64,
    /// Index of the next frame.
    index: u32,
    /// Raw bytes of the frames handed out, as their headers declare them.
    raw_len: u64,
    footer: Option<FooterStart>,
}

/// One chunk of a xorb as it is serialized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What the chunk says about itself; within the limits.
    pub header: ChunkHeader,
    /// Offset of the header in the body.
    pub offset: u64,
    /// Index of the chunk.
    pub index: u32,
    /// Header and payload.
    pub bytes: &'a [u8],
}

/// That the chunks are over and a footer follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterStart {
    /// Offset of the footer in the body.
    pub offset: u64,
    /// Its version, which may be one that does not exist.
    pub version: u8,
}

/// What [`Splitter::advance`] found, without borrowing the splitter.
pub(super) struct Cut<'a> {
    header: ChunkHeader,
    offset: u64,
    index: u32,
    /// The frame where it lies in the piece; `None` where it is in the buffer.
    in_piece: Option<&'a [u8]>,
}

/// What eight bytes at the place of a header are.
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
            takes_expanded: true,
            buffer: Vec::new(),
            is_given: false,
            offset: 0,
            index: 0,
            raw_len: 0,
            footer: None,
        }
    }

    /// The same for the body of an upload: a payload that is longer than its chunk is refused.
    /// Every writer stores such a chunk uncompressed, and one that did not would have everybody pay
    /// for it who refers to the xorb later.
    #[must_use]
    pub const fn for_upload(max_len: u64) -> Self {
        let mut splitter = Self::new(max_len);
        splitter.takes_expanded = false;
        splitter
    }

    /// The next frame of the body; `input` is moved past the consumed bytes.
    ///
    /// `None` when all of `input` was consumed and no frame ends in it, or after the last chunk:
    /// then [`Splitter::footer`] says so, and `input` is left at the ninth byte of the footer,
    /// after its version.
    ///
    /// # Errors
    ///
    /// A header is invalid, or the frame exceeds a limit. The splitter is unusable afterwards.
    pub fn next_frame<'a, 'p: 'a>(&'a mut self, input: &mut &'p [u8]) -> Result<Option<Frame<'a>>, XorbError> {
        let cut = self.advance(input)?;
        Ok(cut.map(|cut| self.frame(cut)))
    }

    /// Where the footer starts, once the splitter has met it.
    #[must_use]
    pub const fn footer(&self) -> Option<FooterStart> {
        self.footer
    }

    /// Ends the body.
    ///
    /// # Errors
    ///
    /// The body ends within a frame, or has none. An empty body counts as incomplete, since every
    /// xorb begins with nothing: a sender that broke off before the first byte is told the same as
    /// one that broke off after it.
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
        // The header was judged when its last byte came; one that cannot be read now is not
        // complete.
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

    /// Does the work of [`Splitter::next_frame`]; the frame is fetched with [`Splitter::frame`].
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
            match self.judge(bytes)? {
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

    /// A frame that straddles pieces: completes the header, then the payload.
    fn advance_in_buffer<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Cut<'a>>, XorbError> {
        self.fill(HEADER_LEN, input);
        let Some(bytes) = self.buffer.first_chunk() else { return Ok(None) };
        match self.judge(bytes)? {
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

    /// Says what the bytes at the place of the next header are, and whether what they announce is
    /// within the limits.
    fn judge(&self, bytes: &[u8; HEADER_LEN]) -> Result<Head, XorbError> {
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
        if !self.takes_expanded && payload_len > raw_len {
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

    /// Counts a complete frame.
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
    /// The bytes behind the header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or_default()
    }
}
