//! Xorbs: runs of compressed chunks (spec 3).
//!
//! ```text
//! ┌────────┬─────────┬────────┬─────────┬─ ─ ─┬────────┬─────────┬ ─ ─ ─ ─ ─ ┐
//! │ header │ payload │ header │ payload │     │ header │ payload │   footer    (optional)
//! └────────┴─────────┴────────┴─────────┴─ ─ ─┴────────┴─────────┴ ─ ─ ─ ─ ─ ┘
//!  8 bytes            └───── frame ────┘       1 to 8192 chunks
//! ```
//!
//! A *frame* is the header of a chunk with its payload. It is also called the *record* of the
//! chunk.

mod build;
mod error;
mod footer;
mod layout;
mod split;
#[cfg(test)]
mod tests;
mod unpacked;
mod verified;
mod verify;

pub use build::{BuildError, BuildLimit, BuiltXorb, XorbBuilder};
pub use error::{XorbError, XorbErrorClass, XorbErrorKind};
pub use footer::{FooterError, FooterField, write_v1};
pub use layout::{ChunkPlace, Layout, LayoutBuilder, LayoutError};
pub use split::{FooterStart, Frame, Splitter};
pub use unpacked::{
    RepackMode, Repacker, UNPACKED_ENTRY_LEN, Unpacked, UnpackedChunk, UnpackedError, Unpacker, parse_unpacked_table,
};
pub use verified::VerifiedXorb;
pub use verify::{VerifiedChunk, Verifier, verify};
