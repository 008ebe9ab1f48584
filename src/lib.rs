//! zorb: a self-hosted content-addressed store for the Xet protocol.
//!
//! "(spec 5.4.2)" in a comment refers to section 5.4.2 of `docs/spec/xet-protocol.md`.
//!
#![doc = include_str!("ARCHITECTURE.md")]

pub mod blob;
pub mod cli;
pub mod config;
pub mod http;
pub mod index;
pub mod runtime;
pub mod service;

pub use zorb_client::wire;
pub use {rca, xet_format as format, zorb_client as client, zorb_git as git};
