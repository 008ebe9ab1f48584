//! What the verbs take in large stores: from 1000 xorbs and 10 000 files to 1 000 000 xorbs (64 TB) and 10 000 000 files.
//!
//!   cargo bench --bench scale                                     10³, 10⁴ and 10⁵ xorbs, in a directory that goes
//!   cargo bench --bench scale -- 1000 10000 --directory DIR          these sizes, in a directory that stays
//!   cargo bench --bench scale -- 1000000 --directory DIR --fill      only makes the store
//!   cargo bench --bench scale -- 1000 10000 --directory DIR --report what was measured there before
//!
//! Also `--whole COUNT`: how many xorbs have all their chunk hashes, 100 000 unless said. They take 33 KiB each, 33 GB of a
//! million. Where there are more xorbs, those of every so manieth owner have them, and all that is registered or asked for
//! by chunk is about these; the others have one chunk hash, which nobody reads. `--json FILE`, `--svg FILE`: figures and
//! plot. `--seed NUMBER`: which xorbs and files are asked for. `--only KIND`: nothing but `lookups`, say, or `registrations`,
//! for a profile of them (benches/flame.sh); no other figures are kept then.
//!
//! Rows are entered in bulk. A small store is made both in bulk and by the verbs, and both must have the same rows.
//! The file is read once from its start to its end before anything is measured, so that as much of it as fits is in the
//! memory of the operating system; SQLite's own caches, of 2 MiB each, hold next to nothing of it, and no layout is kept.
//!
//! Ends with 1 where a bound is missed, or something grows by more than it may.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a bench fails where it panics, prints, and writes what nobody needs after a crash"
)]

mod check;
mod figures;
mod fill;
mod measure;
mod report;
mod shape;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::Value;
use tokio::runtime::Builder;
use zorb::index::sqlite::SqliteIndex;

use self::measure::{Bench, KINDS};
use self::report::Size;
use self::shape::Shape;

struct Args {
    counts: Vec<u64>,
    whole_count: u64,
    directory: Option<PathBuf>,
    json: Option<PathBuf>,
    svg: Option<PathBuf>,
    seed: u64,
    is_fill: bool,
    is_report: bool,
    only: Option<String>,
}

fn args() -> Args {
    let mut args = Args {
        counts: Vec::new(),
        whole_count: 100_000,
        directory: None,
        json: None,
        svg: None,
        seed: rand::random(),
        is_fill: false,
        is_report: false,
        only: None,
    };
    let mut given = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = given.next() {
        let mut next = || given.next().unwrap_or_else(|| panic!("{arg} lacks its value"));
        match arg.as_str() {
            "--whole" => args.whole_count = next().parse().unwrap(),
            "--directory" => args.directory = Some(next().into()),
            "--json" => args.json = Some(next().into()),
            "--svg" => args.svg = Some(next().into()),
            "--seed" => args.seed = next().parse().unwrap(),
            "--fill" => args.is_fill = true,
            "--report" => args.is_report = true,
            "--only" => args.only = Some(next()).inspect(|kind| assert!(KINDS.contains(&&**kind), "one of {KINDS:?}")),
            count => args.counts.push(count.parse().unwrap()),
        }
    }
    if args.counts.is_empty() {
        args.counts = vec![1_000, 10_000, 100_000];
    }
    args
}

/// Makes the store of one size, where it is not there yet.
async fn fill(directory: &Path, shape: Shape) {
    let (index, filled) = (directory.join("index.sqlite"), directory.join("filled"));
    let begin = Instant::now();
    if filled.exists() {
        // An older program may have made it.
        SqliteIndex::open(&index).await.unwrap().close().await;
        eprintln!("{} xorbs: brought up to date in {:.1} s", shape.xorb_count, begin.elapsed().as_secs_f64());
        return;
    }
    fs::create_dir_all(directory).unwrap();
    // What was cut short is worth nothing.
    let _ = fs::remove_file(&index);
    fill::fill(&index, shape).await;
    fs::write(filled, []).unwrap();
    let (secs, len) = (begin.elapsed().as_secs(), fs::metadata(&index).unwrap().len());
    eprintln!("{} xorbs, {} files: filled in {secs} s, {} MiB", shape.xorb_count, shape.file_count(), len >> 20);
}

/// Measures one size, and keeps the figures in its directory.
async fn measure(directory: &Path, shape: Shape, args: &Args) {
    let begin = Instant::now();
    let index = directory.join("index.sqlite");
    let len = io::copy(&mut File::open(&index).unwrap(), &mut io::sink()).unwrap();
    eprintln!("{} xorbs: {} MiB read in {} s", shape.xorb_count, len >> 20, begin.elapsed().as_secs());
    let mut bench = Bench::open(directory, shape, args.seed).await;
    let sizes = fill::sizes(&index).await;
    eprintln!("{} xorbs: opened and its pages counted after {} s", shape.xorb_count, begin.elapsed().as_secs());
    check::check_sample(bench.index(), shape).await;
    eprintln!("{} xorbs: measuring", shape.xorb_count);
    let figures = bench.measure(args.only.as_deref()).await;
    bench.index().close().await;
    let kept = report::to_json(shape, &figures, &sizes).to_string();
    fs::write(directory.join("figures.json"), kept).unwrap();
    eprintln!("{} xorbs: measured in {} s", shape.xorb_count, begin.elapsed().as_secs());
}

async fn run(args: &Args, root: &Path) -> bool {
    if !args.is_report {
        let directory = tempfile::tempdir_in(root).unwrap();
        check::compare_with_verbs(directory.path()).await;
        eprintln!("what is filled in bulk has the rows of the verbs; seed {}", args.seed);
    }
    let directory_of = |count: &u64| root.join(count.to_string());
    for count in args.counts.iter().filter(|_| !args.is_report) {
        let shape = Shape::new(*count, args.whole_count);
        fill(&directory_of(count), shape).await;
        if !args.is_fill {
            measure(&directory_of(count), shape, args).await;
        }
    }
    if args.is_fill {
        return true;
    }
    let read = |count| serde_json::from_slice(&fs::read(directory_of(count).join("figures.json")).unwrap()).unwrap();
    let sizes: Vec<Size> = args.counts.iter().map(read).map(Size::new).collect();
    let (table, is_met) = report::table(&sizes);
    println!("{table}");
    for size in sizes.iter().filter(|size| size.values()["stride"] != 1) {
        let stride = &size.values()["stride"];
        println!(
            "At {} xorbs those of one owner in {stride} have all their chunk hashes; their bytes are taken from the largest \
             store in which all have them.",
            size.xorb_count
        );
    }
    if let Some(path) = &args.json {
        let values: Vec<&Value> = sizes.iter().map(Size::values).collect();
        fs::write(path, serde_json::to_string_pretty(&values).unwrap()).unwrap();
    }
    if let Some(path) = &args.svg {
        fs::write(path, report::plot(&sizes)).unwrap();
    }
    is_met
}

fn main() -> ExitCode {
    let args = args();
    let temporary = tempfile::tempdir_in(".").unwrap();
    let root = args.directory.clone().unwrap_or_else(|| temporary.path().to_owned());
    fs::create_dir_all(&root).unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if runtime.block_on(run(&args, &root)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
