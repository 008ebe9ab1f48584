//! Backups and restores that are killed at any moment.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rand::RngExt;
use tokio::time::sleep;
use zorb::rca::{Event, Reader};

use super::{Backups, check_served, store, store_many, text};
use crate::support::{Start, TestServer, Xorb, eventually, kill_rounds, rng};

/// How often a backup is killed, by default.
const KILL_COUNT: usize = 15;

#[tokio::test]
async fn backup_killed_at_any_moment_stays_readable_and_completes() {
    let kill_count = kill_rounds(KILL_COUNT);
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let client = server.client();
    let mut stored = store_many(&server, &mut rng, 3).await;
    // What a run takes here, so that kills fall on all of it.
    let begin = std::time::Instant::now();
    backups.back_up(server.data_dir());
    let (mut reach, mut run_count, mut killed_count, mut blob_counts) = (begin.elapsed() * 3, 0, 0, vec![0]);
    while killed_count < kill_count {
        // Some of them longer than what one blob holds.
        for _ in 0..2 {
            let len = rng.random_range(100_000..5 << 20);
            stored.push(store(&client, Xorb::incompressible(&mut rng, len)).await);
        }
        let mut child = command(&backups, &["backup", "b.rca", "--json", "--data-dir", text(server.data_dir())]);
        // Not a wait for anything: the moment of death, which is what is random here.
        sleep(reach.mul_f64(rng.random_range(0.1..1.0))).await;
        child.kill().unwrap();
        run_count += 1;
        assert!(run_count < 6 * kill_count, "the kills come too late: {killed_count} in {run_count} runs");
        killed_count += usize::from(!child.wait().unwrap().success());
        let (blob_count, garbage) = check_readable(&backups.archive());
        assert!(blob_count >= *blob_counts.last().unwrap(), "{blob_count} after {blob_counts:?}, {garbage}");
        // Not always too early, nor always too late.
        reach = reach.mul_f64(if blob_count == *blob_counts.last().unwrap() { 1.3 } else { 0.8 });
        blob_counts.push(blob_count);
    }
    println!("{killed_count} of {run_count} runs were killed; blobs after each: {blob_counts:?}");
    blob_counts.dedup();
    assert!(blob_counts.len() > kill_count / 10, "the kills came too early: {blob_counts:?}");

    backups.back_up(server.data_dir());
    assert_eq!(backups.back_up(server.data_dir())["added_len"], 0);
    assert_eq!(backups.verify()["trailing_garbage"], false);
    check_served(&Start::default().data_dir(&backups.restore("copy").0).start(), &stored).await;
    assert_eq!(backups.directory.names().iter().filter(|name| !name.ends_with(".tmp")).count(), 2);
}

/// Reads an archive as anybody would, and says how many blobs it has and whether garbage follows.
fn check_readable(archive: &Path) -> (u64, bool) {
    let mut reader = Reader::new(std::fs::File::open(archive).unwrap()).unwrap();
    loop {
        match reader.next_event() {
            Ok(Event::End(end)) => return (end.blobs, end.trailing_garbage),
            Ok(_) => {}
            Err(error) => panic!("the archive is not readable: {error}"),
        }
    }
}

fn command(backups: &Backups, args: &[&str]) -> std::process::Child {
    Command::new(env!("CARGO_BIN_EXE_zorb"))
        .args(args)
        .current_dir(backups.directory.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary was built for this test")
}

#[tokio::test]
async fn a_first_backup_killed_early_leaves_no_archive_or_a_good_one() {
    let (server, mut rng) = (TestServer::start(), rng());
    let stored = store_many(&server, &mut rng, 2).await;
    let mut archives = 0;
    for _ in 0..20 {
        let backups = Backups::new();
        let mut child = command(&backups, &["backup", "b.rca", "--data-dir", text(server.data_dir())]);
        sleep(Duration::from_micros(rng.random_range(500..40_000))).await;
        child.kill().unwrap();
        child.wait().unwrap();
        if backups.archive().exists() {
            archives += 1;
            check_readable(&backups.archive());
        }
        backups.back_up(server.data_dir());
        check_served(&Start::default().data_dir(&backups.restore("copy").0).start(), &stored).await;
    }
    println!("{archives} of 20 had an archive when they died");
}

#[tokio::test]
async fn killed_or_stopped_restore_leaves_its_target_unchanged() {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let stored = vec![store(&server.client(), Xorb::incompressible(&mut rng, 30 << 20)).await];
    backups.back_up(server.data_dir());
    for _ in 0..10 {
        let mut child = command(&backups, &["restore", "b.rca", "--data-dir", "copy"]);
        sleep(Duration::from_micros(rng.random_range(500..60_000))).await;
        child.kill().unwrap();
        let (is_done, copy) = (child.wait().unwrap().success(), backups.directory.path("copy"));
        assert!(!is_done || copy.exists());
        if copy.exists() {
            if !is_done {
                // It was killed after the store had got its name.
                check_served(&Start::default().data_dir(&copy).start(), &stored).await;
            }
            std::fs::remove_dir_all(copy).unwrap();
        }
    }
    // A signal that asks leaves nothing at all; what those that were killed have left is named as ours.
    let ours = |name: &String| name.starts_with(".zorb-") && name.ends_with(".tmp");
    for name in backups.directory.names().iter().filter(|name| ours(name)) {
        std::fs::remove_dir_all(backups.directory.path(name)).unwrap();
    }
    let mut child = command(&backups, &["restore", "b.rca", "--data-dir", "copy"]);
    // It has begun to listen for signals before it makes an index.
    eventually("it is under way", async || {
        let directories = backups.directory.names();
        directories.iter().any(|name| name == "copy" || backups.directory.path(name).join("index.sqlite").exists())
    })
    .await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    if !child.wait().unwrap().success() {
        assert_eq!(backups.directory.names(), ["b.rca"]);
    } else {
        std::fs::remove_dir_all(backups.directory.path("copy")).unwrap();
    }
    check_served(&Start::default().data_dir(&backups.restore("copy").0).start(), &stored).await;
}

#[tokio::test]
async fn full_disk_costs_nothing_and_the_next_run_goes_on() {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let mut stored = Vec::new();
    for _ in 0..4 {
        stored.push(store(&server.client(), Xorb::incompressible(&mut rng, 9 << 20)).await);
    }
    // A disk with room for one xorb, and then for all; seen by these commands only.
    std::fs::create_dir(backups.directory.path("disk")).unwrap();
    let script = "mount -t tmpfs -o size=12m tmpfs disk || exit 9; \
                  \"$0\" backup disk/b.rca --data-dir \"$1\" && exit 8; \
                  \"$0\" backup disk/b.rca --verify || exit 7; \
                  mount -o remount,size=60m disk || exit 6; \
                  \"$0\" backup disk/b.rca --data-dir \"$1\" && cp disk/b.rca .";
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let output = command
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_zorb"), text(server.data_dir())])
        .current_dir(backups.directory.path(""))
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}: {stdout}{stderr}", output.status);
    assert!(stderr.contains("cannot back up to disk/b.rca") && stderr.contains("No space left"), "{stderr}");
    assert!(stdout.contains("disk/b.rca is valid: 1 xorb"), "{stdout}");
    check_served(&Start::default().data_dir(&backups.restore("copy").0).start(), &stored).await;
}
