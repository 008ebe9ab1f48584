//! One server over a PostgreSQL database and a bucket: it serves, restarts, dies, sees its S3 store fail, and refuses
//! what is not its own.

mod check;
mod direct;
mod real;
mod restored;

use std::path::Path;
use std::process::{Command, Stdio};

use sqlx::{Connection, PgConnection};
use zorb_fake_s3::{Fault, Op};

use crate::cli::{Directory, Ran};
use crate::support::backend::{BUCKET, Backend};
use crate::support::postgres::migrated;
use crate::support::{Client, Start, TestServer, Xorb, output_of, read_file, register, rng, shard_of, upload_shard};

/// How a command ended that has these settings.
fn zorb(backend: &Backend, args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    command.args(args).envs(backend.variables()).stdin(Stdio::null());
    let output =
        output_of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary was built"));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ran { code: output.status.code(), stdout: output.stdout, stderr }
}

/// A start in this directory must fail with these words, and leave the directory as it was.
fn check_refused(backend: &Backend, data_dir: &Path, words: &[&str]) {
    let existed = data_dir.exists();
    let ran = zorb(backend, &["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(words.iter().all(|word| ran.stderr.contains(word)), "{words:?} in {}", ran.stderr);
    assert!(!ran.stderr.contains(backend.get("s3_secret_key")), "{}", ran.stderr);
    assert_eq!(data_dir.exists(), existed, "a refused start makes nothing");
}

fn start(backend: &Backend, data_dir: &Path) -> TestServer {
    let start = Start::default().data_dir(data_dir);
    backend.variables().into_iter().fold(start, |start, (name, value)| start.env(&name, value)).start()
}

/// A file of this xorb's chunks, uploaded and registered: its hash and its contents.
async fn add(client: &Client, xorb: &Xorb) -> (String, Vec<u8>) {
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let shard = upload_shard(xorb, 0, xorb.chunk_count());
    assert_eq!(register(client, shard.bytes()).await, 1);
    (shard.file_hash(), xorb.raw(0, xorb.chunk_count()).to_vec())
}

#[tokio::test]
async fn start_is_refused_for_each_setting_that_is_wrong() {
    let (backend, directory) = (Backend::fake().await, Directory::new());
    let data = directory.path("data");
    for (key, value, words) in [
        ("database_url", "", &["database_url is not set", "s3_"][..]),
        ("s3_bucket", "", &["s3_bucket is not set"]),
        ("s3_secret_key", "", &["s3_secret_key or s3_secret_key_file is not set"]),
        ("s3_secret_key_file", "/nowhere", &["s3_secret_key is set, too"]),
        ("s3_endpoint", "s3.example", &["s3_endpoint", "expected http:// or https://"]),
        ("s3_bucket", "other", &["NoSuchBucket", "bucket other at http://127.0.0.1"]),
        ("s3_access_key", "other", &["InvalidAccessKeyId", "bucket stores at http://127.0.0.1"]),
        ("s3_endpoint", "http://127.0.0.1:1", &["bucket stores at http://127.0.0.1:1", "check that it runs"]),
        ("s3_prefix", "../other", &["s3_prefix"]),
        ("master_key", "", &["master_key or master_key_file is not set"]),
        ("master_key", "5a5a", &["master_key", "expected 64 hexadecimal digits"]),
        ("master_key_file", "/nowhere", &["master_key is set, too"]),
    ] {
        let wrong = backend.with(key, value);
        let existed = data.exists();
        let ran = zorb(&wrong, &["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()]);
        assert!(ran.code == Some(1) && words.iter().all(|word| ran.stderr.contains(word)), "{words:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("test-secret") && data.exists() == existed, "{}", ran.stderr);
    }
    let secret = directory.path("secret");
    directory.write("secret", b"test-secret\n");
    // The bucket has no store yet.
    let required = backend.variables().into_iter().chain([("ZORB_REQUIRE_STORE".to_owned(), "true".to_owned())]);
    let required: Vec<_> = required.collect();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    command.args(serve).envs(required.clone()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = Ran::of(command.spawn().unwrap());
    assert!(ran.code == Some(1) && ran.stderr.contains("require_store is set"), "{}", ran.stderr);
    let by_file = backend.with("s3_secret_key", "").with("s3_secret_key_file", secret.to_str().unwrap());
    assert_eq!(start(&by_file, &data).client().get("/readyz").await.status, 200);
    // Another machine, after the store was created.
    let elsewhere = Start::default().data_dir(&directory.path("elsewhere"));
    let server = required.into_iter().fold(elsewhere, |start, (name, value)| start.env(&name, value)).start();
    assert_eq!(server.client().get("/readyz").await.status, 200);
}

#[tokio::test]
async fn bucket_of_another_store_and_directory_with_blobs_are_refused() {
    let (one, other, directory) = (Backend::fake().await, Backend::fake().await, Directory::new());
    let [data, data_of_other, plain] = ["data", "other", "plain"].map(|name| directory.path(name));
    let (server, _other) = (start(&one, &data), start(&other, &data_of_other));
    add(&server.client(), &Xorb::mixed(&mut rng(), 3)).await;
    drop((server, _other));
    // The bucket of one store with the database of another one, or with a new one.
    let mixed = one.with("database_url", other.get("database_url"));
    check_refused(&mixed, &data, &["the index belongs to store", "s3_bucket and s3_prefix (stores/store at"]);
    check_refused(&one.with("database_url", &migrated().await), &data, &["the index is empty", "s3_bucket"]);
    check_refused(
        &one.with("s3_prefix", "empty"),
        &data,
        &["the index belongs to store", "s3_prefix (stores/empty at"],
    );
    // A data directory with blobs, and one whose blobs are elsewhere.
    drop(Start::default().data_dir(&plain).start());
    check_refused(&Backend::fake().await, &plain, &["has its blobs in the directory xorbs"]);
    let command = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    let mut without = Command::new(env!("CARGO_BIN_EXE_zorb"));
    without
        .args(command)
        .env("ZORB_DATABASE_URL", one.get("database_url"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ran = Ran::of(without.spawn().unwrap());
    assert!(ran.code == Some(1) && ran.stderr.contains("are in an S3 bucket"), "{}", ran.stderr);
}

#[tokio::test]
async fn what_changes_a_bucket_needs_it_alone() {
    let (backend, directory) = (Backend::fake().await, Directory::new());
    let (here, there) = (directory.path("here"), directory.path("there"));
    let server = start(&backend, &here);
    let kept = add(&server.client(), &Xorb::mixed(&mut rng(), 5)).await;
    server.kill();
    let server = start(&backend, &there);
    assert_eq!(read_file(&server.client(), "v1", &kept.0, None).await.unwrap(), kept.1);
    // What changes the store needs it alone, wherever the server is.
    let changing = [&["gc"][..], &["fsck", "--repair"]];
    for (args, data) in changing.iter().flat_map(|args| [(args, &here), (args, &there)]) {
        let ran = zorb(&backend, &[args, &["--data-dir", data.to_str().unwrap()][..]].concat());
        assert!(ran.code != Some(0) && ran.stderr.contains("stop all servers first"), "{args:?}: {}", ran.stderr);
    }
    for args in [&["gc", "--dry-run"][..], &["fsck"]] {
        let ran = zorb(&backend, &[args, &["--data-dir", here.to_str().unwrap()]].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    }
    server.terminate();
    assert!(server.wait().success());
    for args in changing {
        let ran = zorb(&backend, &[args, &["--data-dir", here.to_str().unwrap()]].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn server_that_loses_its_lock_stops() {
    let (backend, directory) = (Backend::fake().await, Directory::new());
    let server = start(&backend, &directory.path("data"));
    let mut connection = PgConnection::connect(backend.get("database_url")).await.unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND granted \
               AND (classid::bigint << 32 | objid::bigint) = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let ended: i64 =
        sqlx::query_scalar(end).bind(i64::from_be_bytes(*b"zorb.srv")).fetch_one(&mut connection).await.unwrap();
    assert_eq!(ended, 1);
    let (status, log) = server.exit().await;
    assert!(status.code() == Some(1) && log.contains("lost the connection that has the locks"), "{log}");
}

/// The records of a store were lost: a start writes them again, and later starts keep them.
#[tokio::test]
async fn records_that_a_start_has_written_again_stay() {
    let (backend, directory) = (Backend::fake().await, Directory::new());
    let data = directory.path("data");
    let server = start(&backend, &data);
    let file = add(&server.client(), &Xorb::mixed(&mut rng(), 5)).await;
    server.kill();
    for name in backend.names("shards/").into_iter().chain(["complete".to_owned()]) {
        backend.s3().remove_object(BUCKET, &backend.name(&name));
    }
    let mut written = Vec::new();
    for start_count in 0..3 {
        let server = start(&backend, &data);
        assert_eq!(read_file(&server.client(), "v1", &file.0, None).await.unwrap(), file.1);
        let names = backend.names("shards/");
        assert!(names.len() == 1 && (start_count == 0 || names == written), "{start_count}: {names:?}");
        written = names;
        server.kill();
    }
}

#[tokio::test]
async fn refused_requests_of_the_s3_store_are_503_and_nothing_is_lost() {
    let (backend, directory) = (Backend::fake().await, Directory::new());
    let server = start(&backend, &directory.path("data"));
    let (mut rng, client) = (rng(), server.client());
    let (stored, refused) = (Xorb::mixed(&mut rng, 7), Xorb::mixed(&mut rng, 5));
    let file = add(&client, &stored).await;

    backend.s3().fail(Op::Put, Fault::Refused(503), 5);
    let response = client.post(&refused.path(), refused.bytes.clone()).await;
    assert_eq!(response.status, 503, "{:?}", response.body);
    assert!(!response.header("retry-after").is_empty() && server.log().contains("the S3 store does not respond"));
    assert_eq!(client.get(&refused.path()).await.status, 404);
    // The record of a registration is refused, too.
    assert_eq!(client.post(&refused.path(), refused.bytes.clone()).await.status, 201);
    let shard = shard_of(&[(&stored, 0, 3), (&refused, 0, 2)]);
    backend.s3().fail(Op::Put, Fault::Refused(503), 5);
    assert_eq!(client.post("/v1/shards", shard.bytes()).await.status, 503);
    assert_eq!(register(&client, shard.bytes()).await, 1);

    for fault in [Fault::Refused(500), Fault::CutAfter(100), Fault::CutAfter(0)] {
        backend.s3().fail(Op::Get, fault, 2);
        assert_eq!(read_file(&client, "v1", &file.0, None).await.unwrap(), file.1, "{fault:?}");
        assert_eq!(backend.s3().forgive(), 0, "{fault:?} happened");
    }
    server.kill();
    let server = start(&backend, &directory.path("data"));
    assert_eq!(read_file(&server.client(), "v1", &file.0, None).await.unwrap(), file.1);
    assert_eq!(server.client().get(&refused.path()).await.body, refused.bytes);
}

/// The bucket of a running server is emptied, or another one is mounted behind its name.
#[tokio::test]
async fn emptied_bucket_is_an_outage_and_marks_no_xorb_as_damaged() {
    let (backend, directory) = (Backend::fake().await, Directory::new());
    let server = start(&backend, &directory.path("data"));
    let client = server.client();
    let xorb = Xorb::mixed(&mut rng(), 5);
    let file = add(&client, &xorb).await;
    backend.s3().rename_bucket(BUCKET, "elsewhere");
    backend.s3().create_bucket(BUCKET);
    assert_eq!(client.get("/readyz").await.status, 503);
    assert_eq!(client.get(&xorb.path()).await.status, 503);
    let data = directory.path("data");
    let ran = zorb(&backend, &["fsck", "--data-dir", data.to_str().unwrap()]);
    assert!(ran.code != Some(0) && !ran.stderr.contains("damaged"), "{}", ran.stderr);
    backend.s3().rename_bucket("elsewhere", BUCKET);
    assert_eq!(client.get("/readyz").await.status, 200);
    assert_eq!(read_file(&client, "v1", &file.0, None).await.unwrap(), file.1);
    let ran = zorb(&backend, &["fsck", "--deep", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

/// An object that was lost, or that has other bytes: it is found, marked, and replaced by an upload.
#[tokio::test]
async fn damaged_object_is_found_and_replaced_by_an_upload() {
    let (backend, directory) = (Backend::fake().await, Directory::new());
    let data = directory.path("data");
    let mut server = start(&backend, &data);
    for is_lost in [true, false] {
        let client = server.client();
        let xorb = Xorb::mixed(&mut rng(), 5 + usize::from(is_lost));
        let file = add(&client, &xorb).await;
        let names = backend.names(&format!("xorbs/{}/{}", &xorb.hash()[..2], xorb.hash()));
        assert_eq!(names.len(), 1, "{names:?}");
        if is_lost {
            backend.s3().remove_object(BUCKET, &backend.name(&names[0]));
        } else {
            backend.s3().put_object(BUCKET, &backend.name(&names[0]), vec![7; xorb.bytes.len()]);
        }
        server.terminate();
        assert!(server.wait().success());
        let args = ["fsck", "--deep", "--repair", "--data-dir", data.to_str().unwrap()];
        let ran = zorb(&backend, &args);
        assert!(ran.code == Some(1) && String::from_utf8_lossy(&ran.stdout).contains(&xorb.hash()), "{ran:?}");
        server = start(&backend, &data);
        let client = server.client();
        assert_ne!(read_file(&client, "v1", &file.0, None).await.ok(), Some(file.1.clone()));
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
        assert_eq!(read_file(&client, "v1", &file.0, None).await.unwrap(), file.1);
    }
}
