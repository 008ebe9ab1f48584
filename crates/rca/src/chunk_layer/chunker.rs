//! Payload in, chunks out, in an order that a crash cannot hurt.

use std::io::SeekFrom;
use std::ops::Range;

use super::{Chunk, Layout, Tail, scan};
use crate::error::Error;
use crate::storage::Storage;

/// Appends to a chunk file, each append committed as a whole.
///
/// An append runs so; the *anchor* is the last committed chunk, or a new one if that is full:
///
/// 1. once per opening, if there is garbage: cut it off, sync. It may hold what looks like a
///    chunk, and an append that ends exactly at a chunk's limit would bring that to life (B3);
/// 2. if the anchor is new, its header with size 0, for it is *not* behind a chunk that says "I am
///    the last" (B2);
/// 3. payload, and the final headers of further chunks;
/// 4. sync: everything but the anchor's header is durable;
/// 5. the anchor's header, one write of 10 to 16 bytes;
/// 6. sync, then `Ok`.
///
/// Before step 5 the file says what it said before, plus garbage, whatever subset of the writes
/// has reached the disk. A failure anywhere poisons the `Chunker`.
#[derive(Debug)]
pub struct Chunker<S> {
    storage: S,
    layout: Layout,
    /// The last committed chunk.
    tail: Option<Chunk>,
    file_len: u64,
    /// To be written before anything else, each synced.
    patches: Vec<Patch>,
    poisoned: bool,
    /// Where the storage stands, if that is known.
    at: Option<u64>,
}

/// Bytes to put at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

impl<S: Storage> Chunker<S> {
    /// Opens a chunk file, empty ones included, by its headers. Writes nothing yet.
    ///
    /// It ignores garbage as the format defines it. A chunk that runs past the end of the file
    /// is refused: whether it is damage or a crash of another writer, only the owner of the
    /// metadata can tell.
    ///
    /// # Errors
    /// [`Error::BadOptions`] if `layout` is too small for its own metadata,
    /// [`Error::BadChunkSize`], [`Error::TruncatedChunk`], [`Error::Io`].
    pub fn open(mut storage: S, layout: Layout) -> Result<Self, Error> {
        if layout.first_field().limit().is_some_and(|limit| limit < layout.first_field().header_len_u64()) {
            return Err(Error::BadOptions("the first size field is too narrow for a header"));
        }
        let found = scan(&mut storage, layout)?;
        match (&found.tail, found.chunks.last()) {
            (Tail::BadSize(chunk), _) => return Err(chunk.bad_size().unwrap_or_else(|| chunk.truncated())),
            (Tail::PastEnd, Some(chunk)) => return Err(chunk.truncated()),
            _ => {}
        }
        Ok(Chunker::resume(storage, layout, &found.chunks, found.file_len, Vec::new()))
    }

    /// Goes on behind `chunks`; everything after them will be cut, after `patches` were applied.
    pub(crate) fn resume(storage: S, layout: Layout, chunks: &[Chunk], file_len: u64, patches: Vec<Patch>) -> Self {
        let tail = chunks.last().cloned();
        Chunker { storage, layout, tail, file_len, patches, poisoned: false, at: None }
    }

    /// Appends `payload` and makes `metadata` the metadata of the file. All or nothing, durable
    /// when `Ok`. An empty payload only replaces the metadata.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after any earlier error, [`Error::BadOptions`] if `metadata` has not the
    /// layout's length, [`Error::Io`].
    pub fn append(&mut self, payload: &[u8], metadata: &[u8]) -> Result<(), Error> {
        if metadata.len() != self.layout.metadata_len {
            return Err(Error::BadOptions("the metadata length differs from the layout's"));
        }
        let before = self.tail.as_ref().map_or_else(|| vec![0; metadata.len()], |tail| tail.metadata.clone());
        let mut append = self.begin(before)?;
        append.write(payload)?;
        append.commit(metadata)
    }

    /// Half-open end of the committed chunks, in bytes from the start of the file.
    pub fn committed_end(&self) -> u64 {
        self.tail.as_ref().map_or(0, Chunk::end)
    }

    /// Gives the storage back.
    pub fn into_storage(self) -> S {
        self.storage
    }

    /// Repairs a torn header and truncates garbage, so that readers of the storage find exactly the
    /// committed state.
    pub(crate) fn mend(&mut self) -> Result<(), Error> {
        drop(self.begin(Vec::new())?);
        self.poisoned = false;
        Ok(())
    }

    /// The storage, to be read between two appends.
    pub(crate) fn storage(&mut self) -> &mut S {
        self.at = None;
        &mut self.storage
    }

    /// Begins an append. The chunker is poisoned until it is committed.
    ///
    /// `before` is the metadata that belongs to the payload committed so far; a new chunk carries
    /// it while its size is 0, so that a header write torn apart can be told from damage.
    pub(crate) fn begin(&mut self, before: Vec<u8>) -> Result<Append<'_, S>, Error> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        self.poisoned = true;
        for patch in std::mem::take(&mut self.patches) {
            // One by one: only in this order every intermediate state can be repaired again.
            self.write_at(patch.offset, &patch.bytes)?;
            self.sync()?;
        }
        let end = self.committed_end();
        if self.file_len > end {
            self.storage.set_len(end).map_err(|source| Error::Io { op: "cut", offset: end, source })?;
            self.at = None;
            // Before any payload: if the cut were lost and the payload were not, a stale header
            // could stand in front of new bytes.
            self.sync()?;
            self.file_len = end;
        }
        let written = self.tail.iter().map(|tail| tail.end()..tail.end()).collect();
        Ok(Append { touched: self.tail.iter().cloned().collect(), written, before, chunker: self })
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let io = |source| Error::Io { op: "write", offset, source };
        if self.at != Some(offset) {
            self.storage.seek(SeekFrom::Start(offset)).map_err(io)?;
        }
        self.at = None;
        self.storage.write_all(bytes).map_err(io)?;
        let end = offset.checked_add(len_u64(bytes)).ok_or(Error::BlobTooLong { offset })?;
        self.at = Some(end);
        self.file_len = self.file_len.max(end);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        let io = |source| Error::Io { op: "sync", offset: 0, source };
        self.storage.flush().map_err(io)?;
        self.storage.sync().map_err(io)
    }
}

/// One append under way. Dropped without [`commit`](Append::commit) it leaves garbage behind the
/// committed end and a poisoned [`Chunker`].
#[derive(Debug)]
pub(crate) struct Append<'a, S> {
    chunker: &'a mut Chunker<S>,
    /// The tail before the append if there was one, then the chunks begun by it.
    touched: Vec<Chunk>,
    /// Of each touched chunk, the range of the file that this append has filled.
    written: Vec<Range<u64>>,
    before: Vec<u8>,
}

impl<S: Storage> Append<'_, S> {
    /// Appends payload.
    pub(crate) fn write(&mut self, mut payload: &[u8]) -> Result<(), Error> {
        while !payload.is_empty() {
            let room = match (self.touched.last(), self.written.last()) {
                (Some(chunk), Some(_)) => chunk.field.limit().unwrap_or(u64::MAX).saturating_sub(chunk.size),
                _ => 0,
            };
            if room == 0 {
                self.next_chunk()?;
                continue;
            }
            let len = payload.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let (now, later) = payload.split_at(len);
            let (Some(chunk), Some(written)) = (self.touched.last_mut(), self.written.last_mut()) else { continue };
            self.chunker.write_at(written.end, now)?;
            chunk.size = chunk.size.saturating_add(len_u64(now));
            written.end = chunk.end();
            payload = later;
        }
        Ok(())
    }

    /// Payload bytes of this append so far.
    pub(crate) fn len(&self) -> u64 {
        self.written.iter().map(|range| range.end - range.start).sum()
    }

    /// Offset in the file of the next payload byte, give or take a header.
    pub(crate) fn offset(&self) -> u64 {
        self.written.last().map_or(0, |range| range.end)
    }

    /// The ranges of the file that hold this append's payload from its byte `from` on.
    pub(crate) fn spans_from(&self, mut from: u64) -> Vec<Range<u64>> {
        let mut spans = Vec::new();
        for range in &self.written {
            let step = from.min(range.end - range.start);
            from -= step;
            spans.push(range.start + step..range.end);
        }
        spans
    }

    /// Replaces payload of this append, from its byte `from` on.
    pub(crate) fn overwrite(&mut self, from: u64, mut bytes: &[u8]) -> Result<(), Error> {
        for span in self.spans_from(from) {
            let len = usize::try_from(span.end - span.start).unwrap_or(usize::MAX).min(bytes.len());
            let (now, later) = bytes.split_at(len);
            if !now.is_empty() {
                self.chunker.write_at(span.start, now)?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// The storage, to read back what was written.
    pub(crate) fn storage(&mut self) -> &mut S {
        self.chunker.at = None;
        &mut self.chunker.storage
    }

    /// Makes the append part of the file; durable when `Ok`.
    pub(crate) fn commit(mut self, metadata: &[u8]) -> Result<(), Error> {
        if self.touched.is_empty() {
            self.next_chunk()?;
        }
        // The old tail is the anchor only if it has got payload, or if there was none to place.
        let untouched = self.written.first().is_some_and(|range| range.is_empty());
        let skip = usize::from(untouched && self.touched.len() > 1 && self.chunker.tail.is_some());
        for chunk in &mut self.touched[skip..] {
            chunk.metadata = metadata.to_vec();
        }
        let mut chunks = std::mem::take(&mut self.touched).into_iter().skip(skip);
        let anchor = chunks.next().expect("an append touches at least one chunk");
        let mut last = anchor.clone();
        for chunk in chunks {
            self.chunker.write_at(chunk.offset, &chunk.header())?;
            last = chunk;
        }
        self.chunker.sync()?;
        self.chunker.write_at(anchor.offset, &anchor.header())?;
        self.chunker.sync()?;
        self.chunker.tail = Some(last);
        self.chunker.poisoned = false;
        Ok(())
    }

    fn next_chunk(&mut self) -> Result<(), Error> {
        let (offset, field) = match self.touched.last() {
            Some(chunk) => (chunk.end(), chunk.field.next()),
            None => (0, self.chunker.layout.first_field()),
        };
        let mut chunk = Chunk { offset, field, size: 0, metadata: self.before.clone() };
        self.chunker.write_at(offset, &chunk.header())?;
        chunk.size = field.header_len_u64();
        self.written.push(chunk.end()..chunk.end());
        self.touched.push(chunk);
        Ok(())
    }
}

fn len_u64(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
