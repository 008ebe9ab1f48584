//! What the fuzz targets test: the `format` layer of zorb, compiled as a crate of its own.
//!
//! The layer imports nothing of the rest of the package, so it can be taken by its path. That saves building the
//! server's dependencies with sanitizers, which takes many times longer than all the targets.
//!
//! ```text
//! cargo +nightly fuzz run xorb -- -max_total_time=600
//! cargo +nightly fuzz run lz4 -- -max_total_time=600
//! cargo run --manifest-path fuzz/Cargo.toml --example seeds    # writes the corpus anew
//! ```

#[path = "../../src/format/mod.rs"]
pub mod format;
