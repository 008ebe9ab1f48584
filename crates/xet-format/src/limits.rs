//! Every size limit of the formats: the value, its unit, and where the number comes from. Bytes
//! beyond a limit are refused by the parser, or by the upload before they are parsed.
//!
//! The limits are constants, not settings, because two servers with different limits would disagree
//! about which bytes are valid.

/// Raw bytes in one chunk, at most: 128 KiB.
///
/// Twice the chunker's target (spec 2, spec 3.6): clients cut a chunk at this length, whatever its
/// bytes are. A header that declares more is refused before anything is allocated.
pub const MAX_CHUNK_RAW_LEN: u32 = 131_072;

/// Payload bytes of one chunk, at most: 256 KiB.
///
/// Writers store a chunk uncompressed if compression does not make it shorter, so a payload is
/// never longer than its raw bytes. The reference reader nevertheless accepts up to twice the raw
/// limit (spec 3.1), and so does this crate. In an upload, a payload longer than its raw bytes is
/// refused.
pub const MAX_CHUNK_PAYLOAD_LEN: u32 = 262_144;

/// Length of a chunk header in bytes (spec 3.1).
pub const CHUNK_HEADER_LEN: u32 = 8;

/// Chunks in one xorb, at most (spec 3.6, `MAX_XORB_CHUNKS` of the reference).
///
/// This bounds the memory for the layout, the chunk hashes and the schemes of a xorb together: 41
/// bytes per chunk, at most 328 KiB.
pub const MAX_XORB_CHUNK_COUNT: u32 = 8_192;

/// Raw bytes in one xorb, at most: 64 MiB (spec 3.6, `MAX_XORB_BYTES` of the reference).
pub const MAX_XORB_RAW_LEN: u64 = 67_108_864;

/// Bytes of one serialized xorb, at most, according to the published specification: 64 MiB
/// (spec 3.6).
///
/// Applies to `POST /xorbs/{hash}` and includes an optional footer. A longer body gets a 413.
pub const MAX_XORB_SERIALIZED_LEN: u64 = 67_108_864;

/// Bytes of an optional footer, at most: version 1 with the largest chunk count, `96 + 40 n`
/// (spec 3.5).
pub const MAX_FOOTER_LEN: u64 = 96 + 40 * MAX_XORB_CHUNK_COUNT as u64;

/// Bytes of one serialized xorb as stock clients may send it, at most.
///
/// Stock clients bound only the *raw* bytes. So `n` incompressible chunks are `raw + 8 n` bytes
/// long, which exceeds 64 MiB by up to 64 KiB. Old clients also append a footer (spec 3.6; spec 9,
/// row 8). The limit applies to `POST /v1/xorbs/{prefix}/{hash}`, to upload grants, and to stored
/// xorbs.
pub const MAX_XORB_BODY_LEN: u64 =
    MAX_XORB_RAW_LEN + CHUNK_HEADER_LEN as u64 * MAX_XORB_CHUNK_COUNT as u64 + MAX_FOOTER_LEN;

/// Bytes of a shard that is uploaded, at most: 80 MiB.
///
/// Clients begin a new shard when one has about 64 MiB. Its last file may go beyond that, and some
/// clients append lookup tables and a footer (spec 4.8).
pub const MAX_SHARD_LEN: u64 = 80 << 20;

/// Bytes of the shard in which a stored file was uploaded, at most: the highest limit for uploads
/// that any version of zorb had (spec 4.8). A lower one makes old backups unreadable.
pub const MAX_STORED_SHARD_LEN: u64 = 80 << 20;

/// Files of one shard, at most (spec 4.10). A limit of zorb, not of the protocol: each file takes
/// memory while the shard is registered. Clients stay below it. Their shards have about 64 MiB, so
/// at most 466 000 files if each has one term with its range hash.
pub const MAX_SHARD_FILE_COUNT: usize = 500_000;

/// Files of one stored shard, at most (spec 4.10): the highest limit for uploads that any version
/// of zorb had. A lower one makes old records unreadable.
pub const MAX_STORED_SHARD_FILE_COUNT: usize = 500_000;

/// Chunks that all terms of one shard may name together, at most: 2 TiB in chunks of mean length. A
/// limit of zorb, not of the protocol (spec 4.10).
///
/// The server proves a shard by hashing the hash of each of these chunks. A term of 48 bytes can
/// name 8192 chunks, so the length of a shard does not bound this work.
pub const MAX_SHARD_TERM_CHUNK_COUNT: u64 = 32 << 20;

/// Raw bytes in a chunk that the chunker cuts, at least (the last chunk of a file may be shorter):
/// 8 KiB (spec 2).
pub const MIN_CHUNK_RAW_LEN: u32 = 8_192;

const _: () = assert!(MAX_SHARD_LEN <= MAX_STORED_SHARD_LEN, "what is uploaded is stored");
const _: () = assert!(MAX_SHARD_FILE_COUNT <= MAX_STORED_SHARD_FILE_COUNT, "what is uploaded is stored");
const _: () = assert!(MAX_XORB_BODY_LEN == 67_502_176, "spec 3.6 states this sum");
const _: () = assert!(MAX_CHUNK_RAW_LEN < 1 << 24 && MAX_CHUNK_PAYLOAD_LEN < 1 << 24, "lengths are 24-bit fields");
const _: () = assert!(MAX_XORB_BODY_LEN < u32::MAX as u64, "layouts keep offsets in 32 bits");
