//! The command line: parses the arguments and calls the module of the command.

mod accounts;
mod assemble;
mod background;
mod backup;
mod bar;
mod check;
mod collector;
mod db;
mod descriptors;
mod destination;
mod environment;
mod fsck;
mod gc;
mod healthcheck;
mod index;
mod keys;
mod ls;
mod manifest;
mod named;
mod output;
mod partial;
mod plain;
mod pull;
mod push;
mod rca;
mod reload;
mod remote;
mod restore;
mod rm;
mod serve;
mod stop;
mod store;
mod token;
mod units;
mod usage;
mod xorb;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use thiserror::Error;

use self::output::{OutputError, complain, write_stdout};

/// A self-hosted content-addressed store for the Xet protocol.
///
/// Exit codes of every command: 0 success; 1 failure, or damaged data, described on stderr; 2
/// invalid usage; 130 after Ctrl-C. `fsck` also exits with 2 if it could not check.
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
    Push(push::PushArgs),
    Pull(pull::PullArgs),
    Ls(ls::LsArgs),
    Rm(rm::RmArgs),
    Usage(usage::UsageArgs),
    /// Create, inspect, verify, upload and download xorb files
    #[command(subcommand)]
    Xorb(xorb::XorbCommand),
    #[command(subcommand)]
    Token(token::TokenCommand),
    #[command(subcommand)]
    User(accounts::UserCommand),
    #[command(subcommand)]
    Org(accounts::OrgCommand),
    Backup(backup::BackupArgs),
    Restore(restore::RestoreArgs),
    Fsck(fsck::FsckArgs),
    #[command(subcommand)]
    Index(index::IndexCommand),
    Gc(gc::GcArgs),
    #[command(subcommand)]
    Db(db::DbCommand),
    Check(check::CheckArgs),
    /// Create, extend, list and verify archives of named blobs
    #[command(subcommand)]
    Rca(rca::RcaCommand),
    /// Check whether a server is ready (readiness probe)
    Healthcheck(healthcheck::HealthcheckArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages, one per command, into an existing directory
    #[command(hide = true)]
    ManPages {
        /// Output directory
        directory: PathBuf,
    },
}

impl Cli {
    /// Runs the command. The help text of [`Cli`] explains the exit codes.
    #[must_use]
    pub fn run(self) -> ExitCode {
        if let Err(error) = environment::check(&Self::command()) {
            complain(format_args!("{error:#}"));
            return ExitCode::FAILURE;
        }
        let result = match self.command {
            Command::Serve(args) => serve::run(args),
            Command::Push(args) => push::run(args),
            Command::Pull(args) => pull::run(args),
            Command::Ls(args) => ls::run(args),
            Command::Rm(args) => rm::run(args),
            Command::Usage(args) => usage::run(args),
            Command::Xorb(command) => xorb::run(command),
            Command::Token(command) => token::run(command),
            Command::User(command) => accounts::run_user(command),
            Command::Org(command) => accounts::run_org(command),
            Command::Backup(args) => backup::run(args),
            Command::Restore(args) => restore::run(args),
            Command::Fsck(args) => fsck::run(args),
            Command::Index(command) => index::run(command),
            Command::Gc(args) => gc::run(args),
            Command::Db(command) => db::run(command),
            Command::Check(args) => check::run(args),
            Command::Rca(command) => rca::run(command),
            Command::Healthcheck(args) => healthcheck::run(args),
            Command::Completions { shell } => completions(shell),
            Command::ManPages { directory } => man_pages(&directory),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            // The reader of stdout has closed the pipe, so it does not want the rest. Not reported.
            Err(error) if matches!(error.downcast_ref(), Some(OutputError::Closed)) => ExitCode::FAILURE,
            Err(error) => {
                complain(format_args!("{error:#}"));
                if error.is::<Usage>() || error.is::<fsck::CannotCheck>() {
                    ExitCode::from(2)
                } else if error.downcast_ref().is_some_and(Stopped::is_interrupted) {
                    ExitCode::from(130)
                } else {
                    ExitCode::FAILURE
                }
            }
        }
    }
}

fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "zorb", &mut script);
    Ok(write_stdout(|stdout| stdout.write_all(&script))?)
}

/// Writes manual pages, which packages of zorb contain. Replaces existing ones.
fn man_pages(directory: &Path) -> anyhow::Result<()> {
    let pages = clap_mangen::generate_to(Cli::command(), directory);
    pages.with_context(|| format!("cannot write manual pages into {}", directory.display()))
}

/// The arguments are invalid in a way that clap does not detect, for example in combination.
#[derive(Clone, Copy, Debug, Error)]
#[error("{0}; see --help")]
struct Usage(&'static str);

/// A signal ended the command early.
#[derive(Clone, Copy, Debug, Error)]
#[error("stopped by {signal}{}", if *can_continue { "; run it again to continue" } else { "" })]
struct Stopped {
    signal: &'static str,
    /// Whether the same command continues with the results of this run.
    can_continue: bool,
}

impl Stopped {
    /// Whether the signal was Ctrl-C. Shells and scripts then expect the exit code 130, which is
    /// 128 plus the number of SIGINT.
    fn is_interrupted(&self) -> bool {
        self.signal == "SIGINT"
    }
}

#[cfg(test)]
mod tests_recoverable;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
