//! `zorb usage`: prints the usage and the quotas of repositories on a server.

use std::fmt::{self, Display};

use clap::Args;

use super::output::{Output, OutputArgs};
use super::remote::{self, Quiet, RemoteArgs};
use super::units::{Count, Size};
use crate::client::{RepoUsage, Usage};

/// Print usage and quotas of repositories on a server.
///
/// A line per repository: its files, their bytes, and the bytes stored for them. A xorb counts once
/// for each repository whose files need it, so the sum over repositories that share data can exceed
/// what is stored. A token of a repository sees that repository, an admin token of all repositories
/// sees all that have files.
#[derive(Debug, Args)]
pub(super) struct UsageArgs {
    /// Only this repository; `*` is for registrations by tokens of all repositories
    repo: Option<String>,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: UsageArgs) -> anyhow::Result<()> {
    let output = Output::new(args.output);
    let server = args.remote.server()?;
    remote::run(async {
        let watch = Quiet::watch(&output);
        let mut after = None;
        loop {
            let page = server.usage(args.repo.as_deref(), after.as_deref(), &watch).await?;
            for repo in &page.repos {
                output.line(line(repo))?;
                output.record(repo)?;
            }
            if page.next.is_none() {
                return Ok(());
            }
            after = page.next;
        }
    })
}

/// The line of a repository. If its owner has a quota, the line ends with the usage of the owner.
fn line(repo: &RepoUsage) -> String {
    let own = format!("{}  {}", repo.repo, Described(repo.usage));
    match &repo.owner {
        None => own,
        Some(owner) => format!("{own}; {}/* together: {}", owner.owner, Described(owner.usage)),
    }
}

/// Usage for people: `3 files of 10, 5.0 MiB, stored 2.0 MiB of 4.0 MiB`.
struct Described(Usage);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage { files, logical_bytes, physical_bytes, limits } = self.0;
        write!(f, "{}{}", Count(files, "file"), Of(limits.files))?;
        write!(f, ", {}{}", Size(logical_bytes), Of(limits.logical_bytes.map(Size)))?;
        write!(f, ", stored {}{}", Size(physical_bytes), Of(limits.physical_bytes.map(Size)))
    }
}

/// The limit after a usage, as in `3 files of 10`; nothing without a limit.
struct Of<T>(Option<T>);

impl<T: Display> Display for Of<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => Ok(()),
            Some(limit) => write!(f, " of {limit}"),
        }
    }
}
