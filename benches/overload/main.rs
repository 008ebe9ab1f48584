//! Overload: 1000 slow connections, 200 clients that upload and read as fast as they can, and one tenant beside them that
//! reads ranges. Its 99th percentile stays within 3 times of its idle value, and the server within its stated bounds.
//!
//!   cargo bench --bench overload
//!   cargo bench --bench overload -- --compare OLD_BINARY     one client alone, this server and an older one in turn
//!   cargo bench --bench overload -- --plans [OLD_BINARY]     one client beside eight that ask for long responses
//!   cargo bench --bench overload -- --shards                 one client beside four that register shards of 290 676 files
//!
//! Starts the real server with tokens. Idle is measured before and after the load, in the same run, with the same
//! requests. Ends with 1 when the ratio is above 3, when anything of the quiet tenant fails, or when memory or descriptors
//! are above the bounds of docs/capacity.md for these settings.
//!
//! The load comes from a process of its own with one thread, which on a small machine takes its share of the very cores
//! that the server runs on. It runs when nothing else does (`SCHED_IDLE`, by util-linux's `chrt`): what it cannot send costs
//! the server nothing, and elsewhere it would run on other machines. The quiet client and the server have the common
//! priority.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::future_not_send,
    reason = "a bench fails where it panics, prints, has no pools, and runs its load on one thread"
)]

mod flood;
mod plans;
mod quiet;
mod server;
mod shards;
mod xorbs;

use std::process::ExitCode;
use std::time::Duration;

use self::quiet::{Quiet, percentile};
use self::server::Server;

/// Reads of the quiet tenant in each phase: the 99th percentile of so many has 40 above it.
const SAMPLE_COUNT: usize = 4000;

/// Longest time for those under load.
const LOAD_LIMIT: Duration = Duration::from_secs(240);

/// What is allowed.
const MAX_RATIO: f64 = 3.0;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => measure(),
        ["--compare", old] => compare(old),
        ["--plans"] => plans::measure(&[env!("CARGO_BIN_EXE_zorb")]),
        ["--plans", old] => plans::measure(&[env!("CARGO_BIN_EXE_zorb"), old]),
        ["--shards"] => shards::measure(env!("CARGO_BIN_EXE_zorb")),
        ["--flood", rest @ ..] => flood::run(rest),
        other => panic!("no such arguments: {other:?}"),
    }
}

fn measure() -> ExitCode {
    let server = Server::start(env!("CARGO_BIN_EXE_zorb"));
    let stored = server.fill();
    let mut quiet = Quiet::connect(&server, &stored);
    quiet.reads(500, LOAD_LIMIT);
    let before = quiet.reads(SAMPLE_COUNT, LOAD_LIMIT);
    let idle_rss = server.memory("VmRSS:");

    let mut flood = server.flood(&stored);
    let (mut peak_descriptors, mut loaded) = (0, Vec::new());
    for _ in 0..20 {
        loaded.extend(quiet.reads(SAMPLE_COUNT / 20, LOAD_LIMIT / 20));
        peak_descriptors = peak_descriptors.max(server.descriptors());
    }
    let uploads_done = quiet.upload_some(20);
    let did = flood.stop();
    let peak_rss = server.memory("VmHWM:");
    server.wait_until_idle();
    let after = quiet.reads(SAMPLE_COUNT, LOAD_LIMIT);

    let idle: Vec<f64> = before.iter().chain(&after).copied().collect();
    println!("load: {did}");
    println!("idle resident memory {} MiB", idle_rss >> 20);
    for (what, times) in [("idle, before", &before), ("idle, after", &after), ("under load", &loaded)] {
        let at = |part| percentile(times, part) * 1e3;
        println!(
            "{what:14} {:6} reads  median {:8.3} ms  p99 {:8.3} ms  max {:8.3} ms",
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    let ratio = percentile(&loaded, 0.99) / percentile(&idle, 0.99);
    let checks = [
        ("p99 under load, of idle", ratio, MAX_RATIO),
        ("memory, of its bound", peak_rss as f64 / server.memory_bound() as f64, 1.0),
        ("descriptors, of their bound", peak_descriptors as f64 / server.descriptor_bound() as f64, 1.0),
        ("uploads of the quiet tenant that failed", (20 - uploads_done) as f64, 0.0),
        ("reads under load that were missing", (SAMPLE_COUNT - loaded.len()) as f64, 0.0),
    ];
    println!("peak resident memory {} MiB, descriptors {peak_descriptors}", peak_rss >> 20);
    let mut good = true;
    for (what, is, allowed) in checks {
        let verdict = if is <= allowed { "ok" } else { "TOO MUCH" };
        good &= is <= allowed;
        println!("{what:42} {is:7.3}  (at most {allowed})  {verdict}");
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Throughput of one client alone: the ratio of medians of many short turns.
fn compare(old: &str) -> ExitCode {
    const ROUND_COUNT: usize = 15;
    let servers = [Server::start(env!("CARGO_BIN_EXE_zorb")), Server::start(old)];
    let stored: Vec<_> = servers.iter().map(Server::fill).collect();
    for chunk_count in [1, 16, 1023] {
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..=ROUND_COUNT {
            for (index, server) in servers.iter().enumerate() {
                let mut quiet = Quiet::connect(server, &stored[index]).reading(chunk_count);
                let count = if chunk_count > 100 { 12 } else { 1500 / chunk_count as usize + 100 };
                let times = quiet.reads(count, LOAD_LIMIT);
                if round > 0 {
                    rates[index].push(times.len() as f64 / times.iter().sum::<f64>());
                }
            }
        }
        let [new, old] = rates.map(|rates| percentile(&rates, 0.5));
        println!(
            "ranges of {chunk_count:4} chunks, one client: {new:9.1}/s, before {old:9.1}/s, ratio {:.3}",
            new / old
        );
    }
    ExitCode::SUCCESS
}
