//! The JSON that both servers and clients of zorb use.
//!
//! A client ignores fields that are not listed here, so a server may add fields. With the feature
//! `openapi` each type has a schema.

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
    /// Whether the body was stored: the xorb is new, or the body replaced a longer serialization.
    pub was_inserted: bool,
}

/// Response to `GET /xorbs/{hash}/chunks`. Servers send all fields; a client accepts a response
/// without those that it does not use.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChunksJson {
    /// The xorb.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = HashText, required = true))]
    pub hash: String,
    /// Bytes of its chunks as they are stored, with their headers.
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
    /// Where it begins in the stored xorb.
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

/// Response to `GET /v2/reconstructions/{file}` (spec 5.1).
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReconstructionV2Json {
    /// Bytes of the first term before the requested range.
    pub offset_into_first_range: u64,
    /// The terms, in the order of the file.
    pub terms: Vec<TermJson>,
    /// Where the chunks of the terms are, by the hash of their xorb.
    pub xorbs: BTreeMap<String, Vec<FetchJson>>,
}

/// Response to the batch queries (spec 5.3).
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchJson {
    /// The terms of each file, by the hash of the file.
    pub files: BTreeMap<String, Vec<TermJson>>,
    /// Where the chunks of the terms are, by the hash of their xorb.
    pub fetch_info: BTreeMap<String, Vec<FetchInfoJson>>,
}

/// A run of chunks that is part of a file.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TermJson {
    /// The hash of the xorb that has the chunks.
    #[cfg_attr(feature = "openapi", schema(value_type = HashText))]
    pub hash: String,
    /// Bytes of the chunks when they are decompressed.
    pub unpacked_length: u64,
    /// Which chunks.
    pub range: ChunkRangeJson,
    /// Raw lengths of the chunks, if they were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_byte_sizes: Option<Vec<u32>>,
}

/// Chunks from `start` to `end`; the chunk `end` is not included.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChunkRangeJson {
    /// The first chunk.
    pub start: u32,
    /// The chunk after the last one.
    pub end: u32,
}

/// Bytes of a serialized xorb from `start` to `end`; the byte `end` is included.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ByteRangeJson {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
}

/// Where a run of chunks is, in version 1 of reconstructions.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FetchInfoJson {
    /// Which chunks.
    pub range: ChunkRangeJson,
    /// The URL to get them from.
    pub url: String,
    /// Their bytes in the serialized xorb: the `Range` to request from the URL.
    pub url_range: ByteRangeJson,
}

/// Where runs of chunks are, in version 2 of reconstructions. The URL serves each range alone, or
/// all of them with one request.
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FetchJson {
    /// The URL to get the runs from.
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
    /// Start and end of the window in bytes of the file; the end is not included.
    pub dirty_byte_range: [u64; 2],
}

/// A summary of a run of chunks (spec 1.9).
#[derive(Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubtreeJson {
    /// Its nodes: those on the left of each level from the chunks upwards, then those on the right
    /// from the top downwards.
    pub nodes: Vec<NodeJson>,
    /// The number of nodes on the left and on the right of each level, from the chunks upwards.
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
    /// Raw bytes of all chunks below the node.
    pub size: u64,
}

/// A value that is written to JSON in its text form. It is written without a temporary string,
/// because a message may have a million hashes.
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
