//! The fuzz targets of zorb: each is a function of any bytes that panics where a promise is broken.
//!
//! `fuzz_targets/` gives them to the fuzzer; `tests/it/corpus.rs` of zorb calls them with every file
//! of `corpus/`.
#![expect(clippy::cast_possible_truncation, reason = "inputs are cut to what their fields hold")]

use std::path::Path;

// What src/http/range.rs imports of zorb.
use xet_format as format;

pub mod lz4;
pub mod range;
pub mod rca;
pub mod shard;
pub mod xorb;

/// A target: panics if a promise is broken.
pub type Target = fn(&[u8]);

/// All targets, by the name of their corpus.
pub const TARGETS: [(&str, Target); 5] =
    [("lz4", lz4::check), ("range", range::check), ("rca", rca::check), ("shard", shard::check), ("xorb", xorb::check)];

/// Calls a target with every file that the command line names, to reproduce a finding without the
/// fuzzer.
///
/// # Errors
///
/// A file cannot be read.
pub fn replay(target: Target) -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        target(&std::fs::read(Path::new(&path))?);
    }
    Ok(())
}
