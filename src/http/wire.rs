//! The JSON bodies that only the server needs. Those that the client in this repository reads, too,
//! are in `client/wire`; the conversions to them are here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schema;
use crate::service::reconstruct::PlannedTerm;
use crate::service::{ChunkInfo, Uploaded};
use crate::wire::{ChunkJson, FetchInfoJson, HashText, TermJson};

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
    /// `ok`, or `full` while less than `min_free_space` is free: then reads and deletions continue,
    /// and uploads are refused.
    pub(super) store: &'static str,
}

/// Body of `POST /v1/reconstructions` (spec 5.3).
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct FileKeysJson(pub(super) Vec<FileKeyJson>);

/// One file of [`FileKeysJson`]. Clients also send a prefix, which is ignored.
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
