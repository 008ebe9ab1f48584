//! The `zorb` binary.

use std::process::ExitCode;

use clap::Parser;
use zorb::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
