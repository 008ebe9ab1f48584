//! The bytes of a file, for clients without knowledge of chunks.
//!
//! A file is read window by window: the next terms of its plan, each run of chunks decoded and
//! proven as for [`Form::Raw`](super::Form::Raw). One window and one piece bound the memory,
//! whatever the file's length.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use futures_util::stream::{StreamExt, TryStreamExt, try_unfold};

use super::Cas;
use super::access::Claims;
use super::contents::Contents;
use super::download::{ReadStream, StoredXorb};
use super::error::{ReadError, StoreError};
use super::files::reader;
use super::reconstruct::{FileTerm, Inconsistency, PlanError, place_terms, select};
use crate::format::shard::Term;
use crate::format::{ByteRange, ChunkRange, FileHash};
use crate::index::Reader;

/// Maximum chunks of a window, unless its first term has more: 300 KiB of hashes and lengths.
const MAX_CHUNK_COUNT: u64 = 8192;

/// Maximum xorbs of a window: as many as the index reads with one query.
const MAX_XORB_COUNT: usize = 16;

/// A file that one reader may read.
#[derive(Clone, Debug)]
pub struct RegisteredFile {
    /// Which file.
    pub hash: FileHash,
    /// Its bytes.
    pub len: u64,
    reader: Reader,
}

impl Cas {
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

    /// Streams bytes of a file. The range must lie within the file.
    ///
    /// # Errors
    ///
    /// The first chunks cannot be read; later failures end the stream.
    pub async fn read_file(&self, file: RegisteredFile, bytes: ByteRange) -> Result<ReadStream, ReadError> {
        let mut reading = Reading {
            cas: self.clone(),
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

/// A file that is being read.
struct Reading {
    cas: Cas,
    file: RegisteredFile,
    /// The next byte of the file to return.
    next: u64,
    /// The byte of the file after the last one to return.
    end: u64,
    /// Terms of the window, from the one that has `next` on.
    terms: VecDeque<FileTerm>,
    /// Rows of the window's xorbs.
    contents: Contents,
    /// The run of chunks that is being read.
    run: Option<ReadStream>,
}

impl Reading {
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

    /// Opens the chunks that begin with the next byte.
    async fn open_run(&mut self) -> Result<ReadStream, ReadError> {
        if !self.terms.is_empty() {
            match self.open_terms().await {
                // A slow client may be many minutes behind the loaded terms. Since then compaction
                // may have moved the chunks, or an upload replaced the blob: load the terms again.
                Err(ReadError::Deleted { .. } | ReadError::Replaced { .. }) => {}
                opened => return opened,
            }
        }
        self.load_window().await?;
        self.open_terms().await
    }

    /// Queries the index for the terms from the next byte on.
    async fn load_window(&mut self) -> Result<(), ReadError> {
        let (file, next) = (self.file.hash, self.next);
        let inconsistent = |source| ReadError::Inconsistent { file, source };
        let gap = || inconsistent(Inconsistency::Gap { offset: next });
        let first = ByteRange::new(next, next.saturating_add(1));
        let row = self.cas.index.find_file(file, self.file.reader.clone(), first).await.map_err(StoreError::from)?;
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
        self.contents = self.cas.contents(std::mem::take(&mut self.contents), &asked).await?;
        self.terms = terms.iter().copied().collect();
        Ok(())
    }

    /// Opens the next terms that are one run of chunks of one xorb.
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
        let stored = self.cas.find(xorb).await?.filter(|_| self.contents.has(&xorb));
        let stored = stored.ok_or(ReadError::Deleted { hash: xorb })?;
        let bytes = self.bytes_of(&run, &stored).ok_or_else(inconsistent)?;
        let known = as_term(&run).and_then(|term| self.contents.chunks(&term)).ok_or_else(inconsistent)?;
        self.cas.read_proven(&stored, bytes, (chunks.start(), known.hashes)).await
    }

    /// The requested bytes of a run, in the raw xorb.
    fn bytes_of(&self, run: &FileTerm, stored: &StoredXorb) -> Option<ByteRange> {
        let raw = stored.layout().raw_range(run.chunks).filter(|raw| raw.byte_len() == run.place.byte_len())?;
        let in_xorb = |offset: u64| raw.start().checked_add(offset.checked_sub(run.place.start())?);
        ByteRange::new(in_xorb(self.next)?, in_xorb(run.place.end().min(self.end))?)
    }
}

/// The first of these terms, as many as a window may have.
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

/// Two terms as one, where the second continues with the next chunk of the same xorb.
fn joined(first: &FileTerm, second: &FileTerm) -> Option<FileTerm> {
    let follows = first.xorb == second.xorb
        && first.chunks.end() == second.chunks.start()
        && first.place.end() == second.place.start();
    let chunks = ChunkRange::new(first.chunks.start(), second.chunks.end()).filter(|_| follows)?;
    let place = ByteRange::new(first.place.start(), second.place.end())?;
    Some(FileTerm { xorb: first.xorb, chunks, place })
}

fn as_term(placed: &FileTerm) -> Option<Term> {
    let raw_len = u32::try_from(placed.place.byte_len()).ok()?;
    Some(Term { xorb: placed.xorb, raw_len, chunks: placed.chunks })
}
