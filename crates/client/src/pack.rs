//! Packs files into xorbs: cuts files into chunks as the protocol does, and stores each distinct
//! chunk once.

use std::collections::HashMap;
use std::mem;

use xet_format::chunker::Chunker;
use xet_format::compression::Policy;
use xet_format::merkle::Aggregator;
use xet_format::xorb::{BuildError, BuiltXorb, XorbBuilder};
use xet_format::{ChunkHash, ChunkRange, FileHash, XorbHash};

/// Forms xorbs of the chunks of files, in order. A xorb is filled with chunks of several files.
///
/// A chunk that occurred before is not stored again: the terms of the file name the xorb that has
/// it. Memory holds one xorb, one chunk, and some 50 bytes per distinct chunk, that is, about 1 MiB
/// per GiB packed.
///
/// ```
/// use xet_format::compression::Policy;
/// use zorb_client::Packer;
///
/// let mut packer = Packer::new(Policy::Predict);
/// for file in [&b"hello"[..], b"hello"] {
///     let mut rest = file;
///     while let Some(full) = packer.push(&mut rest) {
///         println!("{} is full", full.xorb().hash());
///     }
///     assert!(packer.end_file().is_none());
/// }
/// let (last, packed) = packer.finish();
/// let xorb = last.expect("there is a chunk").xorb().hash();
/// assert_eq!((packed.files[1].terms[0].xorb, packed.duplicate_count), (xorb, 1));
/// ```
#[derive(Debug)]
pub struct Packer {
    policy: Policy,
    builder: XorbBuilder,
    /// The hashes of the full xorbs, in order.
    full: Vec<XorbHash>,
    /// The place of each distinct chunk.
    places: HashMap<ChunkHash, Place>,
    /// The files that have ended, in order.
    files: Vec<OpenFile>,
    chunker: Chunker,
    /// Bytes of the chunk that has not ended yet.
    chunk: Vec<u8>,
    /// The current file.
    file: OpenFile,
    duplicate_count: u64,
    duplicate_len: u64,
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The number of the xorb, in the order in which they are filled, from 0.
    xorb: usize,
    /// The index of the chunk in the xorb.
    index: u32,
}

/// A file whose terms name xorbs by number, because the last of them has no hash yet.
#[derive(Debug, Default)]
struct OpenFile {
    len: u64,
    aggregator: Aggregator,
    terms: Vec<OpenTerm>,
}

#[derive(Debug)]
struct OpenTerm {
    xorb: usize,
    start: u32,
    end: u32,
    raw_len: u64,
}

/// The packed files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The files, in order.
    pub files: Vec<PackedFile>,
    /// How many chunks were not stored, because an equal chunk had been stored before.
    pub duplicate_count: u64,
    /// Raw bytes of these chunks.
    pub duplicate_len: u64,
}

/// Where the contents of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFile {
    /// Bytes of the file.
    pub len: u64,
    /// Its hash.
    pub hash: FileHash,
    /// Its contents in order; the empty file has no terms.
    pub terms: Vec<Term>,
}

/// A run of chunks of one xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Which xorb.
    pub xorb: XorbHash,
    /// Which chunks of it.
    pub chunks: ChunkRange,
    /// Raw bytes of these chunks.
    pub raw_len: u64,
}

impl Packer {
    /// A packer that compresses as the policy says.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            builder: XorbBuilder::new(policy),
            full: Vec::new(),
            places: HashMap::new(),
            files: Vec::new(),
            chunker: Chunker::new(),
            chunk: Vec::new(),
            file: OpenFile::default(),
            duplicate_count: 0,
            duplicate_len: 0,
        }
    }

    /// Takes bytes of the current file; `piece` is moved past the bytes taken.
    ///
    /// Returns a xorb when it is full. Then call this again with the rest of the piece, which may
    /// fill another one. Returns `None` when the piece is used up.
    pub fn push(&mut self, piece: &mut &[u8]) -> Option<BuiltXorb> {
        while !piece.is_empty() {
            let Some(end) = self.chunker.next_boundary(piece) else {
                self.chunk.extend_from_slice(piece);
                *piece = &[];
                return None;
            };
            let (taken, rest) = piece.split_at(end);
            *piece = rest;
            let full = if self.chunk.is_empty() {
                self.add(taken)
            } else {
                let mut chunk = mem::take(&mut self.chunk);
                chunk.extend_from_slice(taken);
                let full = self.add(&chunk);
                chunk.clear();
                self.chunk = chunk;
                full
            };
            if full.is_some() {
                return full;
            }
        }
        None
    }

    /// Ends the current file; the next bytes belong to the next file. The last chunk of the file
    /// may not fit into the current xorb: then returns this xorb, which is full.
    pub fn end_file(&mut self) -> Option<BuiltXorb> {
        let chunk = mem::take(&mut self.chunk);
        let full = if chunk.is_empty() { None } else { self.add(&chunk) };
        self.chunker = Chunker::new();
        self.files.push(mem::take(&mut self.file));
        full
    }

    /// The last xorb, if it has a chunk, and where the contents of the files are.
    #[must_use]
    pub fn finish(mut self) -> (Option<BuiltXorb>, Packed) {
        let last = self.builder.finish();
        self.full.extend(last.as_ref().map(|last| last.xorb().hash()));
        let files = self.files.into_iter().map(|file| file.finish(&self.full)).collect();
        let packed = Packed { files, duplicate_count: self.duplicate_count, duplicate_len: self.duplicate_len };
        (last, packed)
    }

    /// Adds a chunk to the current file, and to the current xorb unless an equal chunk is stored
    /// already. Returns the xorb before, if the chunk did not fit into it.
    fn add(&mut self, raw: &[u8]) -> Option<BuiltXorb> {
        let (hash, raw_len) = (ChunkHash::of(raw), raw.len() as u64);
        if let Some(place) = self.places.get(&hash) {
            self.duplicate_count += 1;
            self.duplicate_len += raw_len;
            self.file.push(*place, &hash, raw_len);
            return None;
        }
        let mut full = None;
        while let Err(error) = self.builder.push(raw) {
            assert!(matches!(error, BuildError::Full { .. }), "the chunker cuts within the limits: {error}");
            let builder = mem::replace(&mut self.builder, XorbBuilder::new(self.policy));
            let xorb = builder.finish().expect("a xorb that is full has a chunk, and an empty one takes any");
            self.full.push(xorb.xorb().hash());
            full = Some(xorb);
        }
        let place = Place { xorb: self.full.len(), index: self.builder.chunk_count() - 1 };
        self.places.insert(hash, place);
        self.file.push(place, &hash, raw_len);
        full
    }
}

impl OpenFile {
    /// Adds a chunk to the file: extends the last term if the chunk follows it in the same xorb.
    fn push(&mut self, place: Place, hash: &ChunkHash, raw_len: u64) {
        self.len += raw_len;
        self.aggregator.push(hash, raw_len);
        match self.terms.last_mut() {
            Some(last) if last.xorb == place.xorb && last.end == place.index => {
                last.end += 1;
                last.raw_len += raw_len;
            }
            _ => {
                self.terms.push(OpenTerm { xorb: place.xorb, start: place.index, end: place.index + 1, raw_len });
            }
        }
    }

    /// Replaces the numbers of xorbs by their hashes.
    fn finish(self, xorbs: &[XorbHash]) -> PackedFile {
        let terms = self.terms.into_iter().map(|term| Term {
            xorb: xorbs[term.xorb],
            chunks: ChunkRange::new(term.start, term.end).expect("a term has at least one chunk"),
            raw_len: term.raw_len,
        });
        PackedFile { len: self.len, hash: self.aggregator.file_hash(), terms: terms.collect() }
    }
}

#[cfg(test)]
mod tests;
