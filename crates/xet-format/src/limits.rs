//! Every size limit of the formats: the value, its unit, where the number comes from, and what
//! happens beyond it.
//!
//! They are constants, not settings: two servers that disagree about a limit disagree about which
//! bytes are valid.

/// Raw bytes in one chunk, at most: 128 KiB.
///
/// Twice the chunker's target (spec 2, spec 3.6); clients cut at this length whatever the data. A
/// header that declares more is refused before anything is allocated.
pub const MAX_CHUNK_RAW_LEN: u32 = 131_072;

/// Payload bytes of one chunk, at most: 256 KiB.
///
/// Writers store a chunk uncompressed when compression does not pay, so a payload is never longer
/// than its raw bytes; the reference reader nevertheless takes up to twice the raw limit
/// (spec 3.1), and so do we.
pub const MAX_CHUNK_PAYLOAD_LEN: u32 = 262_144;

/// Length of a chunk header in bytes (spec 3.1).
pub const CHUNK_HEADER_LEN: u32 = 8;

/// Chunks in one xorb, at most (spec 3.6, `MAX_XORB_CHUNKS` of the reference).
///
/// Bounds the layout and the chunk hashes of a xorb to 41 bytes each, 328 KiB in all.
pub const MAX_XORB_CHUNK_COUNT: u32 = 8_192;

/// Raw bytes in one xorb, at most: 64 MiB (spec 3.6, `MAX_XORB_BYTES` of the reference).
pub const MAX_XORB_RAW_LEN: u64 = 67_108_864;

/// Maximum bytes of one serialized xorb according to the documents: 64 MiB (spec 3.6).
///
/// Applies to `POST /xorbs/{hash}`; includes an optional footer. Longer bodies get a 413.
pub const MAX_XORB_SERIALIZED_LEN: u64 = 67_108_864;

/// Bytes of an optional footer, at most: version 1 with the largest chunk count, `96 + 40 n`
/// (spec 3.5).
pub const MAX_FOOTER_LEN: u64 = 96 + 40 * MAX_XORB_CHUNK_COUNT as u64;

/// Bytes of one serialized xorb as stock clients may send it, at most.
///
/// Clients bound the *raw* bytes, so incompressible data is `raw + 8 n` long and exceeds 64 MiB by
/// up to 64 KiB, and old clients append a footer (spec 3.6; spec 9, row 8). Applies to the Xet
/// aliases only.
pub const MAX_XORB_BODY_LEN: u64 =
    MAX_XORB_RAW_LEN + CHUNK_HEADER_LEN as u64 * MAX_XORB_CHUNK_COUNT as u64 + MAX_FOOTER_LEN;

/// Bytes of a shard that is uploaded, at most: 80 MiB.
///
/// Clients aim at 64 MiB and cut softly, and some append lookup tables and a footer (spec 4.8).
pub const MAX_SHARD_LEN: u64 = 80 << 20;

/// Files of one shard (spec 4.10). Each costs memory and a row until it is registered. A shard of
/// 64 MiB, as clients cut them, has 466 000 files at most if each has a term with its proof. Our
/// own.
pub const MAX_SHARD_FILE_COUNT: usize = 500_000;

/// Chunks that the terms of one shard may name together; each is hashed when the shard is proven. A
/// term of 48 bytes can name 8192, so that the length of a shard alone does not bound the work
/// (spec 4.10). Our own: 2 TiB of common chunks.
pub const MAX_SHARD_TERM_CHUNK_COUNT: u64 = 32 << 20;

/// Raw bytes in a chunk that the chunker cuts, at least (the last chunk of a file may be shorter):
/// 8 KiB (spec 2).
pub const MIN_CHUNK_RAW_LEN: u32 = 8_192;

/// Raw bytes in a chunk that the chunker aims at: 64 KiB (spec 2).
pub const TARGET_CHUNK_RAW_LEN: u32 = 65_536;

const _: () = assert!(MAX_XORB_BODY_LEN == 67_502_176, "spec 3.6 states this sum");
const _: () = assert!(MAX_CHUNK_RAW_LEN < 1 << 24 && MAX_CHUNK_PAYLOAD_LEN < 1 << 24, "lengths are 24-bit fields");
const _: () = assert!(MAX_XORB_BODY_LEN < u32::MAX as u64, "layouts keep offsets in 32 bits");
