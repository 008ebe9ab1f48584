//! A verified xorb. Only [`Seen::seal`] creates one, from chunks that were hashed.

use super::layout::{Layout, LayoutBuilder, LayoutError};
use crate::hash::{ChunkHash, XorbHash};
use crate::merkle::Aggregator;
use crate::scheme::Scheme;

/// A xorb whose bytes were verified, without the bytes.
///
/// A value of this type guarantees that the chunks are within the limits and decompress to the
/// declared lengths, and that the hashes are those of the raw bytes. If the body had a footer, it
/// matched the chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedXorb {
    hash: XorbHash,
    layout: Layout,
    chunk_hashes: Vec<ChunkHash>,
    schemes: Vec<Scheme>,
}

impl VerifiedXorb {
    /// Identity of the xorb.
    #[must_use]
    pub const fn hash(&self) -> XorbHash {
        self.hash
    }

    /// Where the chunks are.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The hash of each chunk.
    #[must_use]
    pub fn chunk_hashes(&self) -> &[ChunkHash] {
        &self.chunk_hashes
    }

    /// How each chunk is compressed.
    #[must_use]
    pub fn schemes(&self) -> &[Scheme] {
        &self.schemes
    }

    /// Hash, layout, chunk hashes and schemes.
    #[must_use]
    pub fn into_parts(self) -> (XorbHash, Layout, Vec<ChunkHash>, Vec<Scheme>) {
        (self.hash, self.layout, self.chunk_hashes, self.schemes)
    }
}

/// Collects the hashes and lengths of the chunks, in order, while a xorb is verified or built.
#[derive(Clone, Default)]
pub(super) struct Seen {
    aggregator: Aggregator,
    layout: LayoutBuilder,
    chunk_hashes: Vec<ChunkHash>,
    schemes: Vec<Scheme>,
}

impl Seen {
    /// Hashes the raw bytes of the next chunk and adds it. `record_len` is the length of its header
    /// and its payload.
    pub(super) fn push(&mut self, raw: &[u8], record_len: u32, scheme: Scheme) -> Result<ChunkHash, LayoutError> {
        self.layout.push(record_len, u32::try_from(raw.len()).unwrap_or(u32::MAX))?;
        let hash = ChunkHash::of(raw);
        self.aggregator.push(&hash, raw.len() as u64);
        self.chunk_hashes.push(hash);
        self.schemes.push(scheme);
        Ok(hash)
    }

    pub(super) fn chunk_count(&self) -> u32 {
        self.layout.chunk_count()
    }

    /// The xorb of the chunks added; `None` without chunks.
    pub(super) fn seal(self) -> Option<VerifiedXorb> {
        let Self { aggregator, layout, chunk_hashes, schemes } = self;
        Some(VerifiedXorb { layout: layout.finish()?, hash: aggregator.xorb_hash(), chunk_hashes, schemes })
    }
}
