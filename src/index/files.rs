//! Values about files in the index.

use super::usage::{Allowance, Excess};
use crate::format::shard::{Sha256, Term};
use crate::format::xorb::Layout;
use crate::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// Layout and chunk hashes of a xorb. A shard is checked against them.
#[derive(Clone, Debug)]
pub struct XorbContents {
    /// Which one.
    pub hash: XorbHash,
    /// Where its chunks are.
    pub layout: Layout,
    /// The hashes of its chunks, as many as the layout has chunks.
    pub chunk_hashes: Vec<ChunkHash>,
}

/// Consecutive chunks of a xorb. A term is checked against them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XorbPart {
    /// Which xorb.
    pub xorb: XorbHash,
    /// The first of the chunks.
    pub start: u32,
    /// Raw bytes of each.
    pub raw_lens: Vec<u32>,
    /// The hash of each.
    pub chunk_hashes: Vec<ChunkHash>,
}

/// A file to be registered, proven against the layouts of its xorbs.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Its hash.
    pub hash: FileHash,
    /// Its bytes.
    pub raw_len: u64,
    /// Its terms.
    pub terms: Vec<Term>,
    /// The sha256 that its client claims.
    pub sha256: Option<Sha256>,
}

/// Files to be registered, all or none.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The repository that may read them from now on; `*` for tokens of all repositories.
    pub repo: String,
    /// The files.
    pub files: Vec<NewFile>,
    /// Every xorb that the files or the shard name, each once.
    pub xorbs: Vec<XorbHash>,
    /// Chunks that clients may query, each with its xorb.
    pub dedup: Vec<(ChunkHash, XorbHash)>,
    /// The present moment.
    pub now: Timestamp,
    /// The limits of its repository and its owner.
    pub allowance: Allowance,
}

/// The outcome of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The files are registered; at least one was new to this repository.
    New,
    /// The files were known to this repository, but a sha256 that it claims was new.
    Added,
    /// All files and claims were known. Chunks that clients may query may be new.
    Known,
    /// This xorb does not exist or is being deleted. Nothing was changed.
    MissingXorb(XorbHash),
    /// The blob of this xorb is damaged, so the file would be unreadable. Nothing was changed.
    DamagedXorb(XorbHash),
    /// A file has another sha256, or the same repository claims another one. Nothing was changed.
    OtherSha256 {
        /// Which file.
        file: FileHash,
        /// The earlier claim of the repository, if the file is unverified.
        unverified: Option<Sha256>,
    },
    /// It would exceed a limit. Nothing was changed.
    OverQuota(Excess),
}

/// The reader of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A reader of all files.
    All,
    /// A reader of the files of this repository.
    Repo(String),
}

/// A registered file, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow {
    /// Its hash.
    pub hash: FileHash,
    /// Its bytes.
    pub raw_len: u64,
    /// The terms of the requested part, and possibly some before and after it.
    pub terms: Vec<Term>,
    /// Byte of the file where the first of these terms begins.
    pub terms_start: u64,
}

/// A file found by its sha256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSha256 {
    /// Which file.
    pub file: FileHash,
    /// Whether the sha256 is verified; otherwise a client claims it.
    pub is_verified: bool,
}

/// Chunks of all xorbs of a [`DedupHit`], at most: a response of 0.8 MB. That is two xorbs of the
/// smallest chunks, or 16 common ones.
pub(super) const MAX_DEDUP_CHUNK_COUNT: i64 = 16 << 10;

/// Xorbs that deduplication may mention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupHit {
    /// The xorb of the requested chunk.
    pub xorb: XorbHash,
    /// Its neighbours in the files that reference it. A client with one chunk of a file likely has
    /// the rest.
    pub neighbours: Vec<XorbHash>,
}

/// A sha256 that a client has claimed for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The file.
    pub file: FileHash,
    /// What its client says.
    pub sha256: Sha256,
}

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// The file has this sha256.
    Verified,
    /// The file has another sha256, which counts as verified from then on.
    False {
        /// The true sha256.
        actual: Sha256,
    },
}

/// Bytes of one packed term.
const TERM_LEN: usize = 44;

/// Terms as the index stores them.
pub(super) fn pack_terms(terms: &[Term]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(terms.len() * TERM_LEN);
    for term in terms {
        packed.extend_from_slice(term.xorb.as_bytes());
        packed.extend_from_slice(&term.chunks.start().to_le_bytes());
        packed.extend_from_slice(&term.chunks.end().to_le_bytes());
        packed.extend_from_slice(&term.raw_len.to_le_bytes());
    }
    packed
}

/// The xorbs that packed terms name, one for each term.
pub(super) fn named_xorbs(packed: &[u8]) -> impl Iterator<Item = XorbHash> + '_ {
    let (terms, _) = packed.as_chunks::<TERM_LEN>();
    terms.iter().filter_map(|term| term.first_chunk::<32>()).map(|xorb| XorbHash::from_bytes(*xorb))
}

/// Reads what [`pack_terms`] made; `None` for anything else.
pub(super) fn parse_terms(packed: &[u8]) -> Option<Vec<Term>> {
    let (terms, rest) = packed.as_chunks::<TERM_LEN>();
    if !rest.is_empty() {
        return None;
    }
    let parse = |term: &[u8; TERM_LEN]| {
        let (xorb, numbers) = term.split_first_chunk::<32>()?;
        let (numbers, []) = numbers.as_chunks::<4>() else { return None };
        let [start, end, raw_len] = numbers else { return None };
        let chunks = ChunkRange::new(u32::from_le_bytes(*start), u32::from_le_bytes(*end))?;
        Some(Term { xorb: XorbHash::from_bytes(*xorb), chunks, raw_len: u32::from_le_bytes(*raw_len) })
    };
    terms.iter().map(parse).collect()
}
