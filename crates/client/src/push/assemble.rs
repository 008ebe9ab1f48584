//! Assembles chunks into xorbs and files, without any input or output.

use std::mem;

use xet_format::limits::{CHUNK_HEADER_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN, MAX_XORB_SERIALIZED_LEN};
use xet_format::merkle::{Aggregator, xorb_hash};
use xet_format::shard::{CasChunk, CasInfo, FileInfo, Sha256, Term};
use xet_format::{ChunkHash, ChunkRange, FileHash, RangeHash};

use super::known::{Known, Place};

/// Terms that a file may have, however short they are.
const FREE_TERM_COUNT: usize = 1 << 16;

/// Beyond [`FREE_TERM_COUNT`] terms, the chunks per term that a file must have on average.
const MIN_TERM_CHUNK_COUNT: u64 = 8;

/// Forms xorbs of the unknown chunks of files, and records where each chunk is.
///
/// A known chunk is reused, even if it is a run (a term) of its own. This is cheap: the cost of a
/// push is the bytes sent, and a reader gets all runs of a xorb with one URL.
///
/// The exception is a file of very many runs, because its terms must fit into one shard. If the
/// file has [`FREE_TERM_COUNT`] terms that are short on average, a known chunk that would begin a
/// new run is stored again.
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
    /// Its number in [`Known`]; `None` until it has a chunk.
    number: Option<u32>,
    chunks: Vec<(ChunkHash, Vec<u8>)>,
    raw_len: u64,
}

/// A xorb that gets no more chunks and is not compressed yet.
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

/// The file whose chunks are being added.
#[derive(Debug, Default)]
struct OpenFile {
    len: u64,
    /// Bytes of its chunks that had to be sent: the unknown ones, and the known ones that
    /// `may_use` rejects.
    new_len: u64,
    chunk_count: u64,
    aggregator: Aggregator,
    terms: Vec<OpenTerm>,
    /// The chunks of the last term: at most 8192, because a term is within one xorb.
    run: Vec<ChunkHash>,
}

/// A term that names its xorb by number, because the xorb may have no hash yet.
#[derive(Clone, Copy, Debug)]
struct OpenTerm {
    /// The number of the xorb in [`Known`].
    xorb: u32,
    start: u32,
    end: u32,
    raw_len: u32,
    range_hash: RangeHash,
}

impl Assembler {
    /// Adds a chunk to the current file, and if it must be sent, to the xorb that is being filled.
    /// If it does not fit into this xorb, begins a new one and returns the full one.
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

    /// Ends the current file. If `sha256` is `None`, the file could not be read and is left out.
    pub(super) fn end_file(&mut self, sha256: Option<Sha256>) {
        let mut file = mem::take(&mut self.file);
        file.close_term();
        let OpenFile { len, new_len, aggregator, terms, .. } = file;
        let assembled = |sha256| Assembled { len, new_len, hash: aggregator.file_hash(), sha256, terms };
        self.files.push(sha256.map(assembled));
    }

    /// Ends the xorb that is being filled and returns it; `None` if it has no chunk.
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
            // Uploads have no such flags: the server sets them in its responses (spec 4.5).
            info.chunks.push(CasChunk { hash, raw_offset, raw_len, dedup_eligible: false });
            raw_offset += raw_len;
            raws.push(raw);
        }
        Some(RawXorb { info, chunks: raws })
    }

    /// The files in order, `None` for those that could not be read. To be called after
    /// [`cut`](Self::cut), so that all xorbs have their hashes.
    pub(super) fn finish(self) -> (Vec<Option<Assembled>>, Known) {
        (self.files, self.known)
    }
}

impl Batch {
    /// Whether one more chunk fits, even if no chunk of the xorb can be compressed.
    fn takes(&self, raw_len: u64) -> bool {
        let count = self.chunks.len() as u64 + 1;
        let raw_len = self.raw_len + raw_len;
        count <= MAX_XORB_CHUNK_COUNT.into()
            && raw_len <= MAX_XORB_RAW_LEN
            && raw_len + count * u64::from(CHUNK_HEADER_LEN) <= MAX_XORB_SERIALIZED_LEN
    }
}

impl OpenFile {
    /// Whether to reuse the known chunk at this place, instead of storing it again.
    fn may_use(&self, place: Place) -> bool {
        let goes_on = self.terms.last().is_some_and(|last| last.is_continued_by(place));
        let term_count = self.terms.len();
        goes_on || term_count < FREE_TERM_COUNT || self.chunk_count >= MIN_TERM_CHUNK_COUNT * term_count as u64
    }

    /// Adds a chunk to the file: extends the last term if the chunk follows it in the same xorb.
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

    /// Completes the last term: computes its range hash.
    fn close_term(&mut self) {
        if let Some(last) = self.terms.last_mut() {
            last.range_hash = RangeHash::of(&self.run);
        }
        self.run.clear();
    }
}

impl OpenTerm {
    /// Whether the chunk at this place directly follows the term.
    fn is_continued_by(&self, place: Place) -> bool {
        self.xorb == place.xorb && self.end == place.index
    }
}

impl Assembled {
    /// Bytes of the file.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of its chunks that had to be sent.
    pub(super) const fn new_len(&self) -> u64 {
        self.new_len
    }

    /// The numbers of the xorbs that it needs; a number may occur several times.
    pub(super) fn xorbs(&self) -> impl Iterator<Item = u32> + '_ {
        self.terms.iter().map(|term| term.xorb)
    }

    pub(super) const fn hash(&self) -> FileHash {
        self.hash
    }

    pub(super) const fn sha256(&self) -> Sha256 {
        self.sha256
    }

    /// The entry of the file in a shard.
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
            // Some clients send 64 zeros as the sha256 of the empty file. To avoid two statements
            // about one file, this client sends none: the file has no bytes to verify.
            sha256: (self.hash != FileHash::EMPTY).then_some(self.sha256),
        }
    }
}

#[cfg(test)]
mod tests;
