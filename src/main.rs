//! The `zorb` binary.

use std::process::ExitCode;

use clap::Parser;
use zorb::cli::Cli;

/// jemalloc replaces the system's allocator only on the platform where it was measured
/// (docs/lab/2026-11-uploads.md).
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    Cli::parse().run()
}
