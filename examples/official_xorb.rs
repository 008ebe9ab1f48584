//! Writes a xorb of 64 MiB that the official crate built: `official_xorb DIR` makes `DIR/<hash>.xorb`.
//!
//! Prints the file's name. The contents follow from a fixed seed, so every run makes the same file.

use std::path::PathBuf;

use rand::SeedableRng;
use rand::rngs::StdRng;

#[path = "../tests/it/support/official.rs"]
#[expect(unreachable_pub, reason = "the file belongs to the tests, where this is reachable")]
mod official;

#[expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a small program that prints and writes a file")]
fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let (hash, bytes) = official::official_xorb(&mut StdRng::seed_from_u64(64));
    let path = directory.join(format!("{hash}.xorb"));
    std::fs::write(&path, bytes)?;
    println!("{}", path.display());
    Ok(())
}
