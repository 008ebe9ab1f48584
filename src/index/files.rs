//! What the index says about files.

use super::usage::{Allowance, Excess};
use crate::format::shard::{Sha256, Term};
use crate::format::xorb::Layout;
use crate::format::{ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// Layout and chunk hashes of a xorb: what a shard is checked against.
#[derive(Clone, Debug)]
pub struct XorbContents {
    /// Which one.
    pub hash: XorbHash,
    /// Where its chunks are.
    pub layout: Layout,
    /// Its chunks' hashes, as many as the layout has chunks.
    pub chunk_hashes: Vec<ChunkHash>,
}

/// Chunks of a xorb, one behind the other: what a term is checked against.
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
    /// What it is made of.
    pub terms: Vec<Term>,
    /// The sha256 that its client claims.
    pub sha256: Option<Sha256>,
}

/// Files to be registered, all or none.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Who may read them from now on; `*` for every token that is for all.
    pub repo: String,
    /// The files.
    pub files: Vec<NewFile>,
    /// Every xorb that the files or the shard name, each once.
    pub xorbs: Vec<XorbHash>,
    /// Chunks that clients may ask for, and the xorb with each.
    pub dedup: Vec<(ChunkHash, XorbHash)>,
    /// The present moment.
    pub now: Timestamp,
    /// How much its repository, and its owner, may have afterwards.
    pub allowance: Allowance,
}

/// What became of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The files are registered; at least one of them was not known to this repository.
    New,
    /// The files were known to this repository. A sha256 that it claims was not.
    Added,
    /// Everything was known, but maybe for chunks that clients may ask for.
    Known,
    /// This xorb is not there, or on its way out. Nothing was changed.
    MissingXorb(XorbHash),
    /// The blob of this xorb is known to be damaged: nobody could read the file. Nothing was changed.
    DamagedXorb(XorbHash),
    /// A file has another sha256, or the same repository claims another one. Nothing was changed.
    OtherSha256 {
        /// Which file.
        file: FileHash,
        /// What the repository claims, where the file was not read yet.
        unverified: Option<Sha256>,
    },
    /// There would be more than is allowed. Nothing was changed.
    OverQuota(Excess),
}

/// Who asks for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Someone who may read everything.
    All,
    /// Someone who may read what this repository has registered.
    Repo(String),
}

/// A registered file, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow {
    /// Its hash.
    pub hash: FileHash,
    /// Its bytes.
    pub raw_len: u64,
    /// What the part that was asked for is made of, and maybe some terms before and after it.
    pub terms: Vec<Term>,
    /// Byte of the file where the first of these terms begins.
    pub terms_start: u64,
}

/// A file that is known by its sha256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSha256 {
    /// Which file.
    pub file: FileHash,
    /// Whether the file was read and has it; else somebody says so.
    pub is_verified: bool,
}

/// Chunks of all xorbs of a [`DedupHit`], at most: a response of 0.8 MB that takes some milliseconds to make, for two xorbs
/// of the smallest chunks or 16 common ones.
pub(super) const MAX_DEDUP_CHUNK_COUNT: i64 = 16 << 10;

/// Xorbs that deduplication may mention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupHit {
    /// The one with the chunk that was asked for.
    pub xorb: XorbHash,
    /// Others of files that it is part of, those next to it: who has one chunk of a file likely has the rest.
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

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// The file has this sha256.
    Verified,
    /// It has another one, which is as good as verified from then on.
    False {
        /// The one that it has.
        actual: Sha256,
    },
}

/// Bytes of one packed term.
const TERM_LEN: usize = 44;

/// Terms as the index keeps them.
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
