//! zorb: a self-hosted content-addressed store for the Xet protocol.

pub mod blob;
pub mod format;
pub mod index;
pub mod runtime;
