//! The server's JSON, as far as a client reads it. Fields that are not listed are ignored, so a server may add some.

use serde::Deserialize;

/// Answer of an upload, on either of its paths.
#[derive(Debug, Deserialize)]
pub(super) struct UploadedJson {
    pub(super) was_inserted: bool,
}

/// Answer of `GET /xorbs/{hash}/chunks`.
#[derive(Debug, Deserialize)]
pub(super) struct ChunksJson {
    pub(super) chunks: Vec<ChunkJson>,
}

/// One chunk of [`ChunksJson`].
#[derive(Debug, Deserialize)]
pub(super) struct ChunkJson {
    pub(super) hash: String,
    pub(super) raw_len: u64,
}
