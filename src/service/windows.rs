//! Data for a client that edits a file (spec 5.9): the parts to chunk again, and a summary of the
//! rest.
//!
//! The index rows of every chunk of the file are read, and no blob is opened. The chunks are read
//! in runs, so that the layouts of one run bound the memory, not the length of the file.

use thiserror::Error;

use super::Server;
use super::access::Claims;
use super::contents::{Contents, Walk, runs};
use super::error::StoreError;
use super::files::ReconstructError;
use super::reconstruct::Inconsistency;
use super::scope::reader;
use crate::format::shard::Term;
use crate::format::windows::{ChunkWindows, WindowBuilder};
use crate::format::{ByteRange, FileHash, RangeHash};
use crate::runtime::fair::Permit;

/// Walks (readings of all chunks of a file) that may be under way at once; further requests wait.
/// So the memory is bounded by this number of runs.
pub(super) const WALK_COUNT: u32 = 4;

/// Hashes in the summaries of one response: 10 MB, and 25 MB of text. A file of terabytes has some
/// hundreds, unless one chunk is repeated in it (spec 1.9): then each repetition has a hash. 32 GiB
/// of zeros, as a stock client cuts them, have as many as this.
pub(crate) const MAX_SUMMARY_NODE_COUNT: usize = 1 << 18;

/// Why there are no windows.
#[derive(Debug, Error)]
pub enum WindowsError {
    /// The file cannot be looked up, or does not exist for this reader.
    #[error(transparent)]
    File(#[from] ReconstructError),
    /// None of the ranges has a byte of the file.
    #[error("no range lies within the file, which has {file_len} bytes")]
    NothingWithin {
        /// Bytes of the file.
        file_len: u64,
    },
    /// The summaries have more hashes than a response may have.
    #[error("the summaries have more than {MAX_SUMMARY_NODE_COUNT} hashes")]
    TooManyNodes,
}

impl From<StoreError> for WindowsError {
    fn from(error: StoreError) -> Self {
        Self::File(error.into())
    }
}

impl Server {
    /// The data for changing these bytes of a file. The ranges may have any order, may overlap, and
    /// may end past the file. The caller must hold the [permit](Self::walk_permit) until the
    /// response is written. For a file of a million terms the data takes some 40 MB at most, and
    /// the text twice as much.
    ///
    /// # Errors
    ///
    /// See [`WindowsError`].
    pub async fn chunk_windows(
        &self,
        _permit: &Permit,
        claims: &Claims,
        file: FileHash,
        changes: &[ByteRange],
    ) -> Result<ChunkWindows, WindowsError> {
        let file_len = self.file_row(claims, file, None).await?.raw_len;
        let mut builder = WindowBuilder::new(changes, file_len).ok_or(WindowsError::NothingWithin { file_len })?;
        let inconsistent = |source| ReconstructError::Inconsistent { file, source };
        let (mut walk, mut contents) = (Walk::new(file, reader(claims)), Contents::default());
        loop {
            let terms = self.store.next_terms(&mut walk).await?;
            if terms.is_empty() {
                return Ok(builder.finish().ok_or_else(|| inconsistent(Inconsistency::Gap { offset: file_len }))?);
            }
            for terms in runs(&terms) {
                contents = self.store.contents(contents, terms).await?;
                let terms = terms.to_vec();
                let push = move || (push_terms(&mut builder, &terms, &contents), builder, contents);
                let pushed;
                (pushed, builder, contents) = self.store.pool.run(push).await;
                pushed.map_err(inconsistent)?;
                if builder.node_count() > MAX_SUMMARY_NODE_COUNT {
                    return Err(WindowsError::TooManyNodes);
                }
            }
        }
    }
}

fn push_terms(builder: &mut WindowBuilder, terms: &[Term], contents: &Contents) -> Result<(), Inconsistency> {
    for term in terms {
        let inconsistent = Inconsistency::Term { xorb: term.xorb, chunks: term.chunks, term_len: term.raw_len.into() };
        let chunks = contents.chunks(term).ok_or(inconsistent)?;
        builder.push_segment(RangeHash::of(chunks.hashes), chunks.hashes.iter().zip(chunks.raw_lens.iter().copied()));
    }
    Ok(())
}
