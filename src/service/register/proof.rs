//! Proves that the client knows the chunks of a file's terms, and that they hash to the file.

use super::{RegisterError, UNKNOWN_SHA256};
use crate::format::merkle::Aggregator;
use crate::format::shard::{FileInfo, Term};
use crate::format::{ChunkHash, FileHash, RangeHash, XorbHash};
use crate::index::NewFile;
use crate::service::contents::Contents;

/// A file with some of its terms proven.
pub(super) struct FileProof {
    file: FileHash,
    /// The next term.
    next: usize,
    chunks: Aggregator,
    /// The first chunk, and the xorb that has it.
    first: Option<(ChunkHash, XorbHash)>,
}

impl FileProof {
    pub(super) fn new(file: FileHash) -> Self {
        Self { file, next: 0, chunks: Aggregator::new(), first: None }
    }

    /// When all terms are proven: the file, and its first chunk with the xorb that has it.
    pub(super) fn finish(self, file: FileInfo) -> Result<(NewFile, Option<(ChunkHash, XorbHash)>), RegisterError> {
        let actual = self.chunks.file_hash();
        if actual != file.hash {
            return Err(RegisterError::FileHash { claimed: file.hash, actual });
        }
        let raw_len = file.raw_len();
        let sha256 = file.sha256.filter(|sha256| *sha256 != UNKNOWN_SHA256);
        Ok((NewFile { hash: file.hash, raw_len, terms: file.terms, sha256 }, self.first))
    }

    /// Proves the next terms.
    pub(super) fn take(
        mut self,
        terms: &[Term],
        proofs: &[RangeHash],
        contents: &Contents,
    ) -> Result<Self, RegisterError> {
        for (index, term) in terms.iter().enumerate() {
            let (xorb, chunks) = (term.xorb, term.chunks);
            let wrong = RegisterError::Term { file: self.file, term: self.next, xorb, chunks };
            if !contents.has(&xorb) {
                return Err(RegisterError::MissingXorb { xorb });
            }
            let chunks = contents.chunks(term).ok_or(wrong)?;
            if proofs.get(index) != Some(&RangeHash::of(chunks.hashes)) {
                return Err(RegisterError::NoProof { file: self.file, term: self.next, xorb });
            }
            for (hash, raw_len) in chunks.hashes.iter().zip(chunks.raw_lens) {
                self.chunks.push(hash, u64::from(*raw_len));
                self.first.get_or_insert((*hash, xorb));
            }
            self.next += 1;
        }
        Ok(self)
    }
}
