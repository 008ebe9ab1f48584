//! JSON as it goes over the wire, as far as servers and clients share it.
//!
//! Fields that are not listed are ignored, so a server may add some. With the feature `openapi`
//! each type has a schema.

mod lists;
#[cfg(feature = "openapi")]
mod openapi;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xet_format::merkle::subtree::{NodeHash, Subtree};
use xet_format::{ByteRange, ChunkRange};

pub use self::lists::{
    FilesPage, ListedFile, ListedXorb, OwnerUsage, RemovedFile, RepoUsage, Usage, UsageLimits, UsagePage, XorbsPage,
};
#[cfg(feature = "openapi")]
pub use self::openapi::HashText;

/// Response to `POST /v1/xorbs/{prefix}/{hash}` (spec 5.4.1).
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WasInsertedJson {
    /// Whether the xorb is new.
    pub was_inserted: bool,
}

/// Response to `GET /xorbs/{hash}/chunks`. Servers send all of it; what clients do not need may be
/// missing.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChunksJson {
    /// The xorb.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = HashText, required = true))]
    pub hash: String,
    /// Bytes of its chunks as they are stored.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub serialized_len: u64,
    /// Bytes of its chunks when they are decompressed.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub raw_len: u64,
    /// Its chunks, in order.
    pub chunks: Vec<ChunkJson>,
}

/// One chunk of [`ChunksJson`]. Offsets count from the start of the xorb.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChunkJson {
    /// Its number, from 0.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub index: u32,
    /// Its hash.
    #[cfg_attr(feature = "openapi", schema(value_type = HashText))]
    pub hash: String,
    /// How it is compressed.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(schema_with = openapi::schemes, required = true))]
    pub scheme: String,
    /// Where it begins as it is stored.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub serialized_offset: u64,
    /// Its bytes as they are stored, with its header.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub serialized_len: u64,
    /// Where it begins when all chunks are decompressed.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub raw_offset: u64,
    /// Its bytes when it is decompressed.
    pub raw_len: u64,
}

/// Response to `GET /v2/reconstructions/{file}` (spec 5.1). Xorbs are keys.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReconstructionV2Json {
    /// Bytes of the first term before the requested range.
    pub offset_into_first_range: u64,
    /// In the order of the file.
    pub terms: Vec<TermJson>,
    /// Where the chunks of the terms are.
    pub xorbs: BTreeMap<String, Vec<FetchJson>>,
}

/// Response to the batch queries (spec 5.3). Files and xorbs are keys.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchJson {
    /// The terms of each file.
    pub files: BTreeMap<String, Vec<TermJson>>,
    /// Where the chunks of the terms are.
    pub fetch_info: BTreeMap<String, Vec<FetchInfoJson>>,
}

/// A run of chunks that is part of a file.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TermJson {
    /// The xorb that has the chunks.
    #[cfg_attr(feature = "openapi", schema(value_type = HashText))]
    pub hash: String,
    /// Their bytes when they are decompressed.
    pub unpacked_length: u64,
    /// Which chunks.
    pub range: ChunkRangeJson,
    /// Raw lengths of its chunks, where they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_byte_sizes: Option<Vec<u32>>,
}

/// Chunks from `start` to `end`, the latter not included.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChunkRangeJson {
    /// The first chunk.
    pub start: u32,
    /// The chunk behind the last one.
    pub end: u32,
}

/// Bytes of a serialized xorb from `start` to `end`, the latter included.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ByteRangeJson {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
}

/// Where a run of chunks is, version 1.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FetchInfoJson {
    /// Which chunks.
    pub range: ChunkRangeJson,
    /// Where to get them.
    pub url: String,
    /// Their bytes in the serialized xorb, which is what to ask the URL for.
    pub url_range: ByteRangeJson,
}

/// Where runs of chunks are, version 2: the URL serves each range alone, and all of them at once.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FetchJson {
    /// Where to get them.
    pub url: String,
    /// The runs.
    pub ranges: Vec<DescriptorJson>,
}

/// One run of chunks of [`FetchJson`].
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DescriptorJson {
    /// Which chunks.
    pub chunks: ChunkRangeJson,
    /// Their bytes in the serialized xorb.
    pub bytes: ByteRangeJson,
}

/// One window of the response to `GET /v2/file-chunk-hashes/{file}` (spec 5.9).
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct WindowJson {
    /// Start, and end that is not included.
    pub dirty_byte_range: [u64; 2],
}

/// A summary of a run of chunks (spec 1.9).
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubtreeJson {
    /// Its nodes, level by level.
    pub nodes: Vec<NodeJson>,
    /// The nodes of each level: the first one, and how many.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<[u64; 2]>))]
    pub levels: Vec<(usize, usize)>,
    /// Whether the run begins with the file.
    pub at_start: bool,
    /// Whether the run ends with the file.
    pub at_end: bool,
}

/// A node of [`SubtreeJson`].
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeJson {
    /// Its hash.
    #[cfg_attr(feature = "openapi", schema(value_type = HashText))]
    pub hash: Text<NodeHash>,
    /// Bytes below it.
    pub size: u64,
}

/// A value that is a text in JSON, without a copy of that text: a message may have a million
/// hashes.
#[derive(Debug)]
pub struct Text<T>(pub T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
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

impl From<&Subtree> for SubtreeJson {
    fn from(subtree: &Subtree) -> Self {
        Self {
            nodes: subtree.nodes().map(|node| NodeJson { hash: Text(node.hash), size: node.raw_len }).collect(),
            levels: subtree.levels().collect(),
            at_start: subtree.at_start(),
            at_end: subtree.at_end(),
        }
    }
}
