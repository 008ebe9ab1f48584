//! The server's JSON, as far as a client reads it. Fields that are not listed are ignored, so a
//! server may add some.

use std::collections::HashMap;

use serde::Deserialize;

/// Response to an upload, on either of its paths.
#[derive(Debug, Deserialize)]
pub(super) struct UploadedJson {
    pub(super) was_inserted: bool,
}

/// Response to `GET /xorbs/{hash}/chunks`.
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

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(super) struct PageJson<E> {
    pub(super) files: Option<Vec<E>>,
    pub(super) xorbs: Option<Vec<E>>,
    pub(super) next: Option<String>,
}

/// A line of the response to `POST /v2/shards`. Unknown ones are skipped (spec 5.6).
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum ShardEventJson {
    /// Everything is registered.
    Result {},
    /// Nothing is.
    Error {
        message: String,
        code: Option<String>,
        #[serde(default)]
        retryable: bool,
    },
    #[serde(other)]
    Other,
}

/// Response to `GET /v2/reconstructions/{file}` (spec 5.1).
#[derive(Debug, Deserialize)]
pub(super) struct PlanJson {
    pub(super) offset_into_first_range: u64,
    pub(super) terms: Vec<TermJson>,
    pub(super) xorbs: HashMap<String, Vec<PartsJson>>,
}

/// Response to `POST /v1/reconstructions` (spec 5.3).
#[derive(Debug, Deserialize)]
pub(super) struct BatchPlanJson {
    pub(super) files: HashMap<String, Vec<TermJson>>,
    pub(super) fetch_info: HashMap<String, Vec<FetchInfoJson>>,
}

/// A part of a xorb with a URL of its own.
#[derive(Debug, Deserialize)]
pub(super) struct FetchInfoJson {
    pub(super) url: String,
    pub(super) range: RangeJson,
    /// The end belongs to the range.
    pub(super) url_range: RangeJson,
}

/// A term of [`PlanJson`].
#[derive(Debug, Deserialize)]
pub(super) struct TermJson {
    pub(super) hash: String,
    pub(super) unpacked_length: u64,
    pub(super) range: RangeJson,
}

/// Parts of a xorb that one URL is for.
#[derive(Debug, Deserialize)]
pub(super) struct PartsJson {
    pub(super) url: String,
    pub(super) ranges: Vec<PartJson>,
}

/// One of them.
#[derive(Debug, Deserialize)]
pub(super) struct PartJson {
    pub(super) chunks: RangeJson,
    /// The end belongs to the range.
    pub(super) bytes: RangeJson,
}

/// Two numbers.
#[derive(Debug, Deserialize)]
pub(super) struct RangeJson {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Response to `GET /v2/file-chunk-hashes/{file}`, as far as a reader needs it (spec 5.9).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SurroundingsJson {
    pub(super) file_size: u64,
    pub(super) windows: Vec<WindowJson>,
    pub(super) hash_ranges: Vec<Option<SubtreeJson>>,
}

/// A window of [`SurroundingsJson`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WindowJson {
    /// Start, and end that is not included.
    pub(super) dirty_byte_range: [u64; 2],
}

/// A summary of a run of chunks (spec 1.9).
#[derive(Debug, Deserialize)]
pub(super) struct SubtreeJson {
    pub(super) nodes: Vec<NodeJson>,
    pub(super) levels: Vec<(usize, usize)>,
    pub(super) at_start: bool,
    pub(super) at_end: bool,
}

/// A node of [`SubtreeJson`].
#[derive(Debug, Deserialize)]
pub(super) struct NodeJson {
    pub(super) hash: String,
    pub(super) size: u64,
}
