//! Reads from the index the terms of a file, and the chunks of these terms. Memory is bounded,
//! whatever the length of the file: a [`Walk`] returns some hundred terms at a time, and [`runs`]
//! divides them into *runs*. The chunks of one run are in memory together ([`Contents`]). No blob
//! is opened.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::Store;
use super::error::StoreError;
use super::files::ReconstructError;
use super::reconstruct::Inconsistency;
use crate::format::limits::MAX_XORB_CHUNK_COUNT;
use crate::format::shard::{FileInfo, Term};
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::index::{IndexError, Reader, XorbContents, XorbPart};

/// Maximum number of xorbs of a run, whose chunks are in memory together. A chunk takes 36 bytes
/// for its hash and length, so a common xorb takes 36 KiB.
const MAX_XORB_COUNT: usize = 64;

/// Xorbs that one query reads. The columns of a common xorb have about 41 KiB, and each xorb is in
/// another place of the database. So a query waits for the disk once per xorb. This is why
/// `READ_COUNT` queries are made concurrently.
const READ_XORB_COUNT: usize = 16;

/// A range with every chunk that a xorb can have.
const WHOLE: ChunkRange = ChunkRange::new(0, MAX_XORB_CHUNK_COUNT).expect("it is not empty");

/// Concurrent queries of one walk: half of the read connections, so that the other half serves
/// other requests.
const READ_COUNT: usize = 2;

/// Maximum number of terms of a run, however few xorbs they name. A worker computes a run in one
/// piece, so a run must not take long.
const MAX_TERM_COUNT: usize = 4096;

/// Maximum number of files of a run, however few terms they have.
const MAX_FILE_COUNT: usize = 1024;

/// Maximum number of chunks of a run. A worker hashes that many in about 10 ms, and then serves
/// other work.
const MAX_CHUNK_COUNT: u64 = 64 << 10;

/// The position of a walk through the terms of a file.
#[derive(Debug)]
pub(super) struct Walk {
    file: FileHash,
    /// For whom the file is read: the file must be visible to this reader.
    reader: Reader,
    /// The offset in the file where the next term begins.
    next: u64,
    /// Length of the file in bytes; `None` before the first terms were read.
    file_len: Option<u64>,
}

impl Walk {
    /// A walk from the start of the file.
    pub(super) const fn new(file: FileHash, reader: Reader) -> Self {
        Self { file, reader, next: 0, file_len: None }
    }
}

/// The hashes and lengths of chunks, for the terms of a run. For each xorb that the terms name, one
/// range of chunks that includes all chunks of these terms.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// A *part* is a range of the chunks of a xorb.
    parts: HashMap<XorbHash, XorbPart>,
    /// Xorbs that are treated as if the index did not have them.
    left_out: HashSet<XorbHash>,
}

/// The chunks of a term.
#[derive(Debug)]
pub(super) struct TermChunks<'c> {
    pub(super) hashes: &'c [ChunkHash],
    /// The raw length of each chunk.
    pub(super) raw_lens: &'c [u32],
}

impl Contents {
    /// Empty, and never with one of these xorbs.
    pub(super) fn without(left_out: HashSet<XorbHash>) -> Self {
        Self { parts: HashMap::new(), left_out }
    }

    /// Whether the index has the xorb.
    pub(super) fn has(&self, xorb: &XorbHash) -> bool {
        self.parts.contains_key(xorb)
    }

    /// The chunks of a term. `None` if the index does not have the xorb, if the xorb does not have
    /// these chunks, or if their length is not that of the term.
    pub(super) fn chunks(&self, term: &Term) -> Option<TermChunks<'_>> {
        let part = self.parts.get(&term.xorb)?;
        let place = |chunk: u32| usize::try_from(chunk.checked_sub(part.start)?).ok();
        let places = place(term.chunks.start())?..place(term.chunks.end())?;
        let (raw_lens, hashes) = (part.raw_lens.get(places.clone())?, part.chunk_hashes.get(places)?);
        let is_same = raw_lens.iter().copied().map(u64::from).sum::<u64>() == u64::from(term.raw_len);
        is_same.then_some(TermChunks { hashes, raw_lens })
    }
}

/// The range of chunks of a part; `None` if it is empty.
fn range_of(part: &XorbPart) -> Option<ChunkRange> {
    let count = u32::try_from(part.raw_lens.len()).ok()?;
    ChunkRange::new(part.start, part.start.checked_add(count)?)
}

/// The shortest range that contains both ranges.
fn hull(a: ChunkRange, b: ChunkRange) -> ChunkRange {
    let (start, end) = (a.start().min(b.start()), a.end().max(b.end()));
    ChunkRange::new(start, end).expect("neither is empty")
}

impl Store {
    /// The next terms of a file; empty at its end. Reads the row of terms that begins at the
    /// position of the walk.
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

    /// The chunks for these terms. Xorbs that the index does not have are left out. A part in
    /// `before` is reused if it has all needed chunks, and dropped otherwise.
    pub(super) async fn contents(&self, before: Contents, terms: &[Term]) -> Result<Contents, StoreError> {
        let mut wanted: HashMap<XorbHash, ChunkRange> = HashMap::new();
        for term in terms {
            let range = wanted.entry(term.xorb).or_insert(term.chunks);
            *range = hull(*range, term.chunks);
        }
        let mut contents = before;
        contents.parts.retain(|xorb, part| {
            let (Some(range), Some(known)) = (wanted.get_mut(xorb), range_of(part)) else { return false };
            // If a known part is not enough, all chunks of the xorb are requested. Small files are
            // adjacent in a xorb, so the following files need the chunks after this part. The index
            // must read the whole row in any case.
            let is_enough = hull(*range, known) == known;
            if !is_enough {
                *range = WHOLE;
            }
            is_enough
        });
        wanted.retain(|xorb, _| !contents.has(xorb) && !contents.left_out.contains(xorb));
        let loaded = read(wanted.into_iter().collect(), |wanted| self.index.xorb_parts(wanted)).await?;
        contents.parts.extend(loaded.into_iter().map(|part| (part.xorb, part)));
        Ok(contents)
    }

    /// All chunks of these xorbs. Xorbs that the index does not have are left out.
    pub(super) async fn whole_contents(
        &self,
        xorbs: impl Iterator<Item = XorbHash>,
    ) -> Result<HashMap<XorbHash, XorbContents>, StoreError> {
        let wanted: HashSet<XorbHash> = xorbs.collect();
        let loaded = read(wanted.into_iter().collect(), |wanted| self.index.xorb_contents(wanted)).await?;
        Ok(loaded.into_iter().map(|xorb| (xorb.hash, xorb)).collect())
    }
}

/// Queries the index for all of `wanted`, `READ_XORB_COUNT` with each query. The results are in no
/// order.
async fn read<W: Clone, T, F: Future<Output = Result<Vec<T>, IndexError>>>(
    wanted: Vec<W>,
    ask: impl Fn(Vec<W>) -> F,
) -> Result<Vec<T>, IndexError> {
    let parts: Vec<Vec<W>> = wanted.chunks(READ_XORB_COUNT).map(<[_]>::to_vec).collect();
    let reads = stream::iter(parts.into_iter().map(ask));
    let loaded: Vec<Vec<T>> = reads.buffer_unordered(READ_COUNT).try_collect().await?;
    Ok(loaded.into_iter().flatten().collect())
}

/// Divides terms into runs, each within the limits of this module. A single term that exceeds the
/// limits is a run.
pub(super) fn runs(terms: &[Term]) -> impl Iterator<Item = &[Term]> {
    let mut rest = terms;
    std::iter::from_fn(move || {
        let (run, after) = rest.split_at_checked(run_count(rest))?;
        rest = after;
        (!run.is_empty()).then_some(run)
    })
}

/// The number of these files, from the first on, that fit into one run together. 0 if the first
/// file alone exceeds the limits.
pub(super) fn file_count(files: &[FileInfo]) -> usize {
    let (mut xorbs, mut term_count, mut chunk_count) = (HashSet::new(), 0_usize, 0_u64);
    let fits = |file: &&FileInfo| {
        term_count = term_count.saturating_add(file.terms.len());
        // A file may have a million terms. The loop ends at the limit, which `term_count` checks.
        for term in file.terms.iter().take(MAX_TERM_COUNT) {
            xorbs.insert(term.xorb);
            chunk_count = chunk_count.saturating_add(term.chunks.count().into());
        }
        term_count <= MAX_TERM_COUNT && xorbs.len() <= MAX_XORB_COUNT && chunk_count <= MAX_CHUNK_COUNT
    };
    files.iter().take(MAX_FILE_COUNT).take_while(fits).count()
}

/// The number of these terms, from the first on, that fit into one run together. At least one,
/// unless there are no terms.
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
