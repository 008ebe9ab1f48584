//! A file of any size, gone through from its start to its end with a bounded part of it in memory: its terms some
//! hundred at a time, and what the index says of the xorbs that these name.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::Cas;
use super::error::StoreError;
use super::files::ReconstructError;
use super::reconstruct::Inconsistency;
use crate::format::shard::Term;
use crate::format::{ByteRange, ChunkHash, FileHash, XorbHash};
use crate::index::{Reader, XorbContents};

/// Xorbs that are in memory at once, for each walk: of 41 bytes per chunk, 40 KiB for a common one.
const MAX_XORB_COUNT: usize = 64;

/// Xorbs that are read with one question to the index. Those of a run are read with two at once: each is 41 KiB in a place of
/// its own, so that a single question waits for the disk once for every one of them.
const READ_XORB_COUNT: usize = 16;

/// Such questions at once: half of the connections that read, since others read meanwhile.
const READ_COUNT: usize = 2;

/// Terms that are taken at once, however few xorbs they name: a step of a worker.
const MAX_TERM_COUNT: usize = 4096;

/// Chunks of the terms that are taken at once: some 10 ms of hashing, after which others have their turn.
const MAX_CHUNK_COUNT: u64 = 64 << 10;

/// How far one has come with a file.
#[derive(Debug)]
pub(super) struct Walk {
    file: FileHash,
    reader: Reader,
    /// Byte of the file where the next term begins.
    next: u64,
    /// Bytes of the file, once that is known.
    file_len: Option<u64>,
}

impl Walk {
    /// At the start of the file.
    pub(super) const fn new(file: FileHash, reader: Reader) -> Self {
        Self { file, reader, next: 0, file_len: None }
    }
}

/// What is known of some xorbs.
#[derive(Debug, Default)]
pub(super) struct Contents {
    xorbs: HashMap<XorbHash, XorbContents>,
}

/// The chunks of a term.
#[derive(Debug)]
pub(super) struct TermChunks<'c> {
    pub(super) hashes: &'c [ChunkHash],
    /// Raw bytes of each.
    pub(super) raw_lens: Vec<u32>,
}

impl Contents {
    /// The xorb, if it is there.
    pub(super) fn get(&self, xorb: &XorbHash) -> Option<&XorbContents> {
        self.xorbs.get(xorb)
    }

    /// The chunks of a term; `None` where the xorb is not there, or does not have them with the length that it says.
    pub(super) fn chunks(&self, term: &Term) -> Option<TermChunks<'_>> {
        let xorb = self.get(&term.xorb)?;
        let places = xorb.layout.chunks_in(term.chunks)?;
        let raw_lens = places.map(|place| u32::try_from(place.raw.byte_len()).ok()).collect::<Option<Vec<u32>>>()?;
        let (start, end) = (usize::try_from(term.chunks.start()).ok()?, usize::try_from(term.chunks.end()).ok()?);
        let hashes = xorb.chunk_hashes.get(start..end)?;
        let is_same = raw_lens.iter().copied().map(u64::from).sum::<u64>() == u64::from(term.raw_len);
        is_same.then_some(TermChunks { hashes, raw_lens })
    }
}

impl Cas {
    /// The next terms of a file; none at its end. The index has terms of a file together, so that each is read once.
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

    /// The contents of these xorbs, of which those that are not there are left out. What `before` has of them is not
    /// read again, and what else it has is let go.
    pub(super) async fn contents(
        &self,
        before: Contents,
        xorbs: impl Iterator<Item = XorbHash>,
    ) -> Result<Contents, StoreError> {
        let wanted: HashSet<XorbHash> = xorbs.collect();
        let mut contents = before;
        contents.xorbs.retain(|xorb, _| wanted.contains(xorb));
        let missing: Vec<XorbHash> = wanted.into_iter().filter(|xorb| contents.get(xorb).is_none()).collect();
        if !missing.is_empty() {
            let parts: Vec<Vec<XorbHash>> = missing.chunks(READ_XORB_COUNT).map(<[_]>::to_vec).collect();
            let reads = stream::iter(parts.into_iter().map(|part| self.index.xorb_contents(part)));
            let loaded: Vec<_> = reads.buffer_unordered(READ_COUNT).try_collect().await?;
            contents.xorbs.extend(loaded.into_iter().flatten().map(|xorb| (xorb.hash, xorb)));
        }
        Ok(contents)
    }
}

/// Cuts terms into runs, each of as many as may be taken at once.
pub(super) fn runs(terms: &[Term]) -> impl Iterator<Item = &[Term]> {
    let mut rest = terms;
    std::iter::from_fn(move || {
        let (run, after) = rest.split_at_checked(run_count(rest))?;
        rest = after;
        (!run.is_empty()).then_some(run)
    })
}

/// How many of these terms may be taken at once; one at least, whatever it is.
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
    fn a_run_has_no_more_chunks_than_a_worker_takes_at_once_and_never_less_than_a_term() {
        let term =
            Term { xorb: XorbHash::from_bytes([1; 32]), chunks: ChunkRange::new(0, 8192).unwrap(), raw_len: 8192 };
        let lens: Vec<usize> = runs(&[term; 20]).map(<[Term]>::len).collect();
        assert_eq!(lens, [8, 8, 4]);
        assert_eq!(runs(&[term]).count(), 1);
        assert_eq!(runs(&[]).count(), 0);
    }
}
