//! Xorbs: runs of compressed chunks (spec 3).
//!
//! ```text
//! ┌────────┬─────────┬────────┬─────────┬─ ─ ─┬────────┬─────────┬ ─ ─ ─ ─ ─ ┐
//! │ header │ payload │ header │ payload │     │ header │ payload │   footer    (optional)
//! └────────┴─────────┴────────┴─────────┴─ ─ ─┴────────┴─────────┴ ─ ─ ─ ─ ─ ┘
//!  8 bytes            └───── frame ────┘       1 to 8192 chunks
//! ```

mod build;
mod error;
mod footer;
mod layout;
mod loose;
mod split;
#[cfg(test)]
mod tests;
mod verify;

pub use build::{BuildError, BuildLimit, BuiltXorb, XorbBuilder};
pub use error::{XorbError, XorbErrorClass, XorbErrorKind};
pub use footer::{FooterError, FooterField, write_v1};
pub use layout::{ChunkPlace, Layout, LayoutBuilder, LayoutError};
pub use loose::{LOOSE_ENTRY_LEN, Loose, LooseChunk, LooseError, Loosener, Tightener, Tightening, parse_loose_table};
pub use split::{FooterStart, Frame, Splitter};
pub use verify::{VerifiedChunk, VerifiedXorb, Verifier, verify};
