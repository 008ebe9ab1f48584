//! The command line: what was typed, and which module does it.

mod serve;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// A self-hosted content-addressed store for the Xet protocol.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(serve::ServeArgs),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
}

impl Cli {
    /// Does what was typed; the exit code says how it went: 0 well, 1 not, 2 wrong usage.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Serve(args) => serve::run(args),
            Command::Completions { shell } => {
                clap_complete::generate(shell, &mut Self::command(), "zorb", &mut std::io::stdout());
                Ok(())
            }
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                report(&error);
                ExitCode::FAILURE
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "this is where a command says why it failed")]
fn report(error: &anyhow::Error) {
    eprintln!("zorb: {error:#}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
