//! Archives that are restored into a database and a bucket, and back: how a store moves there.

use std::path::Path;
use std::process::{Command, Stdio};

use sqlx::{Connection, PgConnection, query};
use zorb_fake_s3::{Fault, Op};

use super::{check_refused, start, zorb};
use crate::backup::{Backups, check_served, store, store_many};
use crate::cli::Ran;
use crate::support::backend::{BUCKET, Backend};
use crate::support::postgres::migrated;
use crate::support::{Start, TestServer, Xorb, eventually, guarded, issue, read_file, rng};

/// A restore of this archive to the place of these settings.
fn restore(backend: &Backend, backups: &Backups, flags: &[&str]) -> Ran {
    let (archive, data) = (backups.archive(), backups.directory.path("shared"));
    let args = ["restore", archive.to_str().unwrap(), "--data-dir", data.to_str().unwrap()];
    zorb(backend, &[&args, flags].concat())
}

fn check_failed(ran: &Ran, words: &[&str]) {
    let all_there = words.iter().all(|word| ran.stderr.contains(word));
    assert!(ran.code == Some(1) && ran.stdout.is_empty() && all_there, "{words:?} in {}", ran.stderr);
}

fn serve(backend: &Backend, data_dir: &Path) -> TestServer {
    let start = Start::default().with("auth", "token").data_dir(data_dir);
    backend.variables().into_iter().fold(start, |start, (name, value)| start.env(&name, value)).start()
}

#[tokio::test]
async fn store_moves_to_a_bucket_and_back_with_its_keys() {
    let (backend, backups, mut rng) = (Backend::any().await, Backups::new(), rng());
    let server = guarded();
    let token = issue(&server, "write", "*", &[]);
    let mut stored = Vec::new();
    for _ in 0..5 {
        stored.push(store(&server.client().bearing(&token), Xorb::mixed(&mut rng, 12)).await);
    }
    // While the server runs, the first archive takes most of it.
    let archive = backups.archive();
    let back_up = ["backup", archive.to_str().unwrap(), "--include-keys", "--data-dir"];
    let data_dir = server.data_dir().to_str().unwrap().to_owned();
    backups.directory.zorb(&[&back_up[..], &[&data_dir]].concat()).ok_with_remarks();
    stored.push(store(&server.client().bearing(&token), Xorb::incompressible(&mut rng, 20 << 20)).await);
    server.terminate();
    let directories = server.directory();
    assert!(server.wait().success());
    backups.directory.zorb(&[&back_up[..], &[&data_dir]].concat()).ok_with_remarks();
    drop(directories);

    let ran = restore(&backend, &backups, &["--include-keys"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let told = String::from_utf8(ran.stdout).unwrap();
    assert!(told.contains("with its keys: 6 xorbs") && told.contains("s3_prefix"), "{told}");
    let shared = serve(&backend, &backups.directory.path("shared"));
    let client = shared.client().bearing(&token);
    for each in &stored {
        assert_eq!(read_file(&client, "v2", &each.file, None).await.unwrap(), each.xorb.raw);
    }
    stored.push(store(&client, Xorb::mixed(&mut rng, 3)).await);
    assert!(zorb(&backend, &["fsck", "--deep", "--data-dir", shared.data_dir().to_str().unwrap()]).code == Some(0));
    shared.terminate();
    assert!(shared.wait().success());

    // And back, into an archive of its own.
    let data = backups.directory.path("shared");
    let back = backups.directory.path("back.rca");
    let ran =
        zorb(&backend, &["backup", back.to_str().unwrap(), "--include-keys", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    backups.directory.zorb(&["restore", "back.rca", "--include-keys", "--data-dir", "again"]).ok();
    let again = Start::default().with("auth", "token").data_dir(&backups.directory.path("again")).start();
    let client = again.client().bearing(&token);
    for each in &stored {
        assert_eq!(read_file(&client, "v2", &each.file, None).await.unwrap(), each.xorb.raw);
    }
}

/// Begins a restore, and kills it when so many more xorbs were sent.
async fn restore_and_kill(backend: &Backend, backups: &Backups, put_count: usize) {
    let (archive, data) = (backups.archive(), backups.directory.path("shared"));
    let sent_before = backend.s3().count(Op::Put);
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    command.args(["restore", archive.to_str().unwrap(), "--data-dir", data.to_str().unwrap()]);
    let mut restoring = command.envs(backend.variables()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("some xorbs were sent", async || backend.s3().count(Op::Put) >= sent_before + put_count).await;
    // It retries these, so that it is still under way when it is killed.
    backend.s3().fail(Op::Put, Fault::Refused(503), 1000);
    restoring.kill().unwrap();
    restoring.wait().unwrap();
    assert!(backend.s3().forgive() > 0 && !backend.names("").contains(&"store".to_owned()));
}

#[tokio::test]
async fn restore_that_is_killed_again_and_again_continues() {
    let (backups, mut rng) = (Backups::new(), rng());
    let server = TestServer::start();
    let stored = store_many(&server, &mut rng, 220).await;
    backups.back_up(server.data_dir());
    let (backend, data) = (Backend::fake().await, backups.directory.path("shared"));
    // Up to 16 are in flight, so each time at least 12 more were stored, with their rows.
    for _ in 0..5 {
        restore_and_kill(&backend, &backups, 28).await;
        check_refused(&backend, &data, &["the index belongs to store"]);
    }
    // What it has stored is of use only in the same bucket.
    let other = backend.with("s3_prefix", "other");
    check_failed(&restore(&other, &backups, &[]), &["of an interrupted restore to another s3_bucket or s3_prefix"]);
    let sent_before = backend.s3().count(Op::Put);
    let ran = restore(&backend, &backups, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let said = ran.stderr.split("continuing an interrupted restore, which has stored ").nth(1);
    let known_count: usize = said.and_then(|rest| rest.split(' ').next()?.parse().ok()).expect("it says how many");
    assert!(known_count >= 10, "{known_count} xorbs were stored before");
    let sent_count = backend.s3().count(Op::Put) - sent_before;
    assert!(sent_count <= 220 - known_count + 5, "{sent_count} objects after {known_count} xorbs");
    let served = start(&backend, &data);
    check_served(&served, &stored).await;
    served.terminate();
    assert!(served.wait().success());
    // Kills have left objects that no row knows.
    let fsck = |flag: &str| zorb(&backend, &["fsck", flag, "--data-dir", data.to_str().unwrap()]);
    fsck("--repair");
    let checked = fsck("--deep");
    assert_eq!(checked.code, Some(0), "{} {}", String::from_utf8_lossy(&checked.stdout), checked.stderr);
    check_failed(&restore(&backend, &backups, &[]), &["a store is in s3_bucket and s3_prefix", "already"]);
    // A crash may have left the mark of the restore. Even without the id in the bucket, no restore
    // empties a store that a server has used.
    let place =
        format!("s3_bucket and s3_prefix ({BUCKET}/{} at {})", backend.get("s3_prefix"), backend.get("s3_endpoint"));
    let mut database = PgConnection::connect(backend.get("database_url")).await.unwrap();
    let marked = query("UPDATE store SET restoring_to = $1").bind(place).execute(&mut database).await.unwrap();
    assert_eq!(marked.rows_affected(), 1);
    let id = backend.s3().object(BUCKET, &backend.name("store")).unwrap();
    backend.s3().remove_object(BUCKET, &backend.name("store"));
    check_failed(&restore(&backend, &backups, &[]), &["the database has the index of another store"]);
    backend.s3().put_object(BUCKET, &backend.name("store"), id);
    check_served(&start(&backend, &data), &stored).await;
}

#[tokio::test]
async fn restore_into_a_bucket_that_lost_a_xorb_does_not_continue() {
    let (backups, mut rng) = (Backups::new(), rng());
    let server = TestServer::start();
    store_many(&server, &mut rng, 60).await;
    backups.back_up(server.data_dir());
    let backend = Backend::fake().await;
    restore_and_kill(&backend, &backups, 20).await;
    for name in backend.names("xorbs/") {
        backend.s3().remove_object(BUCKET, &backend.name(&name));
    }
    check_failed(&restore(&backend, &backups, &[]), &["the bucket lacks xorb", "an empty database"]);
}

/// Nothing can use what a failed restore has left.
#[tokio::test]
async fn what_a_failed_restore_leaves_is_not_used() {
    let (backups, mut rng) = (Backups::new(), rng());
    let server = TestServer::start();
    let stored = store_many(&server, &mut rng, 20).await;
    let (archive, data) = (backups.archive(), backups.directory.path("shared"));
    let backend = Backend::fake().await;
    server.terminate();
    let directories = server.directory();
    let data_dir = server.data_dir().to_str().unwrap().to_owned();
    assert!(server.wait().success());
    let back_up = ["backup", archive.to_str().unwrap(), "--include-keys", "--data-dir", &data_dir];
    backups.directory.zorb(&back_up).ok_with_remarks();
    drop(directories);
    backend.s3().fail(Op::Put, Fault::Refused(503), 1000);
    check_failed(&restore(&backend, &backups, &["--include-keys"]), &["a part of the archive, which no server uses"]);
    assert!(backend.s3().forgive() > 0);
    check_refused(&backend, &data, &["the index belongs to store"]);
    let other = backend.with("database_url", &migrated().await).with("s3_prefix", "other");
    let ran = restore(&other, &backups, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let server = start(&other, &data);
    check_served(&server, &stored).await;
    for each in &stored {
        assert_eq!(read_file(&server.client(), "v1", &each.file, None).await.unwrap(), each.xorb.raw);
    }
}

#[tokio::test]
async fn restore_into_what_is_not_empty_is_refused() {
    let (backend, backups, mut rng) = (Backend::fake().await, Backups::new(), rng());
    let server = TestServer::start();
    let stored = store_many(&server, &mut rng, 2).await;
    backups.back_up(server.data_dir());
    backend.s3().put_object(BUCKET, &backend.name(&format!("xorbs/00/{}.{:016x}", "00".repeat(32), 7)), vec![1]);
    check_failed(&restore(&backend, &backups, &[]), &["has objects already", "s3_prefix"]);
    let other = backend.with("s3_prefix", "other");
    let ran = restore(&other, &backups, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    check_failed(&restore(&other, &backups, &[]), &["a store is in s3_bucket and s3_prefix", "already"]);
    let database = other.with("database_url", &migrated().await);
    check_failed(&restore(&database, &backups, &[]), &["a store is in s3_bucket and s3_prefix", "already"]);
    let bucket = other.with("s3_prefix", "third");
    check_failed(&restore(&bucket, &backups, &[]), &["the database has the index of another store"]);
    let served = start(&other, &backups.directory.path("shared"));
    check_failed(&restore(&other, &backups, &[]), &["another zorb uses", "stop all servers first"]);
    check_served(&served, &stored).await;
    served.terminate();
    assert!(served.wait().success());
    check_served(&start(&other, &backups.directory.path("shared")), &stored).await;
}

/// What is stored of a damaged archive never becomes a store.
#[tokio::test]
async fn damaged_archive_is_not_restored() {
    let (backend, backups, mut rng) = (Backend::fake().await, Backups::new(), rng());
    let server = TestServer::start();
    store_many(&server, &mut rng, 3).await;
    backups.back_up(server.data_dir());
    let mut bytes = std::fs::read(backups.archive()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    backups.directory.write("b.rca", &bytes);
    check_failed(&restore(&backend, &backups, &[]), &["cannot restore", "b.rca", "which no server uses"]);
    assert!(!backend.names("").contains(&"store".to_owned()));
    check_refused(&backend, &backups.directory.path("shared"), &["the index belongs to store"]);
}
