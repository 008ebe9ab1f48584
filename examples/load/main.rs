//! A load for any server of xorbs: `load make` writes xorbs, and the other commands send them to a server or read them
//! from it, compare every byte, and say how long it took and what it cost the server.
//!
//! It is to take little of a machine that it shares with the server: reads are one loop per thread over plain sockets,
//! uploads write from memory. `benches/compare.sh` runs it against zorb, nginx and the official test server.

mod account;
mod histogram;
mod make;
mod mixed;
mod paced;
mod plan;
mod read;
mod report;
mod response;
mod set;
mod target;
#[cfg(test)]
mod tests;
mod upload;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, Parser, Subcommand};

use crate::account::Account;
use crate::plan::Plan;
use crate::report::Report;
use crate::set::Set;
use crate::target::{Kind, Target};

#[derive(Parser)]
#[command(about = "A load of uploads and reads, compared byte by byte")]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Write xorbs of about 51 MiB: a third each noise, text and floats, packed as clients do
    Make {
        /// Where to
        directory: PathBuf,
        /// How many
        #[arg(long, default_value_t = 24)]
        count: u32,
        /// What the contents follow from
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Send each xorb once
    Upload {
        #[command(flatten)]
        common: Common,
        /// Uploads at once
        #[arg(long, default_value_t = 1)]
        connections: usize,
    },
    /// Read runs of chunks
    Ranges {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        reading: Reading,
        /// Chunks of each run
        #[arg(long, default_value_t = 16)]
        chunks: usize,
    },
    /// Read whole xorbs
    Whole {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        reading: Reading,
    },
    /// Read single chunks at a steady rate, alone at first, then while others read what is in no cache
    Mixed {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        mix: mixed::Mix,
    },
}

/// What every load is told.
#[derive(Args)]
struct Common {
    /// Where `load make` has written
    directory: PathBuf,
    /// Address of the server, such as 127.0.0.1:8080
    address: String,
    /// What it is
    #[arg(long, value_enum, default_value_t = Kind::Zorb)]
    target: Kind,
    /// Take so many xorbs of the directory
    #[arg(long)]
    xorbs: Option<usize>,
    /// The server's process; those that it has started are counted, too
    #[arg(long)]
    pid: Option<u32>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// How to read.
#[derive(Args)]
struct Reading {
    /// Connections
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Threads that share the connections
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// How long
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Compare the bytes of every so-manieth response; of the others, the status and the length
    #[arg(long, default_value_t = 1)]
    verify: u64,
    /// Read everything once, in random order, and not for a time
    #[arg(long)]
    once: bool,
    /// The same after it was dropped from the page cache: the directory with the files that the server reads, each as
    /// ab/abcd...
    #[arg(long)]
    cold: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    match Command::parse().verb {
        Verb::Make { directory, count, seed } => make::make(&directory, count, seed),
        Verb::Upload { common, connections } => {
            let (set, target, account) = common.open()?;
            let report = upload::upload(&set, &target, connections, &account)?;
            common.print(&report, "upload")
        }
        Verb::Ranges { common, reading, chunks } => {
            ensure!(chunks > 0, "a run has at least one chunk");
            read(&common, &reading, Some(chunks), "ranges")
        }
        Verb::Whole { common, reading } => read(&common, &reading, None, "whole"),
        Verb::Mixed { common, mix } => {
            let (set, target, account) = common.open()?;
            let mixed = mixed::run(set, &target, &mix, &account)?;
            mixed.print(common.json)
        }
    }
}

/// Reads runs of so many chunks, or whole xorbs.
fn read(common: &Common, reading: &Reading, chunks: Option<usize>, what: &'static str) -> anyhow::Result<()> {
    let (set, target, account) = common.open()?;
    if let Some(served) = &reading.cold {
        set.drop_from_cache(served)?;
    }
    let is_once = reading.once || reading.cold.is_some();
    let plan = if is_once { Plan::once(&set, chunks) } else { Plan::random(&set, chunks) };
    let time = (!is_once).then(|| Duration::from_secs_f64(reading.seconds));
    let load = read::Load {
        connections: reading.connections,
        threads: reading.threads,
        verify: reading.verify.max(1),
        time,
        stop: None,
    };
    let begin = account.begin()?;
    let tally = read::run(&set, &target, &plan, &load)?;
    common.print(&Report::new(&tally, &begin.end()?), what)
}

impl Common {
    fn open(&self) -> anyhow::Result<(Set, Target, Account)> {
        let set = Set::load(&self.directory, self.xorbs)?;
        Ok((set, Target::new(self.target, &self.address), Account::new(self.pid)))
    }

    /// Prints what happened.
    ///
    /// # Errors
    ///
    /// Something went wrong on the way; it is printed all the same.
    fn print(&self, report: &Report, what: &str) -> anyhow::Result<()> {
        report.print(what, self.json);
        ensure!(report.errors == 0, "{} requests failed; the first: {}", report.errors, report.first_error);
        Ok(())
    }
}
