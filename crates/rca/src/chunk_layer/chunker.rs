//! Writes payload into chunks, in an order that is safe against a crash. "B2" and "B3" are bugs of
//! the reference implementation that this order avoids (`docs/spec/rca-notes.md`).

use std::io::SeekFrom;
use std::ops::Range;

use super::{Chunk, Layout, Tail, scan};
use crate::error::Error;
use crate::storage::Storage;

/// Appends to a chunk file. Each append is committed as a whole.
///
/// The *anchor* is the chunk whose header write commits an append: the last committed chunk, or a
/// new one if that chunk is full or there is none. An append takes these steps:
///
/// 1. In the first append after opening, if there is garbage: truncate it and sync. Garbage may
///    look like a chunk, and an append that ends exactly at a chunk's limit would make it part of
///    the file (B3).
/// 2. If the anchor is new: write its header with size 0. The chunk before it is full, so a reader
///    would take any other size there for a chunk (B2).
/// 3. Write the payload, and the final headers of all chunks after the anchor.
/// 4. Sync: now everything but the anchor's final header is durable.
/// 5. Write the anchor's final header, in one write of 10 to 16 bytes.
/// 6. Sync, then return `Ok`.
///
/// A crash before step 5 leaves the old contents plus garbage, whatever subset of the writes has
/// reached the disk. After any failure the `Chunker` refuses further appends.
#[derive(Debug)]
pub struct Chunker<S> {
    storage: S,
    layout: Layout,
    /// The last committed chunk.
    tail: Option<Chunk>,
    file_len: u64,
    /// The repair of a torn header. Each patch is written and synced before anything else is
    /// written.
    patches: Vec<Patch>,
    /// Whether an append has begun and was not committed.
    poisoned: bool,
    /// The current position of the storage; `None` if unknown.
    at: Option<u64>,
}

/// Bytes to write at an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

impl<S: Storage> Chunker<S> {
    /// Opens a chunk file, which may be empty. Reads only its headers, and writes nothing yet.
    ///
    /// Garbage is not an error. A chunk that goes past the end of the file is refused, because it
    /// may be damage, or left by a crash of another writer. To tell which, one must check the hash
    /// in the metadata, and this layer does not know that the metadata is a hash.
    ///
    /// # Errors
    /// [`Error::BadOptions`] if a chunk of this `layout` is too small for its own header,
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

    /// A chunker that continues after `chunks`. The first append applies `patches` and truncates
    /// everything after `chunks`.
    pub(crate) fn resume(storage: S, layout: Layout, chunks: &[Chunk], file_len: u64, patches: Vec<Patch>) -> Self {
        let tail = chunks.last().cloned();
        Chunker { storage, layout, tail, file_len, patches, poisoned: false, at: None }
    }

    /// Appends `payload` and makes `metadata` the metadata of the file. After `Ok` both are
    /// durable; after an error readers find both or neither. An empty payload only replaces the
    /// metadata.
    ///
    /// # Errors
    /// [`Error::BadOptions`] if `metadata` does not have the length that the layout states; then
    /// nothing has changed. [`Error::Io`]; after it, [`Error::Poisoned`] for every append.
    pub fn append(&mut self, payload: &[u8], metadata: &[u8]) -> Result<(), Error> {
        if metadata.len() != self.layout.metadata_len {
            return Err(Error::BadOptions("the metadata length differs from the layout's"));
        }
        let before = self.tail.as_ref().map_or_else(|| vec![0; metadata.len()], |tail| tail.metadata.clone());
        let mut append = self.begin(before)?;
        append.write(payload)?;
        append.commit(metadata)
    }

    /// Offset in the file after the last committed chunk.
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

    /// The storage, for reading between two appends.
    pub(crate) fn storage(&mut self) -> &mut S {
        self.at = None;
        &mut self.storage
    }

    /// Begins an append. The chunker is poisoned until the append is committed.
    ///
    /// `before` is the metadata of the payload committed so far. It is the metadata of a new chunk
    /// while the size of this chunk is 0, so that a torn header write can be distinguished from
    /// damage.
    pub(crate) fn begin(&mut self, before: Vec<u8>) -> Result<Append<'_, S>, Error> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        self.poisoned = true;
        for patch in std::mem::take(&mut self.patches) {
            // Each patch is synced alone, because only then every intermediate state can be
            // repaired.
            self.write_at(patch.offset, &patch.bytes)?;
            self.sync()?;
        }
        let end = self.committed_end();
        if self.file_len > end {
            self.storage.set_len(end).map_err(|source| Error::Io { op: "cut", offset: end, source })?;
            self.at = None;
            // The truncation must be durable before any payload: if a crash lost the truncation but
            // not the payload, an old header could precede new bytes.
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

/// An append in progress. If it is dropped without [`commit`](Append::commit), garbage remains
/// after the committed end, and the [`Chunker`] refuses further appends.
#[derive(Debug)]
pub(crate) struct Append<'a, S> {
    chunker: &'a mut Chunker<S>,
    /// The last chunk before the append, if there was one, then the chunks that the append has
    /// begun.
    touched: Vec<Chunk>,
    /// For each touched chunk, the range of the file that the payload of this append has filled.
    written: Vec<Range<u64>>,
    /// The metadata of the payload committed before: see [`Chunker::begin`].
    before: Vec<u8>,
}

impl<S: Storage> Append<'_, S> {
    /// Writes payload after what the file has, and begins new chunks as needed.
    pub(crate) fn write(&mut self, mut payload: &[u8]) -> Result<(), Error> {
        while !payload.is_empty() {
            let space_left = match (self.touched.last(), self.written.last()) {
                (Some(chunk), Some(_)) => chunk.field.limit().unwrap_or(u64::MAX).saturating_sub(chunk.size),
                _ => 0,
            };
            if space_left == 0 {
                self.next_chunk()?;
                continue;
            }
            let len = payload.len().min(usize::try_from(space_left).unwrap_or(usize::MAX));
            let (fitting, remaining) = payload.split_at(len);
            let (Some(chunk), Some(written)) = (self.touched.last_mut(), self.written.last_mut()) else { continue };
            self.chunker.write_at(written.end, fitting)?;
            chunk.size = chunk.size.saturating_add(len_u64(fitting));
            written.end = chunk.end();
            payload = remaining;
        }
        Ok(())
    }

    /// Payload bytes of this append so far.
    pub(crate) fn len(&self) -> u64 {
        self.written.iter().map(|range| range.end - range.start).sum()
    }

    /// Offset in the file of the next payload byte, or if that needs a new chunk, of the header
    /// before it.
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

    /// Replaces payload of this append by `bytes`, from its byte `from` on.
    pub(crate) fn overwrite(&mut self, from: u64, mut bytes: &[u8]) -> Result<(), Error> {
        for span in self.spans_from(from) {
            let len = usize::try_from(span.end - span.start).unwrap_or(usize::MAX).min(bytes.len());
            let (fitting, remaining) = bytes.split_at(len);
            if !fitting.is_empty() {
                self.chunker.write_at(span.start, fitting)?;
            }
            bytes = remaining;
        }
        Ok(())
    }

    /// The storage, for reading back what this append has written.
    pub(crate) fn storage(&mut self) -> &mut S {
        self.chunker.at = None;
        &mut self.chunker.storage
    }

    /// Makes the append part of the file; durable when `Ok`.
    pub(crate) fn commit(mut self, metadata: &[u8]) -> Result<(), Error> {
        if self.touched.is_empty() {
            self.next_chunk()?;
        }
        // The old tail is the anchor if it received payload, or if there was no payload at all.
        // Otherwise it was full, so its header stays as it is.
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

    /// Begins a new chunk: writes its header with size 0.
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
