//! From chunks to xorbs and files, without any input or output.

use std::mem;

use xet_format::limits::{CHUNK_HEADER_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN, MAX_XORB_SERIALIZED_LEN};
use xet_format::merkle::{Aggregator, xorb_hash};
use xet_format::shard::{CasChunk, CasInfo, FileInfo, Sha256, Term};
use xet_format::{ChunkHash, ChunkRange, FileHash, RangeHash};

use super::known::{Known, Place};

/// Terms that a file may have whatever they are like.
const FREE_TERM_COUNT: usize = 1 << 16;

/// Chunks per term that a file must have on average beyond that.
const MIN_TERM_CHUNK_COUNT: u64 = 8;

/// Forms xorbs of the chunks of files that are not known yet, and notes where all of them are.
///
/// A known chunk is always used, however short the run is that it belongs to: what is sent is what
/// a push costs, and a reader gets all runs of a xorb by one URL. Only a file of very many runs has
/// to be careful, because its terms must fit into one shard: beyond [`FREE_TERM_COUNT`] a known
/// chunk that begins a new run is stored once more as long as the file's runs are short.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    pub(super) known: Known,
    batch: Batch,
    files: Vec<Option<Assembled>>,
    file: OpenFile,
}

/// The xorb that is being filled.
#[derive(Debug, Default)]
struct Batch {
    /// Its number, once it has a chunk.
    number: Option<u32>,
    chunks: Vec<(ChunkHash, Vec<u8>)>,
    raw_len: u64,
}

/// A xorb that is full, not compressed yet.
#[derive(Debug)]
pub(super) struct RawXorb {
    pub(super) info: CasInfo,
    pub(super) chunks: Vec<Vec<u8>>,
}

/// A file as it is registered.
#[derive(Clone, Debug)]
pub(super) struct Assembled {
    len: u64,
    new_len: u64,
    hash: FileHash,
    sha256: Sha256,
    terms: Vec<OpenTerm>,
}

#[derive(Debug, Default)]
struct OpenFile {
    len: u64,
    new_len: u64,
    chunk_count: u64,
    aggregator: Aggregator,
    terms: Vec<OpenTerm>,
    /// The chunks of the last term: at most those of a xorb.
    run: Vec<ChunkHash>,
}

/// A term whose xorb may not be hashed yet.
#[derive(Clone, Copy, Debug)]
struct OpenTerm {
    xorb: u32,
    start: u32,
    end: u32,
    raw_len: u32,
    range_hash: RangeHash,
}

impl Assembler {
    /// Adds a chunk to the current file; returns the xorb that got full before it.
    pub(super) fn add(&mut self, hash: ChunkHash, raw: Vec<u8>) -> Option<RawXorb> {
        let raw_len = raw.len() as u64;
        if let Some(place) = self.known.find(&hash)
            && self.file.may_use(place)
        {
            self.file.push(place, hash, raw_len);
            return None;
        }
        let full = if self.batch.takes(raw_len) { None } else { self.cut() };
        let number = *self.batch.number.get_or_insert_with(|| self.known.open_xorb());
        let index = u32::try_from(self.batch.chunks.len()).expect("a xorb has at most 8192 chunks");
        let place = Place { xorb: number, index };
        self.known.insert(hash, place);
        self.batch.chunks.push((hash, raw));
        self.batch.raw_len += raw_len;
        self.file.push(place, hash, raw_len);
        self.file.new_len += raw_len;
        full
    }

    /// Ends the current file; `None` where it could not be read: then it is as if it had not been
    /// given.
    pub(super) fn end_file(&mut self, sha256: Option<Sha256>) {
        let mut file = mem::take(&mut self.file);
        file.close_term();
        let OpenFile { len, new_len, aggregator, terms, .. } = file;
        let assembled = |sha256| Assembled { len, new_len, hash: aggregator.file_hash(), sha256, terms };
        self.files.push(sha256.map(assembled));
    }

    /// The last xorb, if there is one.
    pub(super) fn cut(&mut self) -> Option<RawXorb> {
        let Batch { number, chunks, raw_len } = mem::take(&mut self.batch);
        let number = number?;
        let narrow = |len: u64| u32::try_from(len).expect("a xorb has at most 64 MiB");
        let hash = xorb_hash(chunks.iter().map(|(hash, raw)| (hash, raw.len() as u64)));
        self.known.seal_xorb(number, hash);
        let mut info = CasInfo { hash, chunks: Vec::with_capacity(chunks.len()), raw_len: narrow(raw_len) };
        let mut raw_offset = 0;
        let mut raws = Vec::with_capacity(chunks.len());
        for (hash, raw) in chunks {
            let raw_len = narrow(raw.len() as u64);
            info.chunks.push(CasChunk { hash, raw_offset, raw_len, dedup_eligible: false });
            raw_offset += raw_len;
            raws.push(raw);
        }
        Some(RawXorb { info, chunks: raws })
    }

    /// The files in order, `None` for those that could not be read. After the last xorb was cut.
    pub(super) fn finish(self) -> (Vec<Option<Assembled>>, Known) {
        (self.files, self.known)
    }
}

impl Batch {
    /// Whether one more chunk fits, also if none of them can be compressed.
    fn takes(&self, raw_len: u64) -> bool {
        let count = self.chunks.len() as u64 + 1;
        let raw_len = self.raw_len + raw_len;
        count <= MAX_XORB_CHUNK_COUNT.into()
            && raw_len <= MAX_XORB_RAW_LEN
            && raw_len + count * u64::from(CHUNK_HEADER_LEN) <= MAX_XORB_SERIALIZED_LEN
    }
}

impl OpenFile {
    /// Whether a chunk at this place is to be used rather than stored once more.
    fn may_use(&self, place: Place) -> bool {
        let goes_on = self.terms.last().is_some_and(|last| last.is_continued_by(place));
        let term_count = self.terms.len();
        goes_on || term_count < FREE_TERM_COUNT || self.chunk_count >= MIN_TERM_CHUNK_COUNT * term_count as u64
    }

    fn push(&mut self, place: Place, hash: ChunkHash, raw_len: u64) {
        self.len += raw_len;
        self.chunk_count += 1;
        self.aggregator.push(&hash, raw_len);
        let narrow = u32::try_from(raw_len).expect("a chunk has at most 128 KiB");
        match self.terms.last_mut() {
            Some(last) if last.is_continued_by(place) => {
                last.end += 1;
                last.raw_len += narrow;
            }
            _ => {
                self.close_term();
                let (start, range_hash) = (place.index, RangeHash::from_bytes([0; 32]));
                self.terms.push(OpenTerm { xorb: place.xorb, start, end: start + 1, raw_len: narrow, range_hash });
            }
        }
        self.run.push(hash);
    }

    /// No chunk is added to the last term any more.
    fn close_term(&mut self) {
        if let Some(last) = self.terms.last_mut() {
            last.range_hash = RangeHash::of(&self.run);
        }
        self.run.clear();
    }
}

impl OpenTerm {
    fn is_continued_by(&self, place: Place) -> bool {
        self.xorb == place.xorb && self.end == place.index
    }
}

impl Assembled {
    /// Bytes of the file.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// Those of them that were in none of the known chunks.
    pub(super) const fn new_len(&self) -> u64 {
        self.new_len
    }

    /// The xorbs that it needs, by their numbers, some of them several times.
    pub(super) fn xorbs(&self) -> impl Iterator<Item = u32> + '_ {
        self.terms.iter().map(|term| term.xorb)
    }

    pub(super) const fn hash(&self) -> FileHash {
        self.hash
    }

    pub(super) const fn sha256(&self) -> Sha256 {
        self.sha256
    }

    /// The file as it stands in a shard.
    pub(super) fn info(&self, known: &Known) -> FileInfo {
        let term = |term: &OpenTerm| Term {
            xorb: known.xorb(term.xorb).expect("all xorbs are cut before files are registered"),
            raw_len: term.raw_len,
            chunks: ChunkRange::new(term.start, term.end).expect("a term has at least one chunk"),
        };
        FileInfo {
            hash: self.hash,
            terms: self.terms.iter().map(term).collect(),
            range_hashes: Some(self.terms.iter().map(|term| term.range_hash).collect()),
            // Clients disagree about the sha256 of the empty file: some say 64 zeros. There is
            // nothing to prove by it.
            sha256: (self.hash != FileHash::EMPTY).then_some(self.sha256),
        }
    }
}

#[cfg(test)]
mod tests;
