//! Warm reads at a steady rate, alone and then while others read what is in no cache.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;

use crate::account::Account;
use crate::paced::{self, Pace};
use crate::plan::Plan;
use crate::read::{self, Load};
use crate::report::{Report, Tally};
use crate::set::Set;
use crate::target::{Kind, Target};

#[derive(Args)]
pub(crate) struct Mix {
    /// The directory with the files that the server reads, each as ab/abcd...
    #[arg(long)]
    served: PathBuf,
    /// Xorbs that are warm; the others are dropped from the page cache again and again
    #[arg(long, default_value_t = 4)]
    warm_xorbs: usize,
    /// Chunks of a warm read
    #[arg(long, default_value_t = 1)]
    warm_chunks: usize,
    /// Warm reads per second
    #[arg(long, default_value_t = 400)]
    rate: u32,
    /// Where the warm reads go, if not to the server of the cold ones: what the cold ones cost a server that has none of
    /// them is what the machine costs, and not the server
    #[arg(long, requires = "warm_target")]
    warm_address: Option<String>,
    /// What is there
    #[arg(long, value_enum, requires = "warm_address")]
    warm_target: Option<Kind>,
    /// Connections of the warm reads
    #[arg(long, default_value_t = 4)]
    warm_connections: u32,
    /// Chunks of a cold read
    #[arg(long, default_value_t = 16)]
    cold_chunks: usize,
    /// Connections of the cold reads
    #[arg(long, default_value_t = 16)]
    cold_connections: usize,
    /// How long each of the two phases takes
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

pub(crate) struct Mixed {
    idle: Report,
    busy: Report,
    cold: Tally,
}

pub(crate) fn run(set: Set, target: &Target, mix: &Mix, account: &Account) -> anyhow::Result<Mixed> {
    ensure!(mix.rate > 0 && mix.warm_connections > 0, "warm reads need a rate and a connection");
    ensure!(mix.warm_xorbs > 0 && mix.warm_xorbs < set.xorbs.len(), "some xorbs are warm, and some are not");
    let (warm, cold) = set.part(mix.warm_xorbs);
    let other = mix.warm_target.zip(mix.warm_address.as_ref()).map(|(kind, address)| Target::new(kind, address));
    let warm_target = other.as_ref().unwrap_or(target);
    let everything = Load { connections: 1, threads: 1, verify: 1, time: None, stop: None };
    read::run(&warm, warm_target, &Plan::once(&warm, None), &everything)?;
    let plan = Plan::random(&warm, Some(mix.warm_chunks));
    let time = Duration::from_secs_f64(mix.seconds);
    let pace = Pace { connections: mix.warm_connections, rate: mix.rate, time };

    let begun = account.begin()?;
    let tally = paced::run(&warm, warm_target, &plan, &pace)?;
    let idle = Report::new(&tally, &begun.end()?);

    let begun = account.begin()?;
    let stop = AtomicBool::new(false);
    let (tally, cold) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&cold, target, mix, &stop));
        let tally = paced::run(&warm, warm_target, &plan, &pace);
        stop.store(true, Ordering::Relaxed);
        let cold = flood.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        anyhow::Ok((tally?, cold))
    })?;
    ensure!(cold.len > 0, "nothing was read from the disk: the cold reads never got to run");
    Ok(Mixed { idle, busy: Report::new(&tally, &begun.end()?), cold })
}

/// Drops everything from the cache and reads it, again and again until it is told to stop. The time is that of reading.
fn flood(set: &Set, target: &Target, mix: &Mix, stop: &AtomicBool) -> anyhow::Result<Tally> {
    give_way()?;
    let (mut tally, mut time) = (Tally::default(), Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        set.drop_from_cache(&mix.served)?;
        let begin = Instant::now();
        let load = Load { connections: mix.cold_connections, threads: 1, verify: 1, time: None, stop: Some(stop) };
        tally.merge(read::run(set, target, &Plan::once(set, Some(mix.cold_chunks)), &load)?);
        time += begin.elapsed();
    }
    tally.time = Some(time);
    Ok(tally)
}

/// Lets this thread, and those that it starts, run when nothing else does.
fn give_way() -> anyhow::Result<()> {
    let path = std::fs::read_link("/proc/thread-self").context("cannot tell the number of a thread")?;
    let thread = path.file_name().context("a thread has no number")?;
    let status = Command::new("chrt").args(["--idle", "--pid", "0"]).arg(thread).status();
    ensure!(status.context("cannot run chrt, of util-linux")?.success(), "the cold reads cannot be made to give way");
    Ok(())
}

impl Mixed {
    /// Prints what happened.
    ///
    /// # Errors
    ///
    /// Something went wrong on the way; it is printed all the same.
    #[expect(clippy::print_stdout, clippy::cast_precision_loss, reason = "the result of a program, for people")]
    pub(crate) fn print(&self, is_json: bool) -> anyhow::Result<()> {
        let cold_rate = self.cold.len as f64 / self.cold.time.unwrap_or_default().as_secs_f64();
        if is_json {
            let value = json!({
                "what": "mixed", "idle": self.idle, "busy": self.busy, "p99_ratio": self.busy.p99_us / self.idle.p99_us,
                "cold_bytes_per_sec": cold_rate, "cold_bytes": self.cold.len, "cold_errors": self.cold.errors,
            });
            println!("{value}");
        } else {
            self.idle.print("warm reads, alone", false);
            self.busy.print("warm reads, beside cold ones", false);
            println!("cold reads: {:.0} MiB/s", cold_rate / f64::from(1 << 20));
        }
        let errors = self.idle.errors + self.busy.errors + self.cold.errors;
        let first = [&self.idle.first_error, &self.busy.first_error, &self.cold.first_error]
            .into_iter()
            .find(|error| !error.is_empty());
        ensure!(errors == 0, "{errors} requests failed; the first: {}", first.map_or("", String::as_str));
        Ok(())
    }
}
