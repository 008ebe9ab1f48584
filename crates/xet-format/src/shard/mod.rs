//! Shards: what files are made of, and what xorbs are made of (spec 4).
//!
//! ```text
//! 0                48
//! ┌────────────────┬──────────────────────┬─────────┬──────────────────────┬─────────┬───────────────────────────┐
//! │ header         │ file blocks          │ bookend │ xorb blocks          │ bookend │ lookup tables, footer     │
//! │ tag, version 2 │ header, terms,       │ 48      │ header, chunks       │ 48      │ only where the header     │
//! │ footer length  │ range hashes, sha256 │         │                      │         │ states a footer length    │
//! └────────────────┴──────────────────────┴─────────┴──────────────────────┴─────────┴───────────────────────────┘
//! ```
//!
//! Every record is 48 bytes long. The file blocks and the xorb blocks are the two *sections* of a
//! shard. A *bookend* is the record that ends a section. [`parse()`] reads up to the second bookend
//! and ignores lookup tables and footer. [`write_upload`] writes the shard that clients send.
//! [`write_dedup_response`] writes the response to a chunk query, and [`parse_dedup_response`]
//! reads it.
//!
//! A parsed [`Shard`] is *well-formed*: every number is within its limits, and numbers that depend
//! on each other agree. A well-formed shard may still be *false*: only the index tells whether its
//! xorbs exist, have these chunks, and yield these files (spec 4.8, 7.3).

mod cas_info;
mod error;
mod file_info;
mod footer;
mod header;
mod parse;
mod sha256;
#[cfg(test)]
mod tests;
mod write;

pub use cas_info::{CasChunk, CasInfo};
pub use error::{Class, Kind, ParseError, WriteError};
pub use file_info::{FileInfo, Term};
pub use parse::{DedupShard, parse, parse_dedup_response, parse_stored};
pub use sha256::Sha256;
pub use write::{DedupResponse, write_dedup_response, write_upload};

/// Bytes of every record of the two sections, and of the header (spec 4).
pub const RECORD_LEN: u64 = 48;

/// Bytes of a footer (spec 4.7).
const FOOTER_LEN: u64 = 200;

/// The hash in the record that ends a section (spec 4.3).
const BOOKEND: [u8; 32] = [0xff; 32];

/// A shard as it is uploaded: files, and xorbs that its client has sent before.
///
/// Either list may be empty. A shard lists no xorbs if other clients have uploaded all xorbs of its
/// files. It lists no files if a client splits its registration into several shards and this one
/// only lists xorbs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    /// The files, in the order of the shard, each hash once.
    pub files: Vec<FileInfo>,
    /// The xorbs, in the order of the shard, each hash once.
    pub xorbs: Vec<CasInfo>,
}
