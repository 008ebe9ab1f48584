//! Walks through a file of any size with a bounded part of it in memory. Some hundred terms are
//! read at a time, with the index rows of their xorbs.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::Cas;
use super::error::StoreError;
use super::files::ReconstructError;
use super::reconstruct::Inconsistency;
use crate::format::limits::MAX_XORB_CHUNK_COUNT;
use crate::format::shard::{FileInfo, Term};
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::index::{IndexError, Reader, XorbContents, XorbPart};

/// Xorbs that are in memory at once, for each walk: 36 bytes per chunk, 36 KiB for a common one.
const MAX_XORB_COUNT: usize = 64;

/// Xorbs that are read with one query. Those of a run are read with two at once. Each is 41 KiB in
/// a place of its own, so a single query waits for the disk once for each.
const READ_XORB_COUNT: usize = 16;

/// More chunks than a xorb has: all of them.
const WHOLE: ChunkRange = ChunkRange::new(0, MAX_XORB_CHUNK_COUNT).expect("it is not empty");

/// Such queries at once: half of the read connections, since other requests read meanwhile.
const READ_COUNT: usize = 2;

/// Terms of a run, however few xorbs they name: a step of a worker.
const MAX_TERM_COUNT: usize = 4096;

/// Files of a run, however few terms they have: as many file hashes as chunks of one.
const MAX_FILE_COUNT: usize = 1024;

/// Chunks of the terms of a run: some 10 ms of hashing, after which others run.
const MAX_CHUNK_COUNT: u64 = 64 << 10;

/// The position in a file.
#[derive(Debug)]
pub(super) struct Walk {
    file: FileHash,
    reader: Reader,
    /// Byte of the file where the next term begins.
    next: u64,
    /// Bytes of the file, once known.
    file_len: Option<u64>,
}

impl Walk {
    /// At the start of the file.
    pub(super) const fn new(file: FileHash, reader: Reader) -> Self {
        Self { file, reader, next: 0, file_len: None }
    }
}

/// Rows of some xorbs: for each of them the chunks of some terms, and those between them.
#[derive(Debug, Default)]
pub(super) struct Contents {
    parts: HashMap<XorbHash, XorbPart>,
}

/// The chunks of a term.
#[derive(Debug)]
pub(super) struct TermChunks<'c> {
    pub(super) hashes: &'c [ChunkHash],
    /// Raw bytes of each.
    pub(super) raw_lens: &'c [u32],
}

impl Contents {
    /// Whether the xorb was found.
    pub(super) fn has(&self, xorb: &XorbHash) -> bool {
        self.parts.contains_key(xorb)
    }

    /// The chunks of a term; `None` where the xorb was not found, or does not have them with the
    /// stated length.
    pub(super) fn chunks(&self, term: &Term) -> Option<TermChunks<'_>> {
        let part = self.parts.get(&term.xorb)?;
        let place = |chunk: u32| usize::try_from(chunk.checked_sub(part.start)?).ok();
        let places = place(term.chunks.start())?..place(term.chunks.end())?;
        let (raw_lens, hashes) = (part.raw_lens.get(places.clone())?, part.chunk_hashes.get(places)?);
        let is_same = raw_lens.iter().copied().map(u64::from).sum::<u64>() == u64::from(term.raw_len);
        is_same.then_some(TermChunks { hashes, raw_lens })
    }
}

/// The chunks of a part; `None` where it has none.
fn range_of(part: &XorbPart) -> Option<ChunkRange> {
    let count = u32::try_from(part.raw_lens.len()).ok()?;
    ChunkRange::new(part.start, part.start.checked_add(count)?)
}

/// The shortest range of chunks that contains both.
fn hull(a: ChunkRange, b: ChunkRange) -> ChunkRange {
    let (start, end) = (a.start().min(b.start()), a.end().max(b.end()));
    ChunkRange::new(start, end).expect("neither is empty")
}

impl Cas {
    /// The next terms of a file; none at its end. The index stores terms of a file together, so
    /// that each is read once.
    pub(super) async fn next_terms(&self, walk: &mut Walk) -> Result<Vec<Term>, ReconstructError> {
        let (file, offset) = (walk.file, walk.next);
        // The empty file need not be registered.
        if walk.file_len == Some(offset) || file == FileHash::EMPTY {
            return Ok(Vec::new());
        }
        let next = ByteRange::new(offset, offset.saturating_add(1));
        let row = self.index.find_file(file, walk.reader.clone(), next).await.map_err(StoreError::from)?;
        let row = row.ok_or(ReconstructError::NotFound)?;
        if row.terms.is_empty() || row.terms_start != offset {
            return Err(ReconstructError::Inconsistent { file, source: Inconsistency::Gap { offset } });
        }
        walk.file_len = Some(row.raw_len);
        walk.next = row.terms.iter().fold(offset, |end, term| end.saturating_add(term.raw_len.into()));
        Ok(row.terms)
    }

    /// The rows of xorbs that these terms need; missing xorbs are left out. Rows in `before` are
    /// reused where they are enough, and dropped otherwise.
    pub(super) async fn contents(&self, before: Contents, terms: &[Term]) -> Result<Contents, StoreError> {
        let mut wanted: HashMap<XorbHash, ChunkRange> = HashMap::new();
        for term in terms {
            let range = wanted.entry(term.xorb).or_insert(term.chunks);
            *range = hull(*range, term.chunks);
        }
        let mut contents = before;
        contents.parts.retain(|xorb, part| {
            let (Some(range), Some(known)) = (wanted.get_mut(xorb), range_of(part)) else { return false };
            // The second time the whole row is requested. Small files are adjacent in a xorb, each
            // after the known part, and the index reads a whole row for any part.
            let is_enough = hull(*range, known) == known;
            if !is_enough {
                *range = WHOLE;
            }
            is_enough
        });
        wanted.retain(|xorb, _| !contents.has(xorb));
        let loaded = read(wanted.into_iter().collect(), |wanted| self.index.xorb_parts(wanted)).await?;
        contents.parts.extend(loaded.into_iter().map(|part| (part.xorb, part)));
        Ok(contents)
    }

    /// All chunks of these xorbs; missing ones are left out.
    pub(super) async fn whole_contents(
        &self,
        xorbs: impl Iterator<Item = XorbHash>,
    ) -> Result<HashMap<XorbHash, XorbContents>, StoreError> {
        let wanted: HashSet<XorbHash> = xorbs.collect();
        let loaded = read(wanted.into_iter().collect(), |wanted| self.index.xorb_contents(wanted)).await?;
        Ok(loaded.into_iter().map(|xorb| (xorb.hash, xorb)).collect())
    }
}

/// Queries some at a time.
async fn read<W: Clone, T, F: Future<Output = Result<Vec<T>, IndexError>>>(
    wanted: Vec<W>,
    ask: impl Fn(Vec<W>) -> F,
) -> Result<Vec<T>, IndexError> {
    let parts: Vec<Vec<W>> = wanted.chunks(READ_XORB_COUNT).map(<[_]>::to_vec).collect();
    let reads = stream::iter(parts.into_iter().map(ask));
    let loaded: Vec<Vec<T>> = reads.buffer_unordered(READ_COUNT).try_collect().await?;
    Ok(loaded.into_iter().flatten().collect())
}

/// Cuts terms into runs, each within the limits.
pub(super) fn runs(terms: &[Term]) -> impl Iterator<Item = &[Term]> {
    let mut rest = terms;
    std::iter::from_fn(move || {
        let (run, after) = rest.split_at_checked(run_count(rest))?;
        rest = after;
        (!run.is_empty()).then_some(run)
    })
}

/// How many of these files fit into one run. 0 where the first one has more terms than that.
pub(super) fn file_count(files: &[FileInfo]) -> usize {
    let (mut xorbs, mut term_count, mut chunk_count) = (HashSet::new(), 0_usize, 0_u64);
    let fits = |file: &&FileInfo| {
        term_count = term_count.saturating_add(file.terms.len());
        // Counting stops where the result is known: a file may have a million of them.
        for term in file.terms.iter().take(MAX_TERM_COUNT) {
            xorbs.insert(term.xorb);
            chunk_count = chunk_count.saturating_add(term.chunks.count().into());
        }
        term_count <= MAX_TERM_COUNT && xorbs.len() <= MAX_XORB_COUNT && chunk_count <= MAX_CHUNK_COUNT
    };
    files.iter().take(MAX_FILE_COUNT).take_while(fits).count()
}

/// How many of these terms fit into one run; at least one, whatever its size.
fn run_count(terms: &[Term]) -> usize {
    let (mut xorbs, mut chunk_count) = (HashSet::new(), 0_u64);
    let fits = |term: &&Term| {
        xorbs.insert(term.xorb);
        chunk_count = chunk_count.saturating_add(term.chunks.count().into());
        xorbs.len() <= MAX_XORB_COUNT && (chunk_count <= MAX_CHUNK_COUNT)
    };
    let count = terms.iter().take(MAX_TERM_COUNT).take_while(fits).count();
    count.max(terms.len().min(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ChunkRange;

    #[test]
    fn run_has_at_most_a_batch_of_chunks_and_at_least_a_term() {
        let term =
            Term { xorb: XorbHash::from_bytes([1; 32]), chunks: ChunkRange::new(0, 8192).unwrap(), raw_len: 8192 };
        let lens: Vec<usize> = runs(&[term; 20]).map(<[Term]>::len).collect();
        assert_eq!(lens, [8, 8, 4]);
        assert_eq!(runs(&[term]).count(), 1);
        assert_eq!(runs(&[]).count(), 0);
    }
}
