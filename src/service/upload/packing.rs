//! Packs the bytes of files into xorbs, for files that no client has cut: those of a commit, and
//! those of clients that do not know chunks.
//!
//! Chunks are cut, compressed and written to the draft of a xorb while their bytes arrive. Each
//! chunk is then verified in its stored form, like a chunk of an upload. Memory holds one chunk,
//! what is known of the chunks of one xorb, and some 60 bytes per term. Readers see nothing before
//! the caller publishes the xorbs.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use super::Verified;
use super::draft_slot::DraftSlot;
use crate::format::chunk::ChunkHeader;
use crate::format::chunker::Chunker;
use crate::format::compression::{Encoder, Policy};
use crate::format::limits::{
    CHUNK_HEADER_LEN, MAX_XORB_BODY_LEN, MAX_XORB_CHUNK_COUNT, MAX_XORB_RAW_LEN, MAX_XORB_SERIALIZED_LEN,
};
use crate::format::merkle::Aggregator;
use crate::format::shard::{FileInfo, Term};
use crate::format::xorb::Verifier;
use crate::format::{ChunkHash, ChunkRange, Crc64, FileHash, RangeHash, XorbHash};
use crate::runtime::fair::Tenant;
use crate::service::Store;
use crate::service::error::StoreError;

/// A chunk that is in the xorb already gets a term of its own, so a file that repeats one chunk
/// would have as many terms as chunks, each of 96 bytes in the index and in its record. Beyond this
/// number of terms, a file may have one term for each [`MIN_RUN_COUNT`] chunks; then the chunk is
/// stored again. Chunks that repeat often compress well, as zeros do.
const FREE_TERM_COUNT: usize = if cfg!(test) { 4 } else { 1024 };

/// See [`FREE_TERM_COUNT`].
const MIN_RUN_COUNT: usize = 8;

/// Maximum number of terms before a chunk of the xorb is always stored again. The terms of a file
/// are in memory until it is registered, 64 bytes each.
const MAX_TERM_COUNT: usize = 50_000;

/// Maximum bytes of a xorb, raw and serialized. In unit tests, a short file has several xorbs.
pub(super) const XORB_LEN: u64 = if cfg!(test) { 256 << 10 } else { MAX_XORB_SERIALIZED_LEN };
const _: () = assert!(XORB_LEN <= MAX_XORB_SERIALIZED_LEN && XORB_LEN <= MAX_XORB_RAW_LEN);

/// Files that are being packed, one after another.
pub(in crate::service) struct Packing {
    store: Arc<Store>,
    tenant: Tenant,
    encoder: Encoder,
    /// The serialized form of the last chunk.
    record: Vec<u8>,
    xorb: OpenXorb,
    /// The hashes of the xorbs before, in order.
    hashes: Vec<XorbHash>,
    /// Those of them that the caller has not taken yet.
    full: Vec<Verified>,
    chunker: Chunker,
    /// Bytes of the chunk that has not ended yet.
    chunk: Vec<u8>,
    file: OpenFile,
    ended: Vec<(FileHash, Vec<OpenTerm>)>,
}

/// The xorb that is being filled.
struct OpenXorb {
    verifier: Verifier,
    crc64: Crc64,
    draft: DraftSlot,
    chunk_count: u32,
    raw_len: u64,
    serialized_len: u64,
    /// The index of each chunk; of the first one of equal chunks.
    indexes: HashMap<ChunkHash, u32>,
}

/// A file of which more bytes may come.
#[derive(Default)]
struct OpenFile {
    aggregator: Aggregator,
    chunk_count: usize,
    terms: Vec<OpenTerm>,
    /// The chunks of the last term.
    last: Vec<ChunkHash>,
}

/// A term that names its xorb by number, because the xorb may have no hash yet.
struct OpenTerm {
    xorb: usize,
    start: u32,
    end: u32,
    raw_len: u64,
    /// `None` while the term may get more chunks.
    range_hash: Option<RangeHash>,
}

impl Packing {
    /// No files yet.
    pub(in crate::service) fn new(store: &Arc<Store>, tenant: Tenant) -> Self {
        Self {
            store: Arc::clone(store),
            tenant,
            encoder: Encoder::new(),
            record: Vec::new(),
            xorb: OpenXorb::new(store),
            hashes: Vec::new(),
            full: Vec::new(),
            chunker: Chunker::new(),
            chunk: Vec::new(),
            file: OpenFile::default(),
            ended: Vec::new(),
        }
    }

    /// Takes the next bytes of the current file. Blocks.
    pub(in crate::service) fn push(&mut self, mut piece: &[u8]) -> Result<(), StoreError> {
        while !piece.is_empty() {
            let Some(end) = self.chunker.next_boundary(piece) else {
                self.chunk.extend_from_slice(piece);
                return Ok(());
            };
            let (taken, rest) = piece.split_at(end);
            piece = rest;
            if self.chunk.is_empty() {
                self.add(taken)?;
            } else {
                self.chunk.extend_from_slice(taken);
                self.add_open_chunk()?;
            }
        }
        Ok(())
    }

    /// Ends the current file, and returns its hash. The next bytes belong to the next file. Blocks.
    pub(in crate::service) fn end_file(&mut self) -> Result<FileHash, StoreError> {
        if !self.chunk.is_empty() {
            self.add_open_chunk()?;
        }
        self.chunker = Chunker::new();
        let (hash, terms) = mem::take(&mut self.file).end();
        self.ended.push((hash, terms));
        Ok(hash)
    }

    /// Whether a xorb is full that was not taken yet.
    pub(super) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Frees the memory that compression and decompression took, while more bytes are awaited.
    pub(super) fn release_scratch(&mut self) {
        (self.encoder, self.record) = (Encoder::new(), Vec::new());
        self.xorb.verifier.release_scratch();
    }

    /// The xorbs that became full since the last call.
    pub(super) fn take_full(&mut self) -> Vec<Verified> {
        mem::take(&mut self.full)
    }

    /// The xorbs that were not taken yet, and the files in order. The empty file has no terms.
    /// Blocks.
    pub(in crate::service) fn finish(mut self) -> Result<(Vec<Verified>, Vec<FileInfo>), StoreError> {
        self.close_xorb()?;
        let hashes = &self.hashes;
        let files = self.ended.into_iter().map(|(hash, terms)| {
            let range_hashes = Some(terms.iter().filter_map(|term| term.range_hash).collect());
            let terms = terms.into_iter().map(|term| term.named(hashes)).collect();
            FileInfo { hash, terms, range_hashes, sha256: None }
        });
        let files = files.collect();
        Ok((self.full, files))
    }

    /// Adds the chunk that was collected.
    fn add_open_chunk(&mut self) -> Result<(), StoreError> {
        let mut chunk = mem::take(&mut self.chunk);
        let added = self.add(&chunk);
        chunk.clear();
        self.chunk = chunk;
        added
    }

    /// Adds a chunk to the file, and to the xorb unless it is there.
    fn add(&mut self, raw: &[u8]) -> Result<(), StoreError> {
        let (hash, raw_len) = (ChunkHash::of(raw), raw.len() as u64);
        let known = self.xorb.indexes.get(&hash).copied();
        let known = known.filter(|index| self.file.may_name(self.hashes.len(), *index));
        let index = match known {
            Some(index) => index,
            None => self.store_chunk(raw, hash)?,
        };
        self.file.push((self.hashes.len(), index), hash, raw_len);
        Ok(())
    }

    /// Writes a chunk to the xorb, or to the next one if it does not fit. Returns its index there.
    fn store_chunk(&mut self, raw: &[u8], hash: ChunkHash) -> Result<u32, StoreError> {
        let Self { encoder, record, .. } = self;
        record.clear();
        // The header depends on the payload, and replaces these bytes when that is written.
        record.extend_from_slice(&[0; CHUNK_HEADER_LEN as usize]);
        let scheme = encoder.encode(Policy::Predict, raw, record);
        let (header, payload) = record.split_first_chunk_mut().expect("the record begins with a header");
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("a chunk has at most 128 KiB");
        *header = ChunkHeader { payload_len: len(payload), scheme, raw_len: len(raw) }.to_bytes();
        if !self.xorb.has_space(raw.len() as u64, self.record.len() as u64) {
            self.close_xorb()?;
        }
        self.xorb.add(self.store.as_ref(), &self.record, (hash, raw.len() as u64))
    }

    /// Ends the xorb, if it has a chunk, and begins the next one.
    fn close_xorb(&mut self) -> Result<(), StoreError> {
        if self.xorb.chunk_count == 0 {
            return Ok(());
        }
        let xorb = mem::replace(&mut self.xorb, OpenXorb::new(&self.store));
        let verified = xorb.close(self.tenant)?;
        self.hashes.push(verified.hash());
        self.full.push(verified);
        Ok(())
    }
}

impl OpenXorb {
    fn new(store: &Store) -> Self {
        Self {
            verifier: Verifier::new(MAX_XORB_BODY_LEN),
            crc64: Crc64::new(),
            draft: DraftSlot::new(store.pool.clone()),
            chunk_count: 0,
            raw_len: 0,
            serialized_len: 0,
            indexes: HashMap::new(),
        }
    }

    fn has_space(&self, raw_len: u64, record_len: u64) -> bool {
        self.chunk_count < MAX_XORB_CHUNK_COUNT
            && self.raw_len.saturating_add(raw_len) <= XORB_LEN
            && self.serialized_len.saturating_add(record_len) <= XORB_LEN
    }

    /// Appends a serialized chunk, and returns its index.
    fn add(&mut self, store: &Store, record: &[u8], (hash, raw_len): (ChunkHash, u64)) -> Result<u32, StoreError> {
        let mut rest = record;
        // What is stored must decompress to what was received, or the file is lost at its first
        // reading. No client has hashed these bytes, so nothing else compares them.
        let verified = self.verifier.next_chunk(&mut rest).ok().flatten().map(|chunk| chunk.hash);
        assert!(verified == Some(hash) && rest.is_empty(), "a chunk does not decompress to the bytes it was made of");
        self.crc64.update(record);
        self.draft.write(store.blobs.as_ref(), record)?;
        let index = self.chunk_count;
        self.chunk_count += 1;
        self.raw_len += raw_len;
        self.serialized_len += record.len() as u64;
        self.indexes.entry(hash).or_insert(index);
        Ok(index)
    }

    fn close(mut self, tenant: Tenant) -> Result<Verified, StoreError> {
        let xorb = self.verifier.finish().expect("each chunk was verified, and there is one");
        self.draft.flush()?;
        Ok(Verified { tenant, xorb, crc64: self.crc64.value(), draft: self.draft })
    }
}

impl OpenFile {
    /// Whether the next chunk of the file may be this one, which is stored already.
    fn may_name(&self, xorb: usize, index: u32) -> bool {
        let extends = self.terms.last().is_some_and(|last| last.is_before(xorb, index));
        let most = FREE_TERM_COUNT.saturating_add(self.chunk_count / MIN_RUN_COUNT).min(MAX_TERM_COUNT);
        extends || self.terms.len() < most
    }

    fn push(&mut self, (xorb, index): (usize, u32), hash: ChunkHash, raw_len: u64) {
        self.aggregator.push(&hash, raw_len);
        self.chunk_count += 1;
        match self.terms.last_mut() {
            Some(last) if last.is_before(xorb, index) => {
                last.end += 1;
                last.raw_len += raw_len;
            }
            _ => {
                self.close_term();
                self.terms.push(OpenTerm { xorb, start: index, end: index + 1, raw_len, range_hash: None });
            }
        }
        self.last.push(hash);
    }

    fn close_term(&mut self) {
        if let Some(last) = self.terms.last_mut() {
            last.range_hash = Some(RangeHash::of(&self.last));
            self.last.clear();
        }
    }

    fn end(mut self) -> (FileHash, Vec<OpenTerm>) {
        self.close_term();
        (self.aggregator.file_hash(), self.terms)
    }
}

impl OpenTerm {
    /// Whether this chunk follows the term in its xorb.
    const fn is_before(&self, xorb: usize, index: u32) -> bool {
        self.xorb == xorb && self.end == index
    }

    fn named(self, xorbs: &[XorbHash]) -> Term {
        let xorb = *xorbs.get(self.xorb).expect("the xorbs of all terms are closed");
        let raw_len = u32::try_from(self.raw_len).expect("the chunks of a term are in one xorb of 64 MiB");
        let chunks = ChunkRange::new(self.start, self.end).expect("a term has a chunk");
        Term { xorb, raw_len, chunks }
    }
}
