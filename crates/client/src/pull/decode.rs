//! Decompresses fetched bytes into chunks, and writes the requested bytes of them. Everything here
//! blocks.

use bytes::Bytes;
use xet_format::compression::Decoder;
use xet_format::limits::MAX_XORB_BODY_LEN;
use xet_format::merkle::Aggregator;
use xet_format::merkle::subtree::SubtreeBuilder;
use xet_format::xorb::{Splitter, XorbError, XorbErrorKind};
use xet_format::{ChunkHash, ChunkRange};

use super::PullError;
use crate::get::Sink;

/// Chunks of one slice, that is, chunks that one closure decompresses: 16 MiB at most.
const SLICE_COUNT: u32 = 128;

/// Consecutive chunks, decompressed and hashed.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    pub(super) raw: Vec<u8>,
    pub(super) chunks: Vec<(ChunkHash, u64)>,
}

/// Splits a run of chunks into slices.
pub(super) fn slices(chunks: ChunkRange) -> impl Iterator<Item = ChunkRange> {
    let starts = (chunks.start()..chunks.end()).step_by(SLICE_COUNT as usize);
    starts.filter_map(move |start| ChunkRange::new(start, chunks.end().min(start.saturating_add(SLICE_COUNT))))
}

/// Decompresses and hashes `chunks` of a xorb. `part` are the serialized bytes of the xorb from
/// chunk `first` on.
pub(super) fn decode(part: &Bytes, first: u32, chunks: ChunkRange) -> Result<Decoded, XorbError> {
    let (mut splitter, mut decoder) = (Splitter::new(MAX_XORB_BODY_LEN), Decoder::new());
    let mut rest = &part[..];
    let mut decoded = Decoded::default();
    let mut index = first;
    while index < chunks.end() {
        let Some(frame) = splitter.next_frame(&mut rest)? else {
            // `finish` returns an error if the part is empty or ends within a chunk. Otherwise the
            // part ends before the last chunk, or a footer begins there.
            splitter.finish()?;
            let kind = XorbErrorKind::NoChunks;
            return Err(XorbError { offset: part.len() as u64, chunk: Some(index), kind });
        };
        if index >= chunks.start() {
            let raw = decoder.decode(&frame.header, frame.payload()).map_err(|kind| XorbError {
                offset: frame.offset,
                chunk: Some(index),
                kind: XorbErrorKind::Payload(kind),
            })?;
            decoded.chunks.push((ChunkHash::of(raw), raw.len() as u64));
            decoded.raw.extend_from_slice(raw);
        }
        index += 1;
    }
    Ok(decoded)
}

/// Hashes all chunks and writes their requested bytes to the sink.
pub(super) struct Writer<S> {
    sink: S,
    hasher: Hasher,
    /// Bytes left to skip before the first requested one.
    skipped_len: u64,
    /// Requested bytes that are not written yet.
    left_len: u64,
    written_len: u64,
    /// Bytes of all chunks whose hashes were added.
    hashed_len: u64,
    /// Bytes of the current term so far.
    term_len: u64,
}

/// Aggregates the hashes of the chunks.
pub(super) enum Hasher {
    /// To the hash of the file.
    File(Aggregator),
    /// To the summary of a part of the file, for a proof with summaries of the server.
    Part(SubtreeBuilder),
    /// Not at all: the server has no summaries for a proof.
    Nothing,
}

impl<S: Sink> Writer<S> {
    pub(super) const fn new(sink: S, hasher: Hasher, skipped_len: u64, left_len: u64) -> Self {
        Self { sink, hasher, skipped_len, left_len, written_len: 0, hashed_len: 0, term_len: 0 }
    }

    /// Adds the hashes of these chunks, and writes their requested bytes.
    pub(super) fn take(mut self, decoded: &Decoded) -> Result<Self, PullError> {
        self.hash(&decoded.chunks);
        let raw_len = decoded.raw.len() as u64;
        let skipped_len = self.skipped_len.min(raw_len);
        let len = (raw_len - skipped_len).min(self.left_len);
        let narrow = |len: u64| usize::try_from(len).expect("its length is at most the buffer length");
        let wanted = decoded.raw.get(narrow(skipped_len)..narrow(skipped_len + len)).unwrap_or_default();
        self.sink.write(wanted).map_err(PullError::Write)?;
        if matches!(self.hasher, Hasher::File(_)) {
            self.sink.written(&decoded.chunks).map_err(PullError::Write)?;
        }
        self.skipped_len -= skipped_len;
        self.left_len -= len;
        self.written_len += len;
        Ok(self)
    }

    /// Continues after the bytes that an earlier run has left in the sink.
    pub(super) fn resume(mut self) -> Result<Self, PullError> {
        let chunks = self.sink.resume().map_err(PullError::Write)?;
        self.hash(&chunks);
        self.written_len = self.hashed_len;
        Ok(self)
    }

    /// Discards all bytes and hashes, to begin again at the first byte.
    pub(super) fn restart(mut self, hasher: Hasher) -> Result<Self, PullError> {
        self.sink.restart().map_err(PullError::Write)?;
        Ok(Self::new(self.sink, hasher, 0, u64::MAX))
    }

    /// Adds the hashes of these chunks, without writing any bytes.
    pub(super) fn hash(&mut self, chunks: &[(ChunkHash, u64)]) {
        for (hash, raw_len) in chunks {
            self.hashed_len = self.hashed_len.saturating_add(*raw_len);
            match &mut self.hasher {
                Hasher::File(aggregator) => aggregator.push(hash, *raw_len),
                Hasher::Part(builder) => builder.push(hash, *raw_len),
                Hasher::Nothing => {}
            }
        }
    }

    /// Bytes of all chunks whose hashes were added.
    pub(super) const fn hashed_len(&self) -> u64 {
        self.hashed_len
    }

    /// Skips this many more bytes before the first requested one.
    pub(super) fn skip(&mut self, len: u64) {
        self.skipped_len += len;
    }

    /// Adds `len` bytes to the current term and returns its length so far. If `ends`, the next
    /// bytes belong to the next term.
    pub(super) fn count_term(&mut self, len: u64, ends: bool) -> u64 {
        self.term_len += len;
        if ends { std::mem::take(&mut self.term_len) } else { self.term_len }
    }

    /// The aggregated hashes of the chunks.
    pub(super) const fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// Bytes written so far.
    pub(super) const fn written_len(&self) -> u64 {
        self.written_len
    }

    pub(super) fn finish(self) -> (S, Hasher, u64) {
        (self.sink, self.hasher, self.written_len)
    }
}

#[cfg(test)]
mod tests;
