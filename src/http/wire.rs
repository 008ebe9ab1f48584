//! JSON as it goes over the wire.

use serde::Serialize;

use crate::service::{ChunkInfo, Uploaded};

/// Answer of `POST /xorbs/{hash}`.
#[derive(Debug, Serialize)]
pub(super) struct UploadedJson {
    hash: String,
    was_inserted: bool,
    chunks: u32,
    serialized_len: u64,
    raw_len: u64,
}

impl From<Uploaded> for UploadedJson {
    fn from(uploaded: Uploaded) -> Self {
        Self {
            hash: uploaded.hash.to_string(),
            was_inserted: uploaded.was_inserted,
            chunks: uploaded.chunk_count,
            serialized_len: uploaded.serialized_len,
            raw_len: uploaded.raw_len,
        }
    }
}

/// Answer of `POST /v1/xorbs/{prefix}/{hash}` (spec 5.4.1).
#[derive(Debug, Serialize)]
pub(super) struct WasInsertedJson {
    pub(super) was_inserted: bool,
}

/// Answer of `GET /xorbs/{hash}/chunks`.
#[derive(Debug, Serialize)]
pub(super) struct ChunksJson {
    pub(super) hash: String,
    pub(super) serialized_len: u64,
    pub(super) raw_len: u64,
    pub(super) chunks: Vec<ChunkJson>,
}

/// One chunk of [`ChunksJson`]. Offsets count from the start of the xorb.
#[derive(Debug, Serialize)]
pub(super) struct ChunkJson {
    index: u32,
    hash: String,
    scheme: String,
    serialized_offset: u64,
    serialized_len: u64,
    raw_offset: u64,
    raw_len: u64,
}

impl From<ChunkInfo> for ChunkJson {
    fn from(chunk: ChunkInfo) -> Self {
        Self {
            index: chunk.place.index,
            hash: chunk.hash.to_string(),
            scheme: chunk.scheme.to_string(),
            serialized_offset: chunk.place.serialized.start(),
            serialized_len: chunk.place.serialized.byte_len(),
            raw_offset: chunk.place.raw.start(),
            raw_len: chunk.place.raw.byte_len(),
        }
    }
}
