//! Verifies the received bytes chunk by chunk and writes them to the sink.

use bytes::Bytes;
use xet_format::limits::MAX_XORB_BODY_LEN;
use xet_format::xorb::{VerifiedChunk, Verifier};
use xet_format::{ChunkHash, ChunkRange, XorbHash};

use super::{GetError, Got, Sink};

/// The chunks that the server should send.
pub(super) enum Expected {
    /// All chunks of the xorb: they aggregate to its hash.
    Whole,
    /// These chunks of the xorb, which have these hashes.
    Part(ChunkRange, Vec<ChunkHash>),
}

/// The state of a download that verifies and writes batch after batch. All methods block.
pub(super) struct Intake<S> {
    hash: XorbHash,
    expected: Expected,
    raw: bool,
    verifier: Verifier,
    sink: S,
}

impl<S: Sink> Intake<S> {
    pub(super) fn new(hash: XorbHash, expected: Expected, raw: bool, sink: S) -> Self {
        Self { hash, expected, raw, verifier: verifier(), sink }
    }

    /// Verifies the chunks that end in these pieces and writes them to the sink.
    pub(super) fn take(mut self, pieces: Vec<Bytes>) -> Result<Self, GetError> {
        let hash = self.hash;
        for piece in pieces {
            let mut rest = &piece[..];
            while let Some(chunk) =
                self.verifier.next_chunk(&mut rest).map_err(|source| GetError::Damaged { hash, source })?
            {
                check(hash, &self.expected, &chunk)?;
                let bytes = if self.raw { chunk.raw } else { chunk.frame.bytes };
                self.sink.write(bytes).map_err(GetError::Write)?;
            }
        }
        Ok(self)
    }

    /// Discards everything, because the transfer restarts at the first byte.
    pub(super) fn restart(mut self) -> Result<Self, GetError> {
        self.sink.restart().map_err(GetError::Write)?;
        self.verifier = verifier();
        Ok(self)
    }

    /// All bytes have arrived: checks that they are what was requested.
    pub(super) fn finish(self) -> Result<(Got, S), GetError> {
        let hash = self.hash;
        let xorb = self.verifier.finish().map_err(|source| GetError::Damaged { hash, source })?;
        let layout = xorb.layout();
        let chunks = match self.expected {
            Expected::Whole if xorb.hash() != hash => return Err(GetError::WrongXorb { hash, actual: xorb.hash() }),
            Expected::Whole => layout.whole(),
            Expected::Part(chunks, _) if chunks.count() != layout.chunk_count() => {
                let (expected, actual) = (chunks.count(), layout.chunk_count());
                return Err(GetError::WrongCount { hash, expected, actual });
            }
            Expected::Part(chunks, _) => chunks,
        };
        Ok((Got { chunks, serialized_len: layout.serialized_len(), raw_len: layout.raw_len() }, self.sink))
    }
}

fn verifier() -> Verifier {
    Verifier::new(MAX_XORB_BODY_LEN)
}

/// Compares a received chunk with the requested one.
fn check(hash: XorbHash, expected: &Expected, chunk: &VerifiedChunk<'_>) -> Result<(), GetError> {
    let Expected::Part(chunks, hashes) = expected else { return Ok(()) };
    let index = chunk.frame.index;
    match hashes.get(index as usize) {
        Some(expected) if *expected == chunk.hash => Ok(()),
        Some(expected) => {
            let (expected, actual) = (*expected, chunk.hash);
            Err(GetError::WrongChunk { hash, index: chunks.start() + index, expected, actual })
        }
        None => Err(GetError::WrongCount { hash, expected: chunks.count(), actual: index + 1 }),
    }
}
