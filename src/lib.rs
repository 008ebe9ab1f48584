//! zorb: a self-hosted content-addressed store for the Xet protocol.

pub mod format;
