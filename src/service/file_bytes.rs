//! Streams the bytes of a file, for clients that do not know chunks.
//!
//! A file is read window by window. A *window* is some of the next terms of the file, with the
//! hashes of their chunks. A *run* is consecutive terms in it that name consecutive chunks of one
//! xorb. Each run is read and decoded with one stream, and its chunks are compared with their
//! hashes. Only one window and one piece are in memory, whatever the length of the file.
//!
//! A stream returns exactly the requested bytes or ends with an error.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{StreamExt, TryStreamExt, try_unfold};

use super::access::Claims;
use super::contents::Contents;
use super::download::{ReadStream, StoredXorb};
use super::error::{ReadError, StoreError};
use super::reconstruct::{FileTerm, Inconsistency, PlanError, place_terms, select};
use super::scope::reader;
use super::{Server, Store};
use crate::format::shard::{Sha256, Term};
use crate::format::{ByteRange, ChunkRange, FileHash};
use crate::index::Reader;

/// Maximum number of chunks that the terms of a window name. A single term never names more. Memory
/// is bounded by `MAX_XORB_COUNT` whole xorbs, whose hashes and lengths take 4.5 MiB.
const MAX_CHUNK_COUNT: u64 = 8192;

/// Maximum number of xorbs of a window: as many as the index reads with one query.
const MAX_XORB_COUNT: usize = 16;

/// A file, and the reader that may read it.
#[derive(Clone, Debug)]
pub struct RegisteredFile {
    /// The hash of the file.
    pub hash: FileHash,
    /// Length of the file in bytes.
    pub len: u64,
    reader: Reader,
}

impl Server {
    /// The file, if the holder of these claims may read it. The empty file always exists.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub async fn find_file(&self, claims: &Claims, file: FileHash) -> Result<Option<RegisteredFile>, StoreError> {
        let empty = (file == FileHash::EMPTY).then_some(0);
        let len = self.file_len(claims, file).await?.or(empty);
        Ok(len.map(|len| RegisteredFile { hash: file, len, reader: reader(claims) }))
    }

    /// The file with this sha256, if the holder of these claims may read it and the sha256 is
    /// verified or claimed by the repository.
    ///
    /// # Errors
    ///
    /// The index does not respond.
    pub(super) async fn find_file_by_sha256(
        &self,
        claims: &Claims,
        sha256: Sha256,
    ) -> Result<Option<RegisteredFile>, StoreError> {
        let reader = reader(claims);
        let known = self.store.index.find_sha256(sha256, reader.clone()).await?;
        Ok(known.map(|known| RegisteredFile { hash: known.file, len: known.raw_len, reader }))
    }

    /// Streams bytes of a file. The range must lie within the file.
    ///
    /// # Errors
    ///
    /// The first run cannot be opened. Later failures end the stream with an error.
    pub async fn read_file(&self, file: RegisteredFile, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        let mut reading = Reading {
            store: Arc::clone(&self.store),
            file,
            next: bytes.start(),
            end: bytes.end(),
            terms: VecDeque::new(),
            contents: Contents::default(),
            run: None,
        };
        reading.run = Some(Box::pin(reading.open_run()).await?);
        let stream = try_unfold(reading, |mut reading| async move {
            let piece = reading.next_piece().await?;
            Ok(piece.map(|piece| (piece, reading)))
        });
        Ok(stream.boxed())
    }
}

/// The state of a stream.
struct Reading {
    store: Arc<Store>,
    file: RegisteredFile,
    /// The offset in the file of the next byte to return.
    next: u64,
    /// The offset in the file after the last byte to return.
    end: u64,
    /// The terms of the window that are not in a run yet.
    terms: VecDeque<FileTerm>,
    /// The chunks of the window's terms.
    contents: Contents,
    /// The stream of the current run.
    run: Option<ReadStream>,
}

impl Reading {
    /// The next bytes; `None` at the end of the requested range.
    async fn next_piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        while self.next < self.end {
            let mut run = match self.run.take() {
                Some(run) => run,
                None => Box::pin(self.open_run()).await?,
            };
            if let Some(piece) = run.try_next().await? {
                self.next = self.next.saturating_add(piece.len() as u64);
                self.run = Some(run);
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// Opens the run that has the next byte. Loads the next window if the current one is at its
    /// end.
    async fn open_run(&mut self) -> Result<ReadStream, ReadError> {
        if !self.terms.is_empty() {
            match self.open_terms().await {
                // A slow client may need many minutes to get from one run to the next. Meanwhile
                // compaction may have moved the chunks to another xorb, or an upload may have
                // replaced the blob. So the window is loaded again.
                Err(ReadError::Deleted { .. } | ReadError::Replaced { .. }) => {}
                opened => return opened,
            }
        }
        self.load_window().await?;
        self.open_terms().await
    }

    /// Loads the window that begins at the next byte from the index.
    async fn load_window(&mut self) -> Result<(), ReadError> {
        let (file, next) = (self.file.hash, self.next);
        let inconsistent = |source| ReadError::Inconsistent { file, source };
        let gap = || inconsistent(Inconsistency::Gap { offset: next });
        // The row of terms that has the next byte. The window is a part of this row.
        let first = ByteRange::new(next, next.saturating_add(1));
        let row = self.store.index.find_file(file, self.file.reader.clone(), first).await.map_err(StoreError::from)?;
        let row = row.ok_or(ReadError::Removed { file })?;
        let placed = place_terms(row.terms_start, &row.terms).ok_or_else(gap)?;
        let end = placed.last().map_or(next, |term| term.place.end()).min(self.end);
        let range = ByteRange::new(next, end).ok_or_else(gap)?;
        let selection = select(&placed, row.raw_len, Some(range)).map_err(|error| match error {
            PlanError::PastEnd { .. } => gap(),
            PlanError::Inconsistent(source) => inconsistent(source),
        })?;
        let terms = window(selection.terms());
        let asked: Vec<Term> = terms.iter().filter_map(as_term).collect();
        self.contents = self.store.contents(std::mem::take(&mut self.contents), &asked).await?;
        self.terms = terms.iter().copied().collect();
        Ok(())
    }

    /// Takes the next run from the window and opens it.
    async fn open_terms(&mut self) -> Result<ReadStream, ReadError> {
        let file = self.file.hash;
        let gap = ReadError::Inconsistent { file, source: Inconsistency::Gap { offset: self.next } };
        let mut run = self.terms.pop_front().ok_or(gap)?;
        while let Some(longer) = self.terms.front().and_then(|next| joined(&run, next)) {
            self.terms.pop_front();
            run = longer;
        }
        let FileTerm { xorb, chunks, place } = run;
        let inconsistent = || {
            let source = Inconsistency::Term { xorb, chunks, term_len: place.byte_len() };
            ReadError::Inconsistent { file, source }
        };
        // Without contents the xorb was deleted when the window was loaded, even if it was uploaded
        // again since. The error makes the caller load the window again.
        let stored = self.store.find(xorb).await?.filter(|_| self.contents.has(&xorb));
        let stored = stored.ok_or(ReadError::Deleted { hash: xorb })?;
        let bytes = self.bytes_of(&run, &stored).ok_or_else(inconsistent)?;
        let known = as_term(&run).and_then(|term| self.contents.chunks(&term)).ok_or_else(inconsistent)?;
        self.store.read_proven(&stored, bytes, (chunks.start(), known.hashes)).await
    }

    /// The requested bytes of a run, as a range of the raw bytes of its xorb. `None` if the layout
    /// of the xorb contradicts the terms of the run.
    fn bytes_of(&self, run: &FileTerm, stored: &StoredXorb) -> Option<ByteRange> {
        let raw = stored.layout().raw_range(run.chunks).filter(|raw| raw.byte_len() == run.place.byte_len())?;
        let in_xorb = |offset: u64| raw.start().checked_add(offset.checked_sub(run.place.start())?);
        ByteRange::new(in_xorb(self.next)?, in_xorb(run.place.end().min(self.end))?)
    }
}

/// As many of these terms, from the first on, as are within the limits of a window; at least one.
fn window(terms: &[FileTerm]) -> &[FileTerm] {
    let (mut xorbs, mut chunk_count) = (HashSet::new(), 0_u64);
    let fits = |term: &&FileTerm| {
        xorbs.insert(term.xorb);
        chunk_count = chunk_count.saturating_add(term.chunks.count().into());
        xorbs.len() <= MAX_XORB_COUNT && chunk_count <= MAX_CHUNK_COUNT
    };
    let count = terms.iter().take_while(fits).count().max(1);
    terms.get(..count).unwrap_or_default()
}

/// Two terms as one term; `None` if the second one does not continue with the next chunk of the
/// same xorb.
fn joined(first: &FileTerm, second: &FileTerm) -> Option<FileTerm> {
    let follows = first.xorb == second.xorb
        && first.chunks.end() == second.chunks.start()
        && first.place.end() == second.place.start();
    let chunks = ChunkRange::new(first.chunks.start(), second.chunks.end()).filter(|_| follows)?;
    let place = ByteRange::new(first.place.start(), second.place.end())?;
    Some(FileTerm { xorb: first.xorb, chunks, place })
}

/// A term without its position in the file.
fn as_term(placed: &FileTerm) -> Option<Term> {
    let raw_len = u32::try_from(placed.place.byte_len()).ok()?;
    Some(Term { xorb: placed.xorb, raw_len, chunks: placed.chunks })
}
