//! From fetched bytes to chunks, and from chunks to what is asked for. Everything here blocks.

use bytes::Bytes;
use xet_format::compression::Decoder;
use xet_format::limits::MAX_XORB_BODY_LEN;
use xet_format::merkle::Aggregator;
use xet_format::merkle::subtree::SubtreeBuilder;
use xet_format::xorb::{Splitter, XorbError, XorbErrorKind};
use xet_format::{ChunkHash, ChunkRange};

use super::PullError;
use crate::get::Sink;

/// Chunks that are decompressed at once: 16 MiB at most.
const SLICE_COUNT: u32 = 128;

/// Consecutive chunks, decompressed and hashed.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    pub(super) raw: Vec<u8>,
    pub(super) chunks: Vec<(ChunkHash, u64)>,
}

/// Splits a run of chunks into runs that are decompressed at once.
pub(super) fn slices(chunks: ChunkRange) -> impl Iterator<Item = ChunkRange> {
    let starts = (chunks.start()..chunks.end()).step_by(SLICE_COUNT as usize);
    starts.filter_map(move |start| ChunkRange::new(start, chunks.end().min(start.saturating_add(SLICE_COUNT))))
}

/// Decompresses and hashes chunks out of a part that begins with chunk `first`.
pub(super) fn decode(part: &Bytes, first: u32, chunks: ChunkRange) -> Result<Decoded, XorbError> {
    let (mut splitter, mut decoder) = (Splitter::new(MAX_XORB_BODY_LEN), Decoder::new());
    let mut rest = &part[..];
    let mut decoded = Decoded::default();
    let mut index = first;
    while index < chunks.end() {
        let Some(frame) = splitter.next_frame(&mut rest)? else {
            // Says how the part ends: within a chunk, in a footer, or too early.
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

/// Hashes all chunks and writes those bytes of them that are asked for.
pub(super) struct Writer<S> {
    sink: S,
    hasher: Hasher,
    /// Bytes to come before the first one that is asked for.
    skipped_len: u64,
    /// Bytes to be written.
    left_len: u64,
    written_len: u64,
    hashed_len: u64,
    /// Bytes of the current term so far.
    term_len: u64,
}

/// What the chunks are added up to.
pub(super) enum Hasher {
    /// The hash of the file.
    File(Aggregator),
    /// The summary of a part of it, where there is something to prove it by.
    Part(SubtreeBuilder),
    Nothing,
}

impl<S: Sink> Writer<S> {
    pub(super) const fn new(sink: S, hasher: Hasher, skipped_len: u64, left_len: u64) -> Self {
        Self { sink, hasher, skipped_len, left_len, written_len: 0, hashed_len: 0, term_len: 0 }
    }

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

    /// Goes on behind what an earlier run has left in the sink.
    pub(super) fn resume(mut self) -> Result<Self, PullError> {
        let chunks = self.sink.resume().map_err(PullError::Write)?;
        self.hash(&chunks);
        self.written_len = self.hashed_len;
        Ok(self)
    }

    /// Forgets all bytes and begins anew.
    pub(super) fn restart(mut self, hasher: Hasher) -> Result<Self, PullError> {
        self.sink.restart().map_err(PullError::Write)?;
        Ok(Self::new(self.sink, hasher, 0, u64::MAX))
    }

    /// Takes chunks of which only the hashes are there: they come behind all that is to be written.
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

    /// Bytes of all chunks so far.
    pub(super) const fn hashed_len(&self) -> u64 {
        self.hashed_len
    }

    /// Leaves out so many more bytes before the first one that is asked for.
    pub(super) fn skip(&mut self, len: u64) {
        self.skipped_len += len;
    }

    /// Bytes of the current term, with these; the next ones belong to the next term if it `ends`.
    pub(super) fn count_term(&mut self, len: u64, ends: bool) -> u64 {
        self.term_len += len;
        if ends { std::mem::take(&mut self.term_len) } else { self.term_len }
    }

    /// What the chunks were added up to.
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
