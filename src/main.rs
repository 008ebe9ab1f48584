//! The `zorb` binary.

use std::process::ExitCode;

use clap::Parser;
use zorb::cli::Cli;

/// Chosen by measurement (docs/performance.md), and only where it was measured.
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    Cli::parse().run()
}
