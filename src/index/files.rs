//! Queries of readers: the terms of a file, and the xorbs that a client can deduplicate against.

use std::ops::RangeInclusive;

use futures_util::future::BoxFuture;

use super::error::IndexError;
use crate::format::shard::Term;
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::runtime::clock::Timestamp;

/// The reader of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A reader of all files.
    All,
    /// A reader of the files of this repository.
    Repo(String),
}

impl Reader {
    /// The repository whose files the reader may read; `None` for all files.
    pub(super) fn repo(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Repo(repo) => Some(repo),
        }
    }
}

/// A registered file, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow {
    /// Its hash.
    pub hash: FileHash,
    /// Its length in bytes.
    pub raw_len: u64,
    /// The terms of the requested part, and possibly some before and after it.
    pub terms: Vec<Term>,
    /// The offset in the file where the first of these terms begins.
    pub terms_start: u64,
}

/// The maximum number of chunks in all xorbs of a [`DedupHit`]: the response lists them in 0.8 MB.
/// Two xorbs with the smallest possible chunks have as many, or 16 xorbs with average ones.
pub(super) const MAX_DEDUP_CHUNK_COUNT: i64 = 16 << 10;

/// The maximum number of xorbs with the requested chunk among which a dedup query chooses: the
/// newest. One owner can upload a chunk in any number of xorbs, and reading each takes 1 µs. With
/// more of them than this, older xorbs with the chunk are not found, and clients upload it again.
pub(super) const MAX_DEDUP_CANDIDATE_COUNT: i64 = 16 << 10;

/// The xorbs that the response to a dedup query describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupHit {
    /// The xorb that has the requested chunk.
    pub xorb: XorbHash,
    /// Other xorbs of the files that reference this xorb. A client with one chunk of a file likely
    /// has the other chunks, too.
    pub neighbours: Vec<XorbHash>,
}

/// The methods of [`Index`](super::Index) for readers of files and for deduplication.
pub trait FileIndex {
    /// The file, if this reader may see it, with the terms that cover `part`. A part of `None`
    /// gives no terms. The cost is proportional to the terms of the part, not of the file.
    fn find_file(
        &self,
        hash: FileHash,
        reader: Reader,
        part: Option<ByteRange>,
    ) -> BoxFuture<'_, Result<Option<FileRow>, IndexError>>;

    /// A visible and sound xorb of this owner that has the chunk, and neighbours of the xorb. An
    /// owner of `None` stands for any owner.
    ///
    /// All these xorbs are live and leased at least until the start of `lease_until` at the moment
    /// at which they are found, so no xorb in the response is being deleted. If one of them is not,
    /// it becomes so, with a lease until the end of `lease_until`. The next queries that find it do
    /// not write then.
    fn find_dedup(
        &self,
        chunk: ChunkHash,
        owner: Option<String>,
        lease_until: RangeInclusive<Timestamp>,
    ) -> BoxFuture<'_, Result<Option<DedupHit>, IndexError>>;
}

/// Bytes of one packed term.
const TERM_LEN: usize = 44;

/// Packs terms into the bytes that the index stores.
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

/// The xorb of each packed term, in the order of the terms.
pub(super) fn named_xorbs(packed: &[u8]) -> impl Iterator<Item = XorbHash> + '_ {
    let (terms, _) = packed.as_chunks::<TERM_LEN>();
    terms.iter().filter_map(|term| term.first_chunk::<32>()).map(|xorb| XorbHash::from_bytes(*xorb))
}

/// Parses the output of [`pack_terms`]; `None` for any other bytes.
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
