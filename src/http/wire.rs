//! JSON as it goes over the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schema;
use super::schema::HashText;
use crate::format::{ByteRange, ChunkRange};
use crate::service::reconstruct::PlannedTerm;
use crate::service::{ChunkInfo, Uploaded};

/// Response to `POST /xorbs/{hash}`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UploadedJson {
    #[schema(value_type = HashText)]
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

/// Response to `POST /v1/xorbs/{prefix}/{hash}` (spec 5.4.1).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WasInsertedJson {
    pub(super) was_inserted: bool,
}

/// Body of `POST /v1/xorb-grants/{prefix}/{hash}` (spec 5.4.2).
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct GrantRequestJson {
    #[schema(minimum = 1)]
    pub(super) length: u64,
    pub(super) checksum: ChecksumJson,
}

/// The checksum of [`GrantRequestJson`]: `crc64nvme`, and the number in decimal digits.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ChecksumJson {
    #[schema(schema_with = schema::checksums)]
    pub(super) algo: String,
    #[schema(schema_with = schema::digits)]
    pub(super) value: String,
}

/// Response to `POST /v1/xorb-grants/{prefix}/{hash}`: the upload request to send, and the id to
/// commit.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GrantJson {
    pub(super) id: String,
    #[schema(schema_with = schema::grant_methods)]
    pub(super) method: &'static str,
    pub(super) url: String,
    pub(super) headers: BTreeMap<String, String>,
}

/// Response to `GET /xorbs/{hash}/chunks`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChunksJson {
    #[schema(value_type = HashText)]
    pub(super) hash: String,
    pub(super) serialized_len: u64,
    pub(super) raw_len: u64,
    pub(super) chunks: Vec<ChunkJson>,
}

/// One chunk of [`ChunksJson`]. Offsets count from the start of the xorb.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChunkJson {
    index: u32,
    #[schema(value_type = HashText)]
    hash: String,
    #[schema(schema_with = schema::schemes)]
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

/// Response to `POST /v1/shards` (spec 5.6): 1 if anything was new, else 0.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RegisteredJson {
    pub(super) result: u8,
}

/// Response of `GET /healthz`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StatusJson {
    pub(super) status: &'static str,
}

/// Response of `GET /readyz`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReadyJson {
    pub(super) status: &'static str,
    /// `ok`, or `full` while less than `min_free_space` is free: reads and deletions go on, uploads
    /// are refused.
    pub(super) store: &'static str,
}

/// Body of `POST /v1/reconstructions` (spec 5.3).
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct FileKeysJson(pub(super) Vec<FileKeyJson>);

/// One file of [`FileKeysJson`]. Clients send a prefix, too; it means nothing.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct FileKeyJson {
    #[schema(value_type = HashText)]
    pub(super) hash: String,
}

/// Response to `GET /v1/reconstructions/{file}` (spec 5.2). Xorbs are keys.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReconstructionV1Json {
    pub(super) offset_into_first_range: u64,
    pub(super) terms: Vec<TermJson>,
    pub(super) fetch_info: BTreeMap<String, Vec<FetchInfoJson>>,
}

/// Response to `GET /v2/reconstructions/{file}` (spec 5.1). Xorbs are keys.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReconstructionV2Json {
    pub(super) offset_into_first_range: u64,
    pub(super) terms: Vec<TermJson>,
    pub(super) xorbs: BTreeMap<String, Vec<FetchJson>>,
}

/// Response to the batch queries (spec 5.3). Files and xorbs are keys.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchJson {
    pub(super) files: BTreeMap<String, Vec<TermJson>>,
    pub(super) fetch_info: BTreeMap<String, Vec<FetchInfoJson>>,
}

/// A run of chunks that is part of a file.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TermJson {
    #[schema(value_type = HashText)]
    hash: String,
    unpacked_length: u64,
    range: ChunkRangeJson,
    /// Raw lengths of its chunks, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chunk_byte_sizes: Option<Vec<u32>>,
}

/// Chunks from `start` to `end`, the latter not included.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct ChunkRangeJson {
    start: u32,
    end: u32,
}

/// Bytes of a serialized xorb from `start` to `end`, the latter included.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct ByteRangeJson {
    start: u64,
    end: u64,
}

/// Where a run of chunks is, version 1.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FetchInfoJson {
    pub(super) range: ChunkRangeJson,
    pub(super) url: String,
    pub(super) url_range: ByteRangeJson,
}

/// Where runs of chunks are, version 2: the URL serves each range alone, and all of them at once.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FetchJson {
    pub(super) url: String,
    pub(super) ranges: Vec<DescriptorJson>,
}

/// One run of chunks of [`FetchJson`].
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DescriptorJson {
    pub(super) chunks: ChunkRangeJson,
    pub(super) bytes: ByteRangeJson,
}

impl From<&PlannedTerm> for TermJson {
    fn from(term: &PlannedTerm) -> Self {
        Self {
            hash: term.xorb.to_string(),
            unpacked_length: term.raw_len.into(),
            range: term.chunks.into(),
            chunk_byte_sizes: None,
        }
    }
}

impl From<ChunkRange> for ChunkRangeJson {
    fn from(range: ChunkRange) -> Self {
        Self { start: range.start(), end: range.end() }
    }
}

impl From<ByteRange> for ByteRangeJson {
    fn from(range: ByteRange) -> Self {
        Self { start: range.start(), end: range.last() }
    }
}

/// Every failure (RFC 9457); some codes have further fields.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProblemJson {
    r#type: String,
    title: String,
    status: u16,
    #[schema(schema_with = schema::codes)]
    code: String,
    detail: String,
}
