//! The formats of the Xet protocol without I/O: bytes in, values out.
//!
//! Guarantees for any input: no function panics. No function allocates more than a small constant
//! plus a small multiple of its input. The documentation of a type says what was verified before a
//! value of this type exists. The crate does not use files, sockets, threads, clocks or logs.
//!
//! "(spec 3.6)" in a comment is section 3.6 of `docs/spec/xet-protocol.md` in the repository of
//! zorb.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod bg4;
pub mod chunk;
pub mod chunker;
pub mod compression;
mod crc64;
mod cursor;
mod gear_table;
mod hash;
pub mod limits;
mod lz4_frame;
pub mod merkle;
mod range;
pub mod reader;
mod scheme;
pub mod shard;
mod store_id;
#[cfg(test)]
mod tests;
pub mod windows;
pub mod xorb;

/// Makes the examples of the README doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use crc64::Crc64;
pub use hash::{ChunkHash, FileHash, HmacKey, ParseHashError, RangeHash, XorbHash};
pub use range::{ByteRange, ByteRangeSpec, ChunkRange, ChunkRangeSpec, ParseRangeError};
pub use store_id::{ParseStoreIdError, StoreId};
