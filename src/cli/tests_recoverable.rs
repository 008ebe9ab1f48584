//! Tests of stores whose index is lost, damaged, too old, or that of another store. Whatever
//! command an operator then runs, no file is lost as long as records and blobs exist.

#![expect(clippy::disallowed_methods, reason = "a test damages files")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tempfile::TempDir;

use super::collector::prune;
use super::index::{IndexCommand, rebuild_at};
use super::serve::{OpenedStore, begin_store};
use super::{Cli, Command, backup, fsck, gc, remote};
use crate::config::{Config, RawConfig};
use crate::format::xorb::BuiltXorb;
use crate::index::Collect;
use crate::index::sqlite::SqliteIndex;
use crate::runtime::clock::{Clock, ManualClock, Timestamp};
use crate::runtime::metrics::Metrics;
use crate::service::access::Claims;
use crate::service::gc::{MIN_CONDEMNED, MIN_GRACE, Pace, Policy};
use crate::service::tests::records::{file_of, register, upload_as, xorb_of};
use crate::service::{Rebuilt, Server};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Number of registrations in the store of the test. Each has one record and one file.
const RECORD_COUNT: u64 = 106;

/// Number of xorbs in the store of the test.
const XORB_COUNT: u64 = 12;

/// Opens a store as a starting server does.
fn begin(data_dir: &Path, clock: &Arc<dyn Clock>) -> anyhow::Result<OpenedStore> {
    let raw = RawConfig { data_dir: Some(data_dir.to_str().unwrap().to_owned()), ..RawConfig::default() };
    let config = Config::new(raw)?;
    remote::run(begin_store(&config, 16, &Arc::new(Metrics::new()), Arc::clone(clock), None))
}

/// Opens a store as a starting server does, does `work`, and closes the store.
fn serve(data_dir: &Path, clock: &Arc<dyn Clock>, work: impl AsyncFnOnce(&Arc<Server>)) -> anyhow::Result<()> {
    let OpenedStore { server, index, .. } = begin(data_dir, clock)?;
    remote::run(async {
        work(&server).await;
        server.finish().await;
        index.close().await;
        Ok(())
    })
}

/// A store, and copies of its index from different times.
struct Stock {
    directory: TempDir,
    clock: Arc<dyn Clock>,
}

impl Stock {
    /// Fills the store, and copies its index before the last 100 registrations, before the last
    /// one, and between the upload and the registration of the last xorb.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_millis(1_700_000_000_000)));
        let stock = Self { directory, clock };
        let chunks = |number: u32| (0..10).map(|chunk| 10 * number + chunk).collect::<Vec<_>>();
        let files = async |server: &Arc<Server>, number: u32, count: u32| {
            let xorb = xorb_of(&chunks(number));
            upload_as(server, "org/a", &xorb).await;
            for end in 1..=count {
                assert!(register(server, "org/a", vec![file_of(&xorb, 0, end, None)], &[]).await);
            }
        };
        stock.phase(async |server| files(server, 0, 6).await);
        stock.copy_index("older_by_100");
        stock.phase(async |server| {
            for number in 1..=10 {
                files(server, number, if number == 10 { 9 } else { 10 }).await;
            }
        });
        stock.copy_index("older_by_1");
        stock.phase(async |server| upload_as(server, "org/a", &xorb_of(&chunks(11))).await);
        stock.copy_index("older_by_1_with_its_xorb");
        stock.copy_index("older_by_1_with_its_xorb_half_deleted");
        stock.begin_deletion("older_by_1_with_its_xorb_half_deleted", &xorb_of(&chunks(11)));
        stock.phase(async |server| files(server, 11, 1).await);
        let other = tempfile::tempdir().unwrap();
        serve(other.path(), &stock.clock, async |server| files(server, 0, 6).await).unwrap();
        fs::copy(other.path().join("index.sqlite"), stock.directory.path().join("of_another_store")).unwrap();
        stock
    }

    fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Does `work` as a server that is stopped afterwards.
    fn phase(&self, work: impl AsyncFnOnce(&Arc<Server>)) {
        serve(&self.data_dir(), &self.clock, work).unwrap();
    }

    /// Copies the index as it is now to a file of this name.
    fn copy_index(&self, name: &str) {
        fs::copy(self.data_dir().join("index.sqlite"), self.directory.path().join(name)).unwrap();
    }

    /// Changes a copy of the index to what an interrupted deletion of `xorb` leaves.
    fn begin_deletion(&self, name: &str, xorb: &BuiltXorb) {
        let (path, now) = (self.directory.path().join(name), self.clock.now());
        remote::run(async {
            let index = SqliteIndex::open(&path).await?;
            let hash = vec![xorb.xorb().hash()];
            index.condemn_xorbs(hash.clone(), now, now).await?;
            assert_eq!(index.begin_deletions(hash, now, now).await?.len(), 1);
            index.close().await;
            Ok(())
        })
        .unwrap();
    }

    /// A copy of the store with a wrong index. Dropping the result removes the copy.
    fn damaged(&self, damage: &str) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_all(&self.data_dir(), copy.path());
        let index = copy.path().join("index.sqlite");
        match damage {
            "0_bytes" => fs::write(&index, "").unwrap(),
            "deleted" => fs::remove_file(&index).unwrap(),
            "garbage_page" => {
                let mut bytes = fs::read(&index).unwrap();
                let at = bytes.len() / 2 / 4096 * 4096;
                bytes[at..at + 4096].fill(0xa5);
                fs::write(&index, bytes).unwrap();
            }
            copied_index => {
                fs::copy(self.directory.path().join(copied_index), &index).unwrap();
            }
        }
        copy
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (entry, path) = entry.map(|entry| (entry.file_name(), entry.path())).unwrap();
        if path.is_dir() {
            copy_all(&path, &to.join(entry));
        } else {
            fs::copy(path, to.join(entry)).unwrap();
        }
    }
}

/// Runs a command line of zorb with this clock. Returns the result of `index rebuild`.
fn run(line: &[&str], clock: &Arc<dyn Clock>) -> anyhow::Result<Option<Rebuilt>> {
    match Cli::try_parse_from([&["zorb"], line].concat()).unwrap().command {
        Command::Fsck(args) => fsck::check(args, Arc::clone(clock)).map(|_| None),
        Command::Gc(args) => gc::run_at(args, clock).map(|()| None),
        Command::Backup(args) => backup::run(args).map(|()| None),
        Command::Index(IndexCommand::Rebuild(args)) => rebuild_at(args, clock).map(Some),
        _ => unreachable!("the test runs no other command"),
    }
}

/// Does what a server does without requests for a week: GC, and removal of obsolete records.
fn live_on(data_dir: &Path, clock: &Arc<ManualClock>) -> anyhow::Result<()> {
    let policy = Policy::new(MIN_GRACE, MIN_CONDEMNED).unwrap();
    let shared: Arc<dyn Clock> = Arc::clone(clock) as _;
    serve(data_dir, &shared, async |server| {
        for _ in 0..7 {
            // An error is fine, because an aborted GC changes nothing.
            let _ = server.store.collect_garbage(policy, &Pace::default()).await;
            let _ = prune(&server.store, Duration::ZERO).await;
            clock.advance(DAY);
        }
    })
}

/// Runs a command on a store with a wrong index, and checks its result. Then runs other commands,
/// rebuilds the index, and checks that the store has all files.
fn check(stock: &Stock, damage: &str, command: &str) {
    let case = format!("{damage} x {command}");
    let copy = stock.damaged(damage);
    let dir = copy.path().to_str().unwrap();
    let archive = stock.directory.path().join(format!("{damage}-{}.rca", command.replace(' ', "-")));
    let clock = Arc::new(ManualClock::new(stock.clock.now()));
    clock.advance(60 * DAY);
    let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
    let done = match command {
        "serve" => live_on(copy.path(), &clock).map(|()| None),
        "backup" => run(&["backup", archive.to_str().unwrap(), "--data-dir", dir], &shared),
        _ => run(&[&command.split(' ').collect::<Vec<_>>()[..], &["--data-dir", dir]].concat(), &shared),
    };
    match (damage, command) {
        (_, "index rebuild") => done.map(drop).unwrap_or_else(|error| panic!("{case}: {error:#}")),
        // The result depends on the damaged page and on whether SQLite reads it. Only the checks at
        // the end apply.
        ("garbage_page", "serve" | "gc" | "backup") => {}
        // A crash between record and index leaves the same: the next start applies the record. A
        // backup must not be made before that.
        ("older_by_1_with_its_xorb", "backup") => {
            let error = format!("{:#}", done.unwrap_err());
            assert!(error.contains("1 record") && error.contains("zorb serve"), "{case}: {error}");
        }
        ("older_by_1_with_its_xorb", _) | ("older_by_1_with_its_xorb_half_deleted", "serve") => {
            done.map(drop).unwrap_or_else(|error| panic!("{case}: {error:#}"))
        }
        _ => {
            let error = format!("{:#}", done.expect_err(&case));
            assert!(error.contains("zorb index rebuild --data-dir"), "{case}: {error}");
            assert!(!error.contains("sqlx") && !error.contains("(code:"), "{case}: {error}");
        }
    }
    // An operator who ignores the errors may run any of these. None may lose data.
    for next in ["serve", "fsck --repair", "gc", "gc"] {
        let _ = match next {
            "serve" => live_on(copy.path(), &clock),
            _ => run(&[&next.split(' ').collect::<Vec<_>>()[..], &["--data-dir", dir]].concat(), &shared).map(drop),
        };
        clock.advance(2 * DAY);
    }
    let rebuilt = run(&["index", "rebuild", "--data-dir", dir], &shared).unwrap().unwrap();
    assert!(!rebuilt.has_problems(), "{case}: {rebuilt:?}");
    assert_eq!((rebuilt.xorb_count, rebuilt.record_count), (XORB_COUNT, RECORD_COUNT), "{case}");
    // A server with the rebuilt index has all files.
    live_on(copy.path(), &clock).unwrap_or_else(|error| panic!("{case}: {error:#}"));
    assert_eq!(run(&["fsck", "--deep", "--data-dir", dir], &shared).unwrap(), None, "{case}");
    serve(copy.path(), &shared, async |server| {
        let page = server.list_files(&Claims::UNRESTRICTED, None, 1000).await.unwrap();
        assert_eq!(page.entries.len() as u64, RECORD_COUNT, "{case}");
    })
    .unwrap();
}

#[test]
fn no_command_on_a_wrong_index_loses_a_file() {
    let stock = Stock::new();
    for damage in [
        "0_bytes",
        "older_by_1",
        "older_by_1_with_its_xorb",
        "older_by_1_with_its_xorb_half_deleted",
        "older_by_100",
        "garbage_page",
        "deleted",
        "of_another_store",
    ] {
        for command in ["serve", "fsck", "fsck --repair", "gc", "backup", "index rebuild"] {
            check(&stock, damage, command);
        }
    }
}

#[test]
fn errors_about_a_wrong_index_show_no_sql() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_millis(1_700_000_000_000)));
    let directory = tempfile::tempdir().unwrap();
    serve(directory.path(), &clock, async |server| upload_as(server, "org/a", &xorb_of(&[1, 2])).await).unwrap();
    let (index, dir) = (directory.path().join("index.sqlite"), directory.path().to_str().unwrap());
    let archive = directory.path().join("../archive-that-is-never-made");
    let commands = [
        &["fsck", "--data-dir", dir][..],
        &["fsck", "--repair", "--data-dir", dir],
        &["gc", "--data-dir", dir],
        &["backup", archive.to_str().unwrap(), "--data-dir", dir],
    ];
    let check_errors = |words: &[&str]| {
        let mut errors = vec![begin(directory.path(), &clock).map(drop).unwrap_err()];
        errors.extend(commands.iter().map(|line| run(line, &clock).unwrap_err()));
        for error in errors {
            let error = format!("{error:#}");
            assert!(words.iter().all(|word| error.contains(word)), "{words:?} in {error}");
            assert!(!error.contains("(code:") && !error.contains("returned from database"), "{error}");
        }
    };
    let sound = fs::read(&index).unwrap();
    remote::run(async {
        let opened = SqliteIndex::open(&index).await?;
        opened.tamper("INSERT INTO _sqlx_migrations VALUES (99, 'later', 0, true, x'00', 0)").await;
        opened.close().await;
        Ok(())
    })
    .unwrap();
    check_errors(&["newer zorb", "version 99"]);
    fs::write(&index, "not a database".repeat(1000)).unwrap();
    check_errors(&["damaged or not a database", "zorb index rebuild --data-dir"]);
    fs::write(&index, sound).unwrap();
    begin(directory.path(), &clock).unwrap();
}

/// Each command meets the damage at another place: when it opens the index, when it compares it
/// with the records, or in its work.
#[test]
fn errors_about_any_damaged_page_show_no_sql() {
    const PAGE_LEN: usize = 4096;
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_millis(1_700_000_000_000)));
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (xorb_of(&[1, 2]), xorb_of(&[3]));
    serve(directory.path(), &clock, async |server| {
        upload_as(server, "org/a", &a).await;
        register(server, "org/a", vec![file_of(&a, 0, 2, None)], &[&a]).await;
        upload_as(server, "org/a", &b).await;
    })
    .unwrap();
    let (index, dir) = (directory.path().join("index.sqlite"), directory.path().to_str().unwrap());
    let archives = tempfile::tempdir().unwrap();
    let archive = archives.path().join("archive.rca");
    let commands = [
        &["fsck", "--data-dir", dir][..],
        &["gc", "--data-dir", dir],
        &["backup", archive.to_str().unwrap(), "--data-dir", dir],
    ];
    let sound = fs::read(&index).unwrap();
    let mut error_counts = [0; 4];
    for page in 1..sound.len() / PAGE_LEN {
        let mut bytes = sound.clone();
        bytes[page * PAGE_LEN..(page + 1) * PAGE_LEN].fill(0xa5);
        let begins = || begin(directory.path(), &clock).map(drop);
        let runs = commands.iter().map(|line| Box::new(|| run(line, &clock).map(drop)) as Box<dyn Fn() -> _>);
        for (command, done) in std::iter::once(Box::new(begins) as Box<dyn Fn() -> _>).chain(runs).enumerate() {
            let beside = ["index.sqlite-wal", "index.sqlite-shm"].map(|name| directory.path().join(name));
            for left in beside.iter().chain([&archive]) {
                let _ = fs::remove_file(left);
            }
            fs::write(&index, &bytes).unwrap();
            let Err(error) = done() else { continue };
            let error = format!("{error:#}");
            assert!(!error.contains("(code:") && !error.contains("returned from database"), "{page}: {error}");
            assert!(error.contains("zorb index rebuild --data-dir"), "page {page}, command {command}: {error}");
            error_counts[command] += 1;
        }
    }
    assert!(error_counts.iter().all(|count| *count > 2), "{error_counts:?}");
}
