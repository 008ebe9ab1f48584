//! Xorbs: runs of compressed chunks (spec 3).

mod layout;

pub use layout::{ChunkPlace, Layout, LayoutBuilder, LayoutError};
