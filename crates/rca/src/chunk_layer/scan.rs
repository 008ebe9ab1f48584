//! The headers of a chunk file, and what follows the last chunk.

use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use super::{Chunk, Layout};
use crate::error::Error;

/// What the headers of a file say.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Chunks with a non-zero size, in order. There are at most eight: the width of the size field
    /// doubles from chunk to chunk, and a chunk whose field is wider than 64 bits is never full.
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) tail: Tail,
    pub(crate) file_len: u64,
}

/// What follows the chunks of a [`Scan`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// The chunks end here. What follows, if anything, is garbage: bytes after a chunk that is not
    /// full, a header of size 0, or fewer bytes than a header.
    End,
    /// Nothing: the last chunk of the list goes past the end of the file.
    PastEnd,
    /// A header whose size is below the length of the header. It is not in the list.
    BadSize(Chunk),
}

impl Scan {
    /// The file ranges of the payloads of `chunks`, up to the end of the file.
    pub(crate) fn spans(chunks: &[Chunk], file_len: u64) -> Vec<Range<u64>> {
        chunks.iter().map(|chunk| chunk.payload_start()..chunk.end().min(file_len)).collect()
    }
}

/// Reads the headers of a chunk file whose first byte is the source's position 0.
pub(crate) fn scan<S: Read + Seek + ?Sized>(source: &mut S, layout: Layout) -> Result<Scan, Error> {
    let io = |op, offset| move |source| Error::Io { op, offset, source };
    let file_len = source.seek(SeekFrom::End(0)).map_err(io("seek in", 0))?;
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut field = layout.first_field();
    loop {
        let offset = chunks.last().map_or(0, Chunk::end);
        let done = |chunks, tail| Ok(Scan { chunks, tail, file_len });
        if file_len - offset < field.header_len_u64() {
            return done(chunks, Tail::End);
        }
        let mut header = vec![0; field.header_len()];
        source.seek(SeekFrom::Start(offset)).map_err(io("seek in", offset))?;
        source.read_exact(&mut header).map_err(io("read", offset))?;
        let chunk = field.parse(offset, &header);
        if chunk.size == 0 {
            return done(chunks, Tail::End);
        }
        if chunk.bad_size().is_some() {
            return done(chunks, Tail::BadSize(chunk));
        }
        let (past, full) = (chunk.end() > file_len, chunk.is_full());
        field = field.next();
        chunks.push(chunk);
        if past {
            return done(chunks, Tail::PastEnd);
        }
        if !full {
            return done(chunks, Tail::End);
        }
    }
}
