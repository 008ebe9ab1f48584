//! Promises to clients, kept by the real server: each test starts the binary on a socket and a directory of its own.
#![expect(unreachable_pub, reason = "nothing of a test binary is reachable, and `pub(crate)` everywhere says no more")]
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the doors are for the program; a test spoils files on purpose, says its seed, and fails where it panics"
)]
#![cfg_attr(
    not(feature = "full-tests"),
    expect(dead_code, unused_imports, reason = "what is here for the long tests alone is judged with them")
)]

mod audit;
mod auth;
mod backup;
mod chunk_hashes;
mod cli;
mod compact;
mod conditions;
mod corpus;
mod corrupt;
mod cors;
#[cfg(feature = "full-tests")]
mod crash;
#[cfg(feature = "full-tests")]
mod crash_files;
#[cfg(feature = "full-tests")]
mod crash_gc;
mod cycles;
mod dashboard;
mod documents;
mod download;
mod errors;
mod file_bytes;
mod files;
mod fsck;
#[cfg(feature = "full-tests")]
mod full_disk;
mod gc;
mod grants;
mod hub;
mod interrupted;
mod limits;
#[cfg(feature = "full-tests")]
mod memory;
#[cfg(feature = "full-tests")]
mod official;
mod openapi;
mod operations;
mod outages;
mod overload;
#[cfg(feature = "postgres-tests")]
mod postgres;
mod private;
mod quota;
mod rebuild;
mod replace;
#[cfg(all(feature = "postgres-tests", feature = "s3"))]
mod replicas;
#[cfg(all(feature = "postgres-tests", feature = "s3"))]
mod s3;
mod scrub;
mod security;
mod sha256;
mod shutdown;
mod slow;
mod smoke;
mod spec;
mod startup;
#[cfg(feature = "full-tests")]
mod statements;
#[cfg(feature = "full-tests")]
mod steps;
mod store;
mod support;
mod tidy;
mod tls;
mod tokens;
mod traps;
mod upload;
mod words;
