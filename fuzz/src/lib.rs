//! What the fuzz targets test: the `format` and `rca` layers of zorb and the ranges of `http`, compiled as a crate of
//! their own.
//!
//! They import nothing of the rest of the package, so they can be taken by their paths. That saves building the
//! server's dependencies with sanitizers, which takes many times longer than all the targets.
//!
//! ```text
//! cargo +nightly fuzz run xorb -- -max_total_time=600
//! cargo +nightly fuzz run lz4 -- -max_total_time=600
//! cargo +nightly fuzz run shard -- -max_total_time=600
//! cargo +nightly fuzz run rca -- -max_total_time=600
//! cargo +nightly fuzz run range -- -max_total_time=600
//! cargo run --manifest-path fuzz/Cargo.toml --example seeds    # writes the corpus anew
//! ```

#[path = "../../src/format/mod.rs"]
pub mod format;

#[path = "../../src/rca/mod.rs"]
pub mod rca;

pub mod http;
