//! The formats of the protocol, pure: bytes in, values out.
//!
//! What callers may rely on, for any input whatever: no function panics, none allocates more than a
//! small constant plus a small constant times the bytes it was given, and a value that exists was
//! verified as far as its type says. Nothing here knows that files, sockets, threads, clocks or
//! logs exist.
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

/// Its examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use crc64::Crc64;
pub use hash::{ChunkHash, FileHash, HmacKey, ParseHashError, RangeHash, XorbHash};
pub use range::{ByteRange, ByteRangeSpec, ChunkRange, ChunkRangeSpec, ParseRangeError};
pub use store_id::{ParseStoreIdError, StoreId};
