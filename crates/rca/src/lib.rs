//! RCA, the Resumable Compressed Archive: named blobs in one file, with crash-safe appends and one
//! zstd state from blob to blob.
//!
//! ```text
//! file    := chunk*  garbage             see `chunk_layer`; sizes of 16, 32, 64 bits, big-endian
//! chunk   := size  hash(8)  payload      chunks begin at 0, 0x8000, 0x8000_8000
//! payloads, joined := session*
//! session := [reset] (blob | control)*   the first has no reset
//! reset   := 81 04  hash(8)              hash of the session before, then a new hash and zstd state
//! blob    := varint(len << 1)  len bytes of zstd: name  NUL  content
//! control := varint(1 | type << 1 | len << 6)  len bytes; reset is type 0, others are skipped
//! ```
//!
//! - *varint*: little-endian base 128; overlong forms are allowed.
//! - *hash*: BLAKE2s with an 8-byte digest over all bytes of a session, varints, unknown control
//!   blocks and the reset block it begins with included, chunk headers excluded. The one of the
//!   last session is in the header of the last chunk.
//! - *zstd*: one frame per session that is never ended, flushed after each blob.
//! - *name*: UTF-8 without NUL, else anything. Blobs with equal names are all there, in order.
//!
//! # Two dialects
//!
//! The format's README and its reference implementation differ. The README's example has `81 02`
//! for a reset, and its text leaves the hash bytes of reset blocks out of the hash. The reference
//! neither writes nor reads either. We write what the reference writes. We read both, and say
//! which ([`Dialect`]): a session is first judged by the reference's rule, then by the README's,
//! and once a hash has told the rule the whole archive must follow it. `81 02` cannot be valid in
//! the reference's reading (a reset of four bytes), so it is read as the README's, and reported
//! as the short reset it otherwise is if the hash does not fit.
//!
//! # What is true
//!
//! - After [`Writer::append`] has returned `Ok`, the blob is durable and every reader finds it.
//! - After [`Event::Verified`] the blobs it names are what was appended (as far as 64 bits of an
//!   unkeyed hash can tell: accidents, not attackers). Before it nothing is known of them.
//! - No input makes the readers panic, nor take more memory than [`ReadOptions`] says.
//!
//! # What a crash can leave behind
//!
//! - Anywhere in an append: the archive as before, plus garbage behind its end that is no error
//!   ([`End::trailing_garbage`]) and that the next append cuts off. This holds whatever subset of
//!   the writes before a sync got lost. A new archive may be of any length, with size 0.
//! - In the one header write that commits: if the disk tears 16 bytes at a multiple of 0x8000
//!   apart, a mixed header. Readers then find the blobs, followed by an error; the next [`Writer`]
//!   repairs it (`repair`).
//! - In the very first append: a file in which nothing is committed. So is any file that begins
//!   with two zero bytes, or has less than ten: [`Opened::is_foreign`] tells them apart, before
//!   something is cut off that was never ours.
//!
//! # What it does not do
//!
//! - Delete, replace or find a blob by name: it is a log. Reading one blob takes decompressing its
//!   session up to it.
//! - Sync the directory of a new file; that is the creator's.
//! - Append to the README's dialect, or to an archive whose last session is damaged: refused. The
//!   sessions before it are not looked at, except that their blocks must fit together.
//! - Tell garbage from a chunk behind a chunk that is exactly full: the format cannot.
//! - Keep readers out while a writer appends; they see the committed state before or after.
//! - Check that a name is a harmless path.
//!
//! *Architecture invariant:* this crate knows nothing of xorbs, HTTP, async or logging.

mod archive;
mod block;
mod chunk_layer;
mod error;
mod first_append;
mod hash;
mod limits;
mod outline;
mod reader;
mod repair;
mod settled;
mod storage;
mod survey;
mod varint;
mod writer;
mod zstd_stream;

#[cfg(test)]
mod tests;

/// Its examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use archive::{Archive, Entry, VerifiedBlob};
pub use chunk_layer::{Chunker, Layout, Unchunker};
pub use error::Error;
pub use hash::{DIGEST_LEN, Digest};
pub use limits::{
    DEFAULT_BUFFER_LEN, DEFAULT_MAX_LISTING_LEN, DEFAULT_MAX_NAME_LEN, MAX_FIELD_BITS, MAX_METADATA_LEN,
    MAX_WINDOW_LOG, MIN_WINDOW_LOG,
};
pub use outline::Outline;
pub use reader::{Dialect, End, Event, ReadOptions, Reader, Session, UnverifiedBlob};
pub use storage::{Lock, Storage};
pub use writer::{Appended, Opened, WriteOptions, Writer};
pub use zstd_stream::{Progress, ZstdCompressor, ZstdDecompressor};
