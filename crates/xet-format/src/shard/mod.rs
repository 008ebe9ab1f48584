//! Shards: what files are made of, and what xorbs are made of (spec 4).
//!
//! ```text
//! 0                48
//! ┌────────────────┬──────────────────────┬─────────┬──────────────────────┬─────────┬───────────────────────────┐
//! │ header         │ file blocks          │ bookend │ xorb blocks          │ bookend │ lookup tables, footer     │
//! │ tag, version 2 │ header, terms,       │ 48      │ header, chunks       │ 48      │ only where the header     │
//! │ footer length  │ range hashes, sha256 │         │                      │         │ announces 200 bytes of it │
//! └────────────────┴──────────────────────┴─────────┴──────────────────────┴─────────┴───────────────────────────┘
//! ```
//!
//! Every record is 48 bytes long. [`parse()`] reads from the front to the second bookend and
//! believes nothing that it reads after that. [`write_upload`] makes what clients send,
//! [`write_dedup_response`] what they get when they ask for a chunk, and
//! [`parse_dedup_response`] reads that.
//!
//! A [`Shard`] that was parsed is *well-formed*: every number in it is possible, and those that can
//! be told from others agree. It is not *true*: whether its xorbs exist, have these chunks, and
//! yield these files is decided against the index, never within one shard (spec 4.8, 7.3).

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
const RECORD_LEN: u64 = 48;

/// Bytes of a footer (spec 4.7).
const FOOTER_LEN: u64 = 200;

/// The hash in the record that ends a section (spec 4.3).
const BOOKEND: [u8; 32] = [0xff; 32];

/// A shard as it is uploaded: files, and xorbs that its client has sent before.
///
/// Either list may be empty: a file that is wholly deduplicated names xorbs of others, and a
/// session that is split into several shards may have one that only lists xorbs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    /// The files, in the order of the shard, each hash once.
    pub files: Vec<FileInfo>,
    /// The xorbs, in the order of the shard, each hash once.
    pub xorbs: Vec<CasInfo>,
}
