//! RCA, the Resumable Compressed Archive: named blobs in one file, with crash-safe appends. Blobs
//! of one session share a zstd state, so similar blobs are compressed against each other.
//!
//! *The reference* is the reference implementation of the format, a Python module; *the README* is
//! its documentation.
//!
//! ```text
//! file    := chunk*  garbage             see `chunk_layer`; sizes of 16, 32, 64 bits, big-endian
//! chunk   := size  hash(8)  payload      chunks begin at 0, 0x8000, 0x8000_8000
//! payloads, joined := session*
//! session := [reset] (blob | control)*   the first has no reset
//! reset   := 81 04  hash(8)              hash of the session before; then a new hash, zstd state
//! blob    := varint(len << 1)  len bytes of zstd: name  NUL  content
//! control := varint(1 | type << 1 | len << 6)  len bytes; reset is type 0, others are skipped
//! ```
//!
//! - *varint*: little-endian base 128; overlong forms are allowed.
//! - *hash*: BLAKE2s with an 8-byte digest over all bytes of a session, including varints, unknown
//!   control blocks and the reset block at its start. Chunk headers are not hashed. The hash of the
//!   last session is in the header of the last chunk.
//! - *zstd*: one frame per session, which is never ended, and is flushed after each blob.
//! - *name*: any UTF-8 without NUL. Several blobs may have the same name; readers return all of
//!   them, in order.
//! - *garbage*: bytes of an append that was interrupted before it was committed.
//!
//! # Two dialects
//!
//! The README and the reference differ. The README's example has `81 02` for a reset, and its text
//! leaves the hash bytes of reset blocks out of the hash. The reference neither writes nor reads
//! such archives. This crate writes the dialect of the reference, reads both, and reports which one
//! it found ([`Dialect`]).
//!
//! The hash of a session is checked by the rule of the reference first, then by that of the README.
//! After the first match that only one rule gives, the whole archive must follow this rule. For the
//! reference, `81 02` is a reset of four bytes, which is never valid, so it is read as the README's
//! reset. If the hash does not match then, the error is that of the reference: a short reset.
//!
//! # Guarantees
//!
//! - After [`Writer::append`] has returned `Ok`, the blob is durable and every reader finds it.
//! - After [`Event::Verified`] the blobs that this event names are those that were appended. Before
//!   it they are unverified. The hash has 64 bits and no key, so it detects accidents, not attacks.
//! - No input makes the readers panic or exceed the memory limits of [`ReadOptions`].
//!
//! # What a crash can leave behind
//!
//! - Before the header write that commits an append: the archive as before, plus garbage after its
//!   end. This holds whatever subset of the writes since the last sync was lost. Garbage is not an
//!   error ([`End::trailing_garbage`]), and the next append truncates it.
//! - In this header write: the archive with the blob or without, because it is one write within a
//!   disk sector. If a disk nevertheless writes only a part, a mixture of the old and the new
//!   header remains. Readers then return the blobs and after them an error. The next append repairs
//!   the header (`repair`).
//! - In the first append: a file in which nothing is committed. Any file that begins with two zero
//!   bytes or has less than ten bytes looks the same to readers. [`Opened::is_foreign`] tells a
//!   caller that the file was probably never an archive, so that an append does not destroy it.
//!
//! # What it does not do
//!
//! - Delete a blob, replace it, or find it by name: an archive is a log. To read one blob, a reader
//!   decompresses its session up to this blob.
//! - Sync the directory of a new file; the creator of the file does that.
//! - Append to an archive in the README's dialect, or to one whose last session is damaged: a
//!   writer refuses both. Of earlier sessions a writer checks only the block lengths, not the
//!   hashes.
//! - Distinguish garbage after an exactly full chunk from a further chunk: in the format both look
//!   the same. A writer truncates garbage before it fills a chunk, so it leaves no such garbage.
//! - Lock readers out while a writer appends; they see the committed state before or after it.
//! - Check that a name is a safe path.
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

/// Makes the examples of the README doc tests.
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
