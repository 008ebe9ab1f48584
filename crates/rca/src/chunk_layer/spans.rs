//! Reads payload from known byte ranges (*spans*) of a file. The survey and the repair use this,
//! and a writer that reads a long blob back.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

use crate::error::Error;
use crate::limits::STEP_LEN;

/// A source of payload bytes of chunks that also knows where in the file they are.
pub(crate) trait Payload {
    /// The next bytes, at least one and at most `want`, without consuming them. An empty slice at
    /// the end or if `want` is 0.
    fn fill(&mut self, want: u64) -> Result<&[u8], Error>;

    /// Consumes `len` of the bytes that `fill` has returned.
    fn consume(&mut self, len: usize);

    /// Offset in the file of the next byte.
    fn offset(&self) -> u64;
}

/// Reads byte ranges of a file sequentially, as if they were one.
#[derive(Debug)]
pub(crate) struct SpanReader<'a, S: ?Sized> {
    source: BufReader<&'a mut S>,
    /// The spans that are not yet read, in reverse order, so that the next one is the last. None is
    /// empty.
    left: Vec<Range<u64>>,
    /// Offset in the file of the next byte, or the end of the last span.
    pos: u64,
    /// The current position of `source`; `None` if unknown.
    at: Option<u64>,
}

impl<'a, S: Read + Seek + ?Sized> SpanReader<'a, S> {
    pub(crate) fn new(source: &'a mut S, spans: &[Range<u64>]) -> Self {
        SpanReader::with_buffer(source, spans, STEP_LEN)
    }

    /// A reader with this buffer size: a small one for a caller that skips most bytes.
    pub(crate) fn with_buffer(source: &'a mut S, spans: &[Range<u64>], buffer_len: usize) -> Self {
        let left: Vec<_> = spans.iter().filter(|span| !span.is_empty()).rev().cloned().collect();
        let pos = spans.first().map_or(0, |span| span.start);
        SpanReader { source: BufReader::with_capacity(buffer_len, source), left, pos, at: None }
    }

    /// Moves on by `len` bytes without reading them; `false` if there are fewer.
    pub(crate) fn skip(&mut self, mut len: u64) -> bool {
        while len > 0 {
            let Some(span) = self.left.last_mut() else { return false };
            let step = len.min(span.end - span.start);
            span.start += step;
            self.pos = span.start;
            len -= step;
            if span.is_empty() {
                self.left.pop();
            }
        }
        true
    }

    /// The spans that are left to be read.
    pub(crate) fn rest(&self) -> Vec<Range<u64>> {
        self.left.iter().rev().cloned().collect()
    }

    fn seek(&mut self, to: u64) -> io::Result<()> {
        match self.at {
            Some(at) if at == to => return Ok(()),
            // `seek_relative` does not drop the buffer if the target is in it, so skipping small
            // blobs is cheap.
            Some(at) if to > at && to - at < 1 << 32 => {
                self.source.seek_relative(i64::try_from(to - at).map_err(io::Error::other)?)?;
            }
            _ => {
                self.source.seek(SeekFrom::Start(to))?;
            }
        }
        self.at = Some(to);
        Ok(())
    }
}

impl<S: Read + Seek + ?Sized> Payload for SpanReader<'_, S> {
    fn fill(&mut self, want: u64) -> Result<&[u8], Error> {
        let Some(span) = self.left.last().cloned() else { return Ok(&[]) };
        let want = usize::try_from(want.min(span.end - span.start)).unwrap_or(usize::MAX);
        if want == 0 {
            return Ok(&[]);
        }
        self.pos = span.start;
        self.seek(span.start).map_err(|source| Error::Io { op: "seek in", offset: span.start, source })?;
        loop {
            match self.source.fill_buf() {
                Ok([]) => return Err(Error::TruncatedChunk { offset: span.start, size: span.end - span.start }),
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Io { op: "read", offset: span.start, source }),
            }
        }
        let bytes = self.source.buffer();
        Ok(&bytes[..want.min(bytes.len())])
    }

    fn consume(&mut self, len: usize) {
        let step = u64::try_from(len).unwrap_or(u64::MAX);
        self.source.consume(len);
        self.at = self.at.map(|at| at.saturating_add(step));
        self.skip(step);
    }

    fn offset(&self) -> u64 {
        self.left.last().map_or(self.pos, |span| span.start)
    }
}
