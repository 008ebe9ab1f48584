//! Proves that the client knows the chunks of a file's terms, and that the chunks hash to the file.

use super::UNKNOWN_SHA256;
use crate::format::merkle::Aggregator;
use crate::format::shard::{FileInfo, Term};
use crate::format::{ChunkHash, FileHash, RangeHash, XorbHash};
use crate::index::NewFile;
use crate::runtime::fair::Tenant;
use crate::service::Store;
use crate::service::contents::{Contents, runs};
use crate::service::error::RegisterError;

/// The first chunk of a file, and the xorb that has it; `None` for the empty file.
pub(in crate::service) type FirstChunk = Option<(ChunkHash, XorbHash)>;

impl Store {
    /// Proves files whose terms are one run together, or a single file of any length. Returns each
    /// file with its first chunk, in order, and the rows of the last xorbs for reuse.
    pub(in crate::service) async fn prove_files(
        &self,
        tenant: Tenant,
        mut files: Vec<FileInfo>,
        contents: Contents,
    ) -> Result<(Vec<(NewFile, FirstChunk)>, Contents), RegisterError> {
        if let [_] = files.as_slice()
            && let Some(file) = files.pop()
        {
            let (file, first, contents) = self.prove_file(tenant, file, contents).await?;
            return Ok((vec![(file, first)], contents));
        }
        let terms: Vec<Term> = files.iter().flat_map(|file| &file.terms).copied().collect();
        let contents = self.contents(contents, &terms).await?;
        let prove = move || {
            let mut proven = Vec::with_capacity(files.len());
            for file in files {
                let range_hashes = file.range_hashes.as_deref().unwrap_or_default();
                let proof = FileProof::new(file.hash).take(&file.terms, range_hashes, &contents)?;
                proven.push(proof.finish(file)?);
            }
            Ok::<_, RegisterError>((proven, contents))
        };
        self.compute_for(tenant, item_count(&terms), prove).await
    }

    /// Proves one file in runs. Returns the file, its first chunk, and the rows of the last xorbs
    /// for reuse.
    pub(in crate::service) async fn prove_file(
        &self,
        tenant: Tenant,
        file: FileInfo,
        mut contents: Contents,
    ) -> Result<(NewFile, FirstChunk, Contents), RegisterError> {
        let mut proof = FileProof::new(file.hash);
        let mut range_hashes = file.range_hashes.as_deref().unwrap_or_default();
        for terms in runs(&file.terms) {
            contents = self.contents(contents, terms).await?;
            let (proofs, rest) = range_hashes.split_at(terms.len().min(range_hashes.len()));
            range_hashes = rest;
            let (count, terms, proofs) = (item_count(terms), terms.to_vec(), proofs.to_vec());
            let take = move || (proof.take(&terms, &proofs, &contents), contents);
            let taken;
            (taken, contents) = self.compute_for(tenant, count, take).await;
            proof = taken?;
        }
        let (file, first) = proof.finish(file)?;
        Ok((file, first, contents))
    }
}

/// The terms, and the chunks that are hashed for them.
fn item_count(terms: &[Term]) -> usize {
    let count = terms.iter().fold(0_u32, |count, term| count.saturating_add(term.chunks.count()));
    terms.len().saturating_add(usize::try_from(count).unwrap_or(usize::MAX))
}

/// A file with some of its terms proven.
struct FileProof {
    file: FileHash,
    /// The index of the next term.
    next: usize,
    chunks: Aggregator,
    /// The first chunk, and the xorb that has it.
    first: FirstChunk,
}

impl FileProof {
    fn new(file: FileHash) -> Self {
        Self { file, next: 0, chunks: Aggregator::new(), first: None }
    }

    /// Completes the proof: all terms together must hash to the file.
    fn finish(self, file: FileInfo) -> Result<(NewFile, FirstChunk), RegisterError> {
        let actual = self.chunks.file_hash();
        if actual != file.hash {
            return Err(RegisterError::FileHash { claimed: file.hash, actual });
        }
        let raw_len = file.raw_len();
        let sha256 = file.sha256.filter(|sha256| *sha256 != UNKNOWN_SHA256);
        Ok((NewFile { hash: file.hash, raw_len, terms: file.terms, sha256 }, self.first))
    }

    /// Proves the next terms, which have these verification hashes.
    fn take(mut self, terms: &[Term], proofs: &[RangeHash], contents: &Contents) -> Result<Self, RegisterError> {
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
