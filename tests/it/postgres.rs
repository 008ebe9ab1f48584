//! One server over a data directory and a PostgreSQL database: it serves, restarts, dies, and refuses what is not its own.

mod encrypted;

use std::path::Path;
use std::process::{Command, Stdio};

use sqlx::{Connection, PgConnection};

use crate::cli::{Directory, Ran};
use crate::support::postgres::{empty, migrated};
use crate::support::{Start, TestServer, Xorb, output_of, read_file, register, rng, upload_shard};

/// How a command ended that has this database.
fn zorb(url: &str, args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    command.args(args).env("ZORB_DATABASE_URL", url).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary was built");
    let output = output_of(child);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ran { code: output.status.code(), stdout: output.stdout, stderr }
}

/// A start in this directory must fail with these words, and leave the directory as it was.
fn check_refused(url: &str, data_dir: &Path, words: &[&str]) {
    let existed = data_dir.exists();
    let ran = zorb(url, &["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(words.iter().all(|word| ran.stderr.contains(word)), "{words:?} in {}", ran.stderr);
    assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    assert_eq!(data_dir.exists(), existed, "a refused start makes nothing");
}

fn start(url: &str, data_dir: &Path) -> TestServer {
    Start::default().data_dir(data_dir).with("database_url", url).start()
}

#[tokio::test]
async fn store_survives_restart_and_kill_and_is_collected_and_checked() {
    let (url, directory) = (empty().await, Directory::new());
    let data = directory.path("data");
    let dir = ["--data-dir", data.to_str().unwrap()];
    check_refused(&url, &data, &["it has no schema yet", "zorb db migrate"]);
    for _ in 0..2 {
        let ran = zorb(&url, &["db", "migrate"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(String::from_utf8_lossy(&ran.stdout).contains("is current"), "{ran:?}");
    }

    let server = start(&url, &data);
    let (mut rng, client) = (rng(), server.client());
    let (first, second) = (Xorb::mixed(&mut rng, 7), Xorb::mixed(&mut rng, 5));
    let mut files = Vec::new();
    for xorb in [&first, &second] {
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
        let shard = upload_shard(xorb, 0, xorb.chunk_count());
        assert_eq!(register(&client, shard.bytes()).await, 1);
        files.push((shard.file_hash(), xorb.raw(0, xorb.chunk_count()).to_vec()));
    }
    assert!(server.log().contains("created a new store") && server.log().contains("postgresql"), "{}", server.log());
    server.terminate();
    assert!(server.wait().success());
    let server = start(&url, &data);
    let third = Xorb::mixed(&mut rng, 4);
    assert_eq!(server.client().post(&third.path(), third.bytes.clone()).await.status, 201);
    server.kill();
    let server = start(&url, &data);
    let client = server.client();
    for (hash, contents) in &files {
        assert_eq!(&read_file(&client, "v1", hash, None).await.unwrap(), contents);
    }
    assert_eq!(client.get(&third.path()).await.body, third.bytes);
    assert_eq!(client.get("/readyz").await.status, 200);
    assert_eq!(client.get("/metrics").await.status, 200);
    assert!(!data.join("index.sqlite").exists(), "no file of another index");

    let archive = directory.path("store.rca");
    for args in [&["gc"][..], &["fsck", "--deep"], &["backup", archive.to_str().unwrap()]] {
        let ran = zorb(&url, &[args, &dir[..]].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    }
    server.terminate();
    assert!(server.wait().success());
    let ran = zorb(&url, &[&["fsck", "--repair"][..], &dir[..]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);

    // Without the setting, and for what works with SQLite only.
    for args in [&["gc"][..], &["fsck"], &["index", "rebuild"], &["serve", "--listen", "127.0.0.1:0"]] {
        let ran = zorb("", &[args, &dir[..]].concat());
        assert_ne!(ran.code, Some(0));
        assert!(ran.stderr.contains("is in a PostgreSQL database"), "{args:?}: {}", ran.stderr);
    }
    assert!(!data.join("index.sqlite").exists(), "no new index beside the one in PostgreSQL");
    let other = directory.path("other");
    for args in [vec!["index", "rebuild"], vec!["restore", archive.to_str().unwrap()]] {
        let ran = zorb(&url, &[&args[..], &["--data-dir", other.to_str().unwrap()]].concat());
        assert!(ran.code == Some(1) && ran.stderr.contains("database_url is set"), "{args:?}: {}", ran.stderr);
    }
}

/// As for several servers over a bucket (`replicas::rebuild`).
#[tokio::test]
async fn a_lost_database_is_rebuilt_from_the_data_directory() {
    let (lost, new, directory) = (migrated().await, migrated().await, Directory::new());
    let data = directory.path("data");
    let args = ["db", "rebuild", "--data-dir", data.to_str().unwrap()];
    let ran = zorb(&new, &args);
    assert!(ran.code == Some(1) && ran.stderr.contains("no store in"), "{}", ran.stderr);
    let (server, xorb) = (start(&lost, &data), Xorb::mixed(&mut rng(), 5));
    assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let file = upload_shard(&xorb, 1, 5);
    assert_eq!(register(&server.client(), file.bytes()).await, 1);
    let ran = zorb(&new, &args);
    assert!(ran.code == Some(1) && ran.stderr.contains("another zorb serves"), "{}", ran.stderr);
    server.kill();
    let ran = zorb(&new, &args);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let server = start(&new, &data);
    assert_eq!(read_file(&server.client(), "v1", &file.file_hash(), None).await.unwrap(), xorb.raw(1, 5));
}

#[tokio::test]
async fn database_and_directory_of_different_stores_are_refused() {
    let (one, other, directory) = (migrated().await, migrated().await, Directory::new());
    let [data, data_of_other, fresh] = ["data", "other", "fresh"].map(|name| directory.path(name));
    let (server, server_of_other) = (start(&one, &data), start(&other, &data_of_other));
    let xorb = Xorb::mixed(&mut rng(), 3);
    assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    // While its server runs, another process with a new directory cannot share the database.
    check_refused(&one, &fresh, &["the index belongs to store", "has no id", "database_url"]);
    for server in [server, server_of_other] {
        server.terminate();
        assert!(server.wait().success());
    }
    check_refused(&one, &data_of_other, &["the index belongs to store", "the data directory to store"]);
    check_refused(&other, &data, &["the index belongs to store", "the data directory to store"]);
    check_refused(&migrated().await, &data, &["the index is empty", "zorb db rebuild"]);
    // A store with its own index in SQLite.
    let sqlite = directory.path("sqlite");
    drop(Start::default().data_dir(&sqlite).start());
    check_refused(&migrated().await, &sqlite, &["index.sqlite", "unset database_url"]);
    let server = start(&one, &data);
    assert_eq!(server.client().get(&xorb.path()).await.body, xorb.bytes);
}

#[tokio::test]
async fn unusable_database_is_refused_without_its_password() {
    let (url, directory) = (migrated().await, Directory::new());
    let data = directory.path("data");
    let unreachable = "postgres://zorb:hunter2@127.0.0.1:1/store";
    check_refused(
        unreachable,
        &data,
        &["database store at 127.0.0.1:1", "cannot connect", "check that the server runs"],
    );
    check_refused("postgres://zorb:hunter2@host:port/store", &data, &["invalid connection string"]);
    check_refused("mysql://zorb:hunter2@host/store", &data, &["database_url", "expected postgres://"]);
    let missing = url.replace("case_", "missing_");
    check_refused(&missing, &data, &["database missing_", "does not exist"]);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::query("UPDATE _sqlx_migrations SET version = 999 WHERE version = 1").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    check_refused(&url, &data, &["is newer", "use the zorb that wrote it"]);
    let ran = zorb(&url, &["db", "migrate"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("use the zorb that wrote it"), "{}", ran.stderr);
    let ran = zorb("", &["db", "migrate"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("set database_url"), "{}", ran.stderr);
}
