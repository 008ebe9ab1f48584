//! Makes a verified xorb of the body of a xorb: decompresses and hashes every chunk as it arrives.
//!
//! [`Verifier`] takes pieces of any size and returns verified frames, so that they can be written
//! while the rest is still in transit. [`verify`] is the same code for a complete body. A verifier
//! holds at most one frame, one raw chunk and its grouped form, 41 bytes per chunk, and at the end
//! the expected bytes of a footer: below 1.3 MiB for any body.
//!
//! It does not check that the xorb is the expected one: the caller compares [`VerifiedXorb::hash`].

use std::fmt;

use super::error::{XorbError, XorbErrorKind};
use super::footer::{FooterCheck, FooterError, Version};
use super::layout::LayoutError;
use super::split::{FooterStart, Frame, Splitter};
use super::verified::{Seen, VerifiedXorb};
use crate::compression::Decoder;
use crate::hash::ChunkHash;
use crate::limits::MAX_XORB_BODY_LEN;

/// A chunk that was decompressed and hashed. Whether it is the right chunk of the xorb is known
/// only with the hash of the xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedChunk<'a> {
    /// Its frame (header and payload), and the place of the frame in the body.
    pub frame: Frame<'a>,
    /// Its raw bytes.
    pub raw: &'a [u8],
    /// The hash of the raw bytes.
    pub hash: ChunkHash,
}

/// Verifies a body that arrives in pieces of any size.
pub struct Verifier {
    max_len: u64,
    splitter: Splitter,
    decoder: Decoder,
    seen: Seen,
    /// Once a footer has begun: the verified xorb of the chunks before it, and the check of the
    /// footer.
    footer: Option<(VerifiedXorb, FooterCheck)>,
    /// The first error. It is returned again by every later call.
    failed: Option<XorbError>,
}

impl Verifier {
    /// A verifier for a body of `max_len` bytes at most, footer included.
    #[must_use]
    pub fn new(max_len: u64) -> Self {
        Self::with_splitter(max_len, Splitter::new(max_len))
    }

    /// A verifier for the body of an upload, which is stricter: see [`Splitter::for_upload`].
    #[must_use]
    pub fn for_upload(max_len: u64) -> Self {
        Self::with_splitter(max_len, Splitter::for_upload(max_len))
    }

    fn with_splitter(max_len: u64, splitter: Splitter) -> Self {
        Self { max_len, splitter, decoder: Decoder::new(), seen: Seen::default(), footer: None, failed: None }
    }

    /// The next frame, header and payload, verified; `piece` is moved past the consumed bytes.
    ///
    /// `None` when the piece is used up. The frames in order are the xorb as it is stored: a footer
    /// is checked and not returned.
    ///
    /// # Errors
    ///
    /// The bytes are not those of a xorb, or exceed a limit. Every later call returns the same
    /// error.
    pub fn next_frame<'a, 'p: 'a>(&'a mut self, piece: &mut &'p [u8]) -> Result<Option<&'a [u8]>, XorbError> {
        Ok(self.next_chunk(piece)?.map(|chunk| chunk.frame.bytes))
    }

    /// As [`Verifier::next_frame`], but also returns the chunk's raw bytes and its hash.
    ///
    /// # Errors
    ///
    /// Those of [`Verifier::next_frame`].
    pub fn next_chunk<'a, 'p: 'a>(&'a mut self, piece: &mut &'p [u8]) -> Result<Option<VerifiedChunk<'a>>, XorbError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.footer.is_some() {
            let result = self.push_footer(piece);
            return self.remember_error(result).map(|()| None);
        }
        let result = self.splitter.advance(piece);
        let Some(cut) = self.remember_error(result)? else {
            if let Some(start) = self.splitter.footer() {
                let result = self.begin_footer(start).and_then(|()| self.push_footer(piece));
                self.remember_error(result)?;
            }
            return Ok(None);
        };
        let frame = self.splitter.frame(cut);
        match accept(&mut self.decoder, &mut self.seen, &frame) {
            Ok((raw, hash)) => Ok(Some(VerifiedChunk { frame, raw, hash })),
            Err(error) => {
                self.failed = Some(error);
                Err(error)
            }
        }
    }

    /// Frees the memory that decompression took, so that a verifier does not hold it while it waits
    /// for its next piece. The next compressed frame allocates it again.
    pub fn release_scratch(&mut self) {
        self.decoder = Decoder::new();
    }

    /// Ends the body.
    ///
    /// # Errors
    ///
    /// There was an error before, or the body ends within a chunk or a footer, or has no chunk.
    pub fn finish(self) -> Result<VerifiedXorb, XorbError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let Some((xorb, check)) = self.footer else {
            self.splitter.finish()?;
            return self.seen.seal().ok_or(NO_CHUNKS);
        };
        let (have, expected) = check.progress();
        if have == expected {
            return Ok(xorb);
        }
        let offset = xorb.layout().serialized_len().saturating_add(have);
        Err(XorbError { offset, chunk: None, kind: XorbErrorKind::FooterIncomplete { have, expected } })
    }

    /// To be called when a footer begins: makes the verified xorb of the chunks before it, and
    /// prepares the check of the footer.
    fn begin_footer(&mut self, start: FooterStart) -> Result<(), XorbError> {
        let FooterStart { offset, version } = start;
        let Some(xorb) = std::mem::take(&mut self.seen).seal() else {
            return Err(NO_CHUNKS);
        };
        let Some(version) = Version::from_byte(version) else {
            // The version is the byte after the seven bytes of the tag.
            return Err(footer_error(offset, (7, FooterError::Version { found: version })));
        };
        if offset.saturating_add(version.footer_len(xorb.layout().chunk_count())) > self.max_len {
            let kind = XorbErrorKind::BodyTooLong { limit: self.max_len };
            return Err(XorbError { offset, chunk: None, kind });
        }
        let check = FooterCheck::new(version, &xorb);
        self.footer = Some((xorb, check));
        Ok(())
    }

    /// Compares the rest of the piece with the next bytes of the expected footer.
    fn push_footer(&mut self, piece: &mut &[u8]) -> Result<(), XorbError> {
        let Some((xorb, check)) = &mut self.footer else { return Ok(()) };
        let result = check.push(piece);
        *piece = &[];
        result.map_err(|error| footer_error(xorb.layout().serialized_len(), error))
    }

    /// Remembers an error in `failed`. Returns `result` as it is.
    fn remember_error<T>(&mut self, result: Result<T, XorbError>) -> Result<T, XorbError> {
        if let Err(error) = &result {
            self.failed = Some(*error);
        }
        result
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("splitter", &self.splitter)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// The error for a body that has a footer and no chunk before it.
const NO_CHUNKS: XorbError = XorbError { offset: 0, chunk: None, kind: XorbErrorKind::NoChunks };

/// The error of a footer that begins at `footer_offset`. The inner offset is from the start of the
/// footer.
fn footer_error(footer_offset: u64, (offset, error): (u64, FooterError)) -> XorbError {
    let offset = footer_offset.saturating_add(offset);
    XorbError { offset, chunk: None, kind: XorbErrorKind::Footer(error) }
}

/// Decompresses a frame and adds its chunk to `seen`.
fn accept<'a>(
    decoder: &'a mut Decoder,
    seen: &mut Seen,
    frame: &Frame<'a>,
) -> Result<(&'a [u8], ChunkHash), XorbError> {
    let error = |offset, kind| XorbError { offset, chunk: Some(frame.index), kind };
    let raw = decoder.decode(&frame.header, frame.payload()).map_err(|kind| {
        let header_len = frame.bytes.len().saturating_sub(frame.payload().len()) as u64;
        let offset = frame.offset.saturating_add(header_len).saturating_add(kind.payload_offset().into());
        error(offset, XorbErrorKind::Payload(kind))
    })?;
    // The splitter has enforced the limits already, so the layout refuses nothing here.
    let pushed = seen.push(raw, frame.header.record_len(), frame.header.scheme);
    let hash = pushed.map_err(|kind| match kind {
        LayoutError::TooManyChunks => error(frame.offset, XorbErrorKind::TooManyChunks),
        _ => error(frame.offset, XorbErrorKind::RawTooLong),
    })?;
    Ok((raw, hash))
}

/// Verifies a complete body of at most [`MAX_XORB_BODY_LEN`] bytes.
///
/// # Errors
///
/// The bytes are not those of a xorb, or go beyond a limit.
pub fn verify(bytes: &[u8]) -> Result<VerifiedXorb, XorbError> {
    let mut verifier = Verifier::new(MAX_XORB_BODY_LEN);
    let mut rest = bytes;
    while verifier.next_frame(&mut rest)?.is_some() {}
    verifier.finish()
}
