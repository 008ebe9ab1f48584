//! Reads the payload of chunks, in one pass and without seeking. A seekable source can also skip
//! payload and return to a mark.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use super::spans::Payload;
use super::{Chunk, Field, Layout};
use crate::error::Error;
use crate::limits::STEP_LEN;

/// Reads the payload of a chunk file from any source, pipes included.
///
/// `source` must be at the first byte of the file. If a chunk goes past the end of the file, its
/// existing payload is returned first, then the error. After [`Error::Io`] the reader is unusable.
/// Memory: one buffer of 128 KiB and a header.
///
/// It may read while a writer appends: it finds a committed state if each header is read
/// atomically. Known systems read 16 bytes at a multiple of 0x8000 atomically.
#[derive(Debug)]
pub struct Unchunker<R> {
    source: BufReader<R>,
    /// Offset in the file of the next byte.
    pos: u64,
    state: State,
    /// The last chunk with a non-zero size.
    chunk: Option<Chunk>,
}

#[derive(Clone, Debug)]
enum State {
    Header(Field),
    Payload {
        left: u64,
    },
    Ended {
        garbage: bool,
    },
    /// An invalid header, retained to return the same error again.
    Bad(Chunk),
}

/// A position of an [`Unchunker`] that [`Unchunker::restore`] returns to.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pos: u64,
    state: State,
    chunk: Option<Chunk>,
}

impl<R: Read> Unchunker<R> {
    /// Starts at the first byte of a chunk file.
    pub fn new(source: R, layout: Layout) -> Self {
        Unchunker::with_buffer(source, layout, STEP_LEN)
    }

    /// As [`new`](Self::new), with this buffer size: a small one for a caller that skips most
    /// bytes.
    pub(crate) fn with_buffer(source: R, layout: Layout, buffer_len: usize) -> Self {
        Unchunker {
            source: BufReader::with_capacity(buffer_len, source),
            pos: 0,
            state: State::Header(layout.first_field()),
            chunk: None,
        }
    }

    /// Reads payload into `buf`: at least one byte, or 0 at the end (or if `buf` is empty).
    ///
    /// # Errors
    /// [`Error::BadChunkSize`] and [`Error::TruncatedChunk`], which every later call returns again;
    /// and [`Error::Io`].
    pub fn read_payload(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let want = u64::try_from(buf.len()).unwrap_or(u64::MAX);
        let bytes = self.fill(want)?;
        let len = bytes.len();
        buf[..len].copy_from_slice(bytes);
        self.consume(len);
        Ok(len)
    }

    /// Metadata of the chunk that is being read; after the end, that of the last chunk, which is
    /// the metadata of the file. `None` if there is no chunk.
    pub fn metadata(&self) -> Option<&[u8]> {
        self.chunk.as_ref().map(|chunk| chunk.metadata.as_slice())
    }

    /// Whether bytes follow the last chunk; `None` if the end was not reached without error.
    pub fn trailing_garbage(&self) -> Option<bool> {
        match self.state {
            State::Ended { garbage } => Some(garbage),
            _ => None,
        }
    }

    /// Offset in the file of the chunk that is being read or was read last, 0 if there is none.
    pub(crate) fn chunk_offset(&self) -> u64 {
        self.chunk.as_ref().map_or(0, |chunk| chunk.offset)
    }

    /// Reads headers until the next byte is a payload byte or the end is reached.
    fn advance(&mut self) -> Result<(), Error> {
        loop {
            match &self.state {
                State::Payload { left } if *left > 0 => return Ok(()),
                State::Payload { .. } => {
                    let next = self.chunk.as_ref().filter(|chunk| chunk.is_full()).map(|chunk| chunk.field.next());
                    self.state = match next {
                        Some(field) => State::Header(field),
                        None => State::Ended { garbage: !self.peek()?.is_empty() },
                    };
                }
                State::Header(field) => {
                    let field = *field;
                    self.state = self.header(field)?;
                }
                State::Ended { .. } => return Ok(()),
                State::Bad(chunk) => return Err(chunk.bad_size().unwrap_or_else(|| chunk.truncated())),
            }
        }
    }

    /// Reads a chunk header; returns the state after it.
    fn header(&mut self, field: Field) -> Result<State, Error> {
        let (offset, mut header) = (self.pos, Vec::with_capacity(field.header_len()));
        while header.len() < field.header_len() {
            let bytes = self.peek()?;
            if bytes.is_empty() {
                return Ok(State::Ended { garbage: !header.is_empty() });
            }
            let len = bytes.len().min(field.header_len() - header.len());
            header.extend_from_slice(&bytes[..len]);
            self.consume_buffered(len);
        }
        let chunk = field.parse(offset, &header);
        if chunk.size == 0 {
            return Ok(State::Ended { garbage: true });
        }
        if chunk.bad_size().is_some() {
            return Ok(State::Bad(chunk));
        }
        let left = chunk.size - field.header_len_u64();
        self.chunk = Some(chunk);
        Ok(State::Payload { left })
    }

    /// The buffered bytes of the source; empty only at its end.
    fn peek(&mut self) -> Result<&[u8], Error> {
        // The loop retries interrupted reads. The bytes are taken from `buffer` after it, because
        // the borrow checker does not accept a slice returned from within the loop.
        loop {
            match self.source.fill_buf() {
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Io { op: "read", offset: self.pos, source }),
            }
        }
        Ok(self.source.buffer())
    }

    /// Consumes `len` of the buffered bytes.
    fn consume_buffered(&mut self, len: usize) {
        self.source.consume(len);
        self.pos = self.pos.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
    }

    /// The current position, for [`restore`](Self::restore).
    pub(crate) fn mark(&self) -> Mark {
        Mark { pos: self.pos, state: self.state.clone(), chunk: self.chunk.clone() }
    }
}

impl<R: Read + Seek> Unchunker<R> {
    /// Seeks to `mark`. The file must begin at position 0 of the source.
    pub(crate) fn restore(&mut self, mark: &Mark) -> Result<(), Error> {
        let to = SeekFrom::Start(mark.pos);
        self.source.seek(to).map_err(|source| Error::Io { op: "seek in", offset: mark.pos, source })?;
        self.pos = mark.pos;
        self.state = mark.state.clone();
        self.chunk = mark.chunk.clone();
        Ok(())
    }

    /// Moves on by `len` bytes of payload without reading them; `false` if the chunks have fewer.
    ///
    /// A seek past the end of a file succeeds, so the caller must check with [`reach`](Self::reach)
    /// that the file has these bytes.
    pub(crate) fn skip(&mut self, mut len: u64) -> Result<bool, Error> {
        while len > 0 {
            self.advance()?;
            let State::Payload { left } = &mut self.state else { return Ok(false) };
            // The distance of a seek is a signed number, so long ones are split.
            let step = len.min(*left).min(u64::from(u32::MAX));
            let by = i64::try_from(step).expect("32 bits fit");
            self.source.seek_relative(by).map_err(|source| Error::Io { op: "seek in", offset: self.pos, source })?;
            *left -= step;
            self.pos = self.pos.saturating_add(step);
            len -= step;
        }
        Ok(true)
    }

    /// The same reader at the same place, with a buffer of another length.
    pub(crate) fn rebuffered(self, buffer_len: usize) -> Result<Self, Error> {
        let Unchunker { source, pos, state, chunk } = self;
        let mut source = BufReader::with_capacity(buffer_len, source.into_inner());
        source.seek(SeekFrom::Start(pos)).map_err(|source| Error::Io { op: "seek in", offset: pos, source })?;
        Ok(Unchunker { source, pos, state, chunk })
    }

    /// The offset in the file of the next byte, and the error to return if the file is shorter.
    pub(crate) fn reach(&self) -> (u64, Option<Error>) {
        (self.pos, self.chunk.as_ref().map(Chunk::truncated))
    }

    /// Bytes of the file.
    pub(crate) fn file_len(&mut self) -> Result<u64, Error> {
        let io = |source| Error::Io { op: "seek in", offset: 0, source };
        let len = self.source.seek(SeekFrom::End(0)).map_err(io)?;
        self.source.seek(SeekFrom::Start(self.pos)).map_err(io)?;
        Ok(len)
    }
}

impl<R: Read> Payload for Unchunker<R> {
    fn fill(&mut self, want: u64) -> Result<&[u8], Error> {
        if want == 0 {
            return Ok(&[]);
        }
        self.advance()?;
        let State::Payload { left } = self.state else {
            return Ok(&[]);
        };
        let want = usize::try_from(want.min(left)).unwrap_or(usize::MAX);
        if self.peek()?.is_empty() {
            let error = self.chunk.as_ref().map(Chunk::truncated);
            return Err(error.expect("payload is only expected in a chunk"));
        }
        let bytes = self.source.buffer();
        Ok(&bytes[..want.min(bytes.len())])
    }

    fn consume(&mut self, len: usize) {
        self.consume_buffered(len);
        if let State::Payload { left } = &mut self.state {
            *left = left.saturating_sub(u64::try_from(len).unwrap_or(u64::MAX));
        }
    }

    fn offset(&self) -> u64 {
        // At the end of a full chunk the next payload byte follows a header that was not read yet.
        match (&self.state, &self.chunk) {
            (State::Payload { left: 0 }, Some(chunk)) if chunk.is_full() => {
                chunk.end().saturating_add(chunk.field.next().header_len_u64())
            }
            (State::Header(field), _) => self.pos.saturating_add(field.header_len_u64()),
            _ => self.pos,
        }
    }
}

/// The same as [`read_payload`](Unchunker::read_payload), with the [`Error`] inside the
/// [`io::Error`].
impl<R: Read> Read for Unchunker<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_payload(buf)?)
    }
}
